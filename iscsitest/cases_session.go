package iscsitest

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// logout logs out and returns the response.
func (s *Session) logout(reason uint8, cid uint16) iscsi.LogoutReply {
	q := iscsi.Logout{Immediate: true, Reason: reason, ITT: s.nextTag(), CmdSN: s.cmdSN, ExpStatSN: s.expStatSN, CID: cid}
	p := &PDU{}
	q.Put(&p.BHS)
	s.send(p)
	r := s.awaitPDU(iscsi.OpLogoutResp)
	a := iscsi.ParseLogoutReply(&r.BHS)
	s.t.require(a.ITT == q.ITT, "a Logout Request with tag %#x is answered by %v", q.ITT, r)
	return a
}

// isOver fails the case unless the connection ends.
func (s *Session) isOver(why string) {
	_, ended := s.ends()
	s.t.require(ended, "the connection goes on after %s", why)
}

// join adds a connection to a session.
func (t *T) join(s *Session, cid uint16) (*Session, *answer) {
	return t.tryLogin(options{tsih: s.tsih, cid: cid, cmdSN: s.cmdSN})
}

// joined adds a connection, and fails the case if the target refuses it.
func (t *T) joined(s *Session, cid uint16) *Session {
	b, a := t.join(s, cid)
	t.require(b != nil || a.accepted(), "connection %d does not join the session: %v", cid, a)
	return b
}

