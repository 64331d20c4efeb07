package iscsitest

import (
	"bytes"
	"fmt"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// atLevel logs in with an ErrorRecoveryLevel, and skips the case if the target has another.
func (t *T) atLevel(level uint32, limit int, keys ...string) *Session {
	s := t.login(options{limit: limit, keys: append(keys, fmt.Sprintf("ErrorRecoveryLevel=%d", level))})
	if got := s.v[iscsi.KeyErrorRecoveryLevel]; got != level {
		t.skip("the target has ErrorRecoveryLevel %d", got)
	}
	return s
}

// snack sends a SNACK that acknowledges status up to expStatSN, that excluded.
func (s *Session) snack(q iscsi.SNACK) {
	p := &PDU{}
	q.Put(&p.BHS)
	s.send(p)
}

// replica reports whether a PDU is another once more, but for the numbers of commands, which are those of now (RFC
// 7143 section 11.16).
func replica(p, q *PDU) bool {
	a, b := p.BHS, q.BHS
	copy(a[28:36], b[28:36])
	return a == b && bytes.Equal(p.Data, q.Data)
}

// raw returns the next PDU, of which nothing is noted at its task. A ping of the target is answered. If nothing comes
// although the target answers one of ours, it is to blame.
func (s *Session) raw(waiting string) *PDU {
	for tag := uint32(0); ; {
		p, err := s.tryReceive(s.t.wait())
		switch {
		case err == errTimeout && tag == 0:
			tag = s.ping(nil)
		case err == errTimeout:
			s.t.unclear("%s has not come for %v, nor the answer to a ping", waiting, 2*s.t.o.Timeout)
		case err != nil:
			s.t.lost(s.Conn, err)
		case p.BHS.Opcode() == iscsi.OpNOPIn && p.BHS.ITT() == tag:
			s.t.fail("%s has not come for %v, although the target answers a ping", waiting, s.t.o.Timeout)
		case p.BHS.Opcode() != iscsi.OpNOPIn || !s.taken(p):
			return p
		}
	}
}

// recovering is a case at a level, over TCP.
func recovering(id, source, says string, level uint32, need Need, limit int, keys []string, run func(t *T, s *Session)) Case {
	return Case{ID: "recovery." + id, Source: source, Says: says, Need: need, Over: onTCP, run: func(t *T) {
		run(t, t.atLevel(level, limit, keys...).ready())
	}}
}

// outcomeOf goes on with a WRITE of which data are missing or damaged until it ends, and does what Recovery-R2Ts ask
// for. It returns false if the connection ends instead.
func (s *Session) outcomeOf(k *Task) bool {
	k.hold = false
	for !k.done {
		p, err := s.tryReceive(s.t.wait())
		if err == errTimeout {
			s.t.fail("a WRITE of which data were lost does not go on")
		} else if err != nil {
			return false
		}
		s.taken(p)
	}
	return true
}

func recoveryCases() []Case {
	digests := []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C"}
	asking := []string{"InitialR2T=Yes", "ImmediateData=No"}
	lost := func(says string, sns []uint32, broken int) func(t *T, s *Session) {
		return func(t *T, s *Session) {
			n := 16 * s.blockLen()
			before := t.pattern(n)
			s.good(s.do(write10(1200, 16), before, nil), "WRITE")
			data := t.pattern(n)
			k := s.start(write10(1200, 16), data, nil, how{hold: true})
			r := t.firstR2T(s, k)
			k.pending--
			piece := r.Length / uint32(len(sns))
			for i, sn := range sns {
				if i == broken && len(sns) == 4 { // this one does not come
					continue
				}
				d := iscsi.DataOut{Final: i == len(sns)-1, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, ExpStatSN: s.expStatSN, DataSN: sn, Offset: r.Offset + uint32(i)*piece}
				p := &PDU{Data: data[d.Offset:][:piece]}
				if i == broken && len(sns) != 4 {
					p.spoil = spoilData
				}
				d.Put(&p.BHS)
				s.send(p)
			}
			t.amiss = true // an R2T comes again
			if !s.outcomeOf(k) {
				t.fail("the connection ends at %s", says)
			}
			t.amiss = false
			if k.Status == scsi.Good {
				s.verify(1200, data)
				return
			}
			s.senses(k, "a WRITE", scsi.AbortedCommand, scsi.ProtocolServiceCRC)
		}
	}
	return []Case{
		recovering("snack-data", "RFC 7143 11.16", "The numbered Data-In PDUs requested by a Data SNACK MUST be delivered as exact replicas", 1, 0, 512, nil, func(t *T, s *Session) {
			n := s.blockLen()
			k := s.start(read10(0, 8), nil, make([]byte, 8*n), how{})
			var all []*PDU
			for {
				p := s.raw("the data of a READ")
				if p.BHS.Opcode() == iscsi.OpDataIn {
					all = append(all, p)
				}
				if d, _ := iscsi.ParseDataIn(&p.BHS); p.BHS.Opcode() == iscsi.OpResponse || d.HasStatus {
					break
				}
			}
			t.require(len(all) >= 4, "%d Data-In PDUs bring %d bytes, with MaxRecvDataSegmentLength 512", len(all), 8*n)
			t.amiss = true // they come again
			s.snack(iscsi.SNACK{Type: iscsi.SNACKData, LUN: s.lun(), ITT: k.ITT, TTT: iscsi.NoTag, ExpStatSN: s.expStatSN - 1, BegRun: 1, RunLength: 2})
			for i := 1; i <= 2; i++ {
				p := s.raw("a Data-In PDU that was asked for again")
				t.require(replica(p, all[i]), "%v comes in place of %v", p, all[i])
			}
		}),
		recovering("snack-status", "RFC 7143 11.16, 11.4.9", "In the case of responses sent due to a retransmission request, the StatSN MUST be the same as the first time the PDU was sent", 1, 0, 0, nil, func(t *T, s *Session) {
			s.start([]byte{scsi.TestUnitReady}, nil, nil, how{})
			first := s.raw("the response to TEST UNIT READY")
			t.amiss = true
			s.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, ExpStatSN: first.BHS.StatSN(), BegRun: first.BHS.StatSN(), RunLength: 1})
			p := s.raw("the response that was asked for again")
			t.require(replica(p, first), "%v comes in place of %v", p, first)
		}),
		recovering("snack-acknowledged", "RFC 7143 11.16, 11.17.1", "a SNACK for a status that was acknowledged is rejected as a protocol error", 1, 0, 0, nil, func(t *T, s *Session) {
			s.good(s.do([]byte{scsi.TestUnitReady}, nil, nil), "TEST UNIT READY")
			sn := s.expStatSN - 1
			s.silence() // which acknowledges it
			s.silence()
			s.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, ExpStatSN: s.expStatSN, BegRun: sn, RunLength: 1})
			why := s.rejects("a SNACK for a status that was acknowledged")
			t.require(why == iscsi.RejectProtocolError || why == iscsi.RejectSNACK, "reason %d (0: the connection has ended)", why)
		}),
		recovering("data-digest", "RFC 7143 7.8", "for a data PDU with a payload digest error the target MUST ask again, or end the command with Protocol Service CRC error", 1, Data, 0, append(digests, asking...), lost("a wrong data digest", []uint32{0, 1}, 0)),
		recovering("data-missing", "RFC 7143 7.9, 7.8", "for a data PDU that is missing the target MUST ask again, or end the command with Protocol Service CRC error", 1, Data, 0, asking, lost("a missing Data-Out PDU", []uint32{0, 1, 2, 3}, 1)),
		recovering("reassign", "RFC 7143 7.2.2, 11.5.1", "at ErrorRecoveryLevel 2 a task of a connection that has failed goes on by another after TASK REASSIGN", 2, Data, 0, asking, func(t *T, s *Session) {
			data := t.pattern(64 * s.blockLen())
			k := s.start(write10(1300, 64), data, nil, how{hold: true})
			t.firstR2T(s, k)
			s.close()
			b := t.joined(s, s.cid)
			b.tasks, b.itt = s.tasks, s.itt
			t.amiss = true // R2Ts come again
			why := b.manage(iscsi.TaskReassign, func(q *iscsi.TaskMgmt) { q.RefTag, q.ExpDataSN = k.ITT, k.r2tSN })
			t.require(why == iscsi.FunctionComplete, "response %d", why)
			if !b.outcomeOf(k) {
				t.fail("the connection ends")
			}
			t.amiss = false
			b.good(k, "the WRITE")
			b.verify(1300, data)
		}),
		recovering("reassign-unknown", "RFC 7143 7.2.2, 11.6.1", "a task that there is not is not reassigned", 2, 0, 0, nil, func(t *T, s *Session) {
			why := s.manage(iscsi.TaskReassign, func(q *iscsi.TaskMgmt) { q.RefTag = 0x4711 })
			t.require(why == iscsi.TaskDoesNotExist, "response %d", why)
		}),
		recovering("reassign-allegiant", "RFC 7143 7.2.2", "if the connection of the task is still up, the target MUST respond with Task Still Allegiant", 2, Data, 0, append(asking, "MaxConnections=2"), func(t *T, s *Session) {
			if s.v[iscsi.KeyMaxConnections] < 2 {
				t.skip("the target has one connection in a session")
			}
			k := t.waiting(s)
			b := t.joined(s, s.cid+1)
			b.itt = 1 << 16
			why := b.manage(iscsi.TaskReassign, func(q *iscsi.TaskMgmt) { q.RefTag = k.ITT })
			t.require(why == iscsi.TaskStillAllegiant, "response %d", why)
		}),
		recovering("logout", "RFC 7143 11.14, 11.15", "at ErrorRecoveryLevel 2 a connection is removed for recovery", 2, 0, 0, nil, func(t *T, s *Session) {
			a := s.logout(iscsi.RemoveForRecovery, s.cid)
			t.require(a.Response == iscsi.LogoutClosed, "response %d", a.Response)
			s.isOver("the Logout")
		}),
	}
}