func sessionCases() []Case {
	tur := []byte{scsi.TestUnitReady}
	return []Case{
		{ID: "session.logout", Source: "RFC 7143 11.14, 11.15", Says: "the target answers a Logout that closes the session, and ends the connection", run: func(t *T) {
			s := t.login(options{})
			a := s.logout(iscsi.CloseSession, s.cid)
			t.require(a.Response == iscsi.LogoutClosed, "response %d", a.Response)
			s.isOver("the Logout")
		}},
		{ID: "session.logout-connection", Source: "RFC 7143 11.14, 6.3.5", Says: "a Logout that closes the only connection closes the session", run: func(t *T) {
			until := t.wait()
			for pause := 25 * time.Millisecond; ; pause *= 2 { // the session need not be gone with its connection
				s := t.login(options{})
				a := s.logout(iscsi.CloseConnection, s.cid)
				t.require(a.Response == iscsi.LogoutClosed, "response %d", a.Response)
				s.isOver("the Logout")
				t.pause(pause)
				b, r := t.join(s, 2)
				if b == nil {
					return
				}
				t.require(time.Now().Before(until), "a connection joins the session %v after that: %v", pause, r)
			}
		}},
		{ID: "session.logout-unknown", Level: Should, Source: "RFC 7143 11.15.1", Says: "a Logout of a connection that there is not is answered by CID not found", run: func(t *T) {
			s := t.login(options{})
			a := s.logout(iscsi.CloseConnection, s.cid+77)
			t.require(a.Response == iscsi.LogoutNoCID, "response %d", a.Response)
			s.silence()
		}},
		{ID: "session.logout-recovery", Level: Should, Source: "RFC 7143 11.15.1", Says: "below ErrorRecoveryLevel 2 removing a connection for recovery is answered by connection recovery is not supported", run: func(t *T) {
			s := t.login(options{keys: []string{"ErrorRecoveryLevel=0"}})
			a := s.logout(iscsi.RemoveForRecovery, s.cid)
			t.require(a.Response == iscsi.LogoutNotSupported, "response %d", a.Response)
		}},
		{ID: "session.reinstatement", Source: "RFC 7143 6.3.5", Says: "a login with the ISID of a session and TSIH 0 ends that session and makes another", run: func(t *T) {
			old := t.login(options{}).ready()
			s := t.login(options{}).ready()
			old.isOver("another login with its ISID")
			s.good(s.do(tur, nil, nil), "TEST UNIT READY in the new session")
		}},
		{ID: "session.two", Source: "RFC 7143 4.4.3, 10.1.1", Says: "sessions of one initiator with different ISIDs stand beside each other", run: func(t *T) {
			a := t.login(options{}).ready()
			b := t.login(options{isid: 7}).ready()
			a.good(a.do(tur, nil, nil), "TEST UNIT READY in the first session")
			b.good(b.do(tur, nil, nil), "TEST UNIT READY in the second session")
		}},
		{ID: "session.same-isid-of-another", Source: "RFC 7143 4.4.3", Says: "the same ISID of another initiator is another session", run: func(t *T) {
			a := t.login(options{isid: 5}).ready()
			b := t.login(options{initiator: 1, isid: 5}).ready()
			a.good(a.do(tur, nil, nil), "TEST UNIT READY in the first session")
			b.good(b.do(tur, nil, nil), "TEST UNIT READY in the second session")
		}},
		{ID: "session.reinstatement-ends-tasks", Source: "RFC 7143 6.3.5", Says: "Session reinstatement causes all the tasks that were active on the old session to be immediately terminated by the target", Need: Data, Over: onTCP, run: func(t *T) {
			old := t.login(holding).ready()
			n := 64 * old.blockLen()
			before := t.pattern(n)
			old.good(old.do(write10(256, 64), before, nil), "WRITE")
			k := t.waiting(old)
			s := t.login(options{}).ready()
			for _, r := range k.r2ts { // too late
				d := iscsi.DataOut{Final: true, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, Offset: r.Offset}
				p := &PDU{Data: k.Out[r.Offset:][:min(r.Length, old.targetLimit)]}
				d.Put(&p.BHS)
				if old.trySend(p) != nil {
					break
				}
			}
			old.ends()
			s.verify(256, before)
		}},
		{ID: "session.nexus-loss", Source: "SAM-5 6.3, RFC 7143 6.3.5", Says: "who logs in anew gets a unit attention", run: func(t *T) {
			t.login(options{}).ready().logout(iscsi.CloseSession, 1)
			k := t.login(options{}).once(tur, nil, nil)
			t.require(k.Status == scsi.CheckCondition && k.Sense.Key == scsi.UnitAttention && k.Sense.Code>>8 == 0x29, "the first command ends with %s", k.outcome())
		}},
		{ID: "session.join", Source: "RFC 7143 6.3.1, 13.2", Says: "a session has as many connections as was agreed, and commands go by each of them", Over: onTCP, run: func(t *T) {
			s := t.login(options{keys: []string{"MaxConnections=4"}}).ready()
			most := int(s.v[iscsi.KeyMaxConnections])
			if most == 1 {
				t.skip("the target has one connection in a session")
			}
			for i := 2; i <= most; i++ {
				b := t.joined(s, uint16(i))
				b.itt = uint32(i) << 16
				b.good(b.do(tur, nil, nil), "TEST UNIT READY by another connection")
				s.cmdSN, s.expCmdSN, s.maxCmdSN = b.cmdSN, b.expCmdSN, b.maxCmdSN
			}
			b, a := t.join(s, uint16(most+1))
			t.require(b == nil, "connection %d joins, where %d were agreed: %v", most+1, most, a)
			s.good(s.do(tur, nil, nil), "TEST UNIT READY by the first connection")
		}},
		{ID: "session.join-of-another", Source: "RFC 7143 4.4.3, 6.3.1", Says: "no initiator joins a session of another", run: func(t *T) {
			s := t.login(options{keys: []string{"MaxConnections=4"}})
			if s.tsih == 0 {
				t.unclear("the session has no TSIH by which it could be joined") // login.tsih fails for that
			}
			b, a := t.tryLogin(options{initiator: 1, isid: 0, tsih: s.tsih, cid: 2})
			t.require(b == nil, "it does: %v", a)
		}},
		{ID: "session.opcode-unknown", Source: "RFC 7143 7.7, 11.17.1", Says: "a PDU with an opcode that there is not is rejected, or ends the session", run: func(t *T) {
			s := t.login(options{})
			p := &PDU{BHS: iscsi.BHS{0x40 | 0x1d, 0x80}}
			p.BHS[19] = 9
			s.send(p)
			s.rejects("a PDU with the opcode 0x1d")
		}},
		{ID: "session.snack-level-0", Source: "RFC 7143 11.16", Says: "a SNACK at ErrorRecoveryLevel 0 is rejected, or ends the session", Over: onTCP, run: func(t *T) {
			s := t.login(options{keys: []string{"ErrorRecoveryLevel=0"}})
			q := iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, ExpStatSN: s.expStatSN, BegRun: s.expStatSN}
			p := &PDU{}
			q.Put(&p.BHS)
			s.send(p)
			s.rejects("a SNACK at level 0")
		}},
		{ID: "session.login-again", Source: "RFC 7143 6.3", Says: "a Login Request in full feature phase is rejected, or ends the session", run: func(t *T) {
			s := t.login(options{})
			q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: s.isid, TSIH: s.tsih, CID: s.cid, ITT: s.nextTag(), CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			p := &PDU{}
			q.Put(&p.BHS)
			s.send(p)
			s.rejects("a Login Request in full feature phase")
		}},
		{ID: "session.many", Level: Practice, Source: "RFC 7143 4.4.3", Says: "eight initiators at once are served", run: func(t *T) {
			var all []*Session
			for i := range 8 {
				all = append(all, t.login(options{initiator: i}).ready())
			}
			for i, s := range all {
				s.good(s.do(tur, nil, nil), fmt.Sprintf("TEST UNIT READY of initiator %d", i+1))
			}
		}},
	}
}
