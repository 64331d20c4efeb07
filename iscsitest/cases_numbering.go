package iscsitest

import (
	"bytes"
	"errors"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// ready has the unit say all its unit attentions.
func (s *Session) ready() *Session {
	if k := s.do([]byte{scsi.TestUnitReady}, nil, nil); k.Status != scsi.Good {
		s.t.skip("LUN %d is not ready: TEST UNIT READY ends with %s", s.t.target.LUN, k.outcome())
	}
	return s
}

// rejects waits for the Reject of a PDU that was sent, or for the end of the connection, where the RFC leaves a
// target the choice. It returns the reason, 0 at the end of the connection. When nothing comes in time, a ping tells
// whether the target is alive, as in nextPDU; not in a Discovery session, where a ping may be rejected, too.
func (s *Session) rejects(what string) iscsi.Reason {
	for {
		p, err := s.tryReceive(s.t.wait())
		if err == errTimeout && !s.discovery {
			tag := s.ping(nil)
			if p, err = s.tryReceive(s.t.wait()); err == errTimeout {
				s.t.unclear("%s is neither rejected, nor does it end the connection, and a ping is not answered", what)
			} else if err == nil && p.BHS.Opcode() == iscsi.OpNOPIn && p.BHS.ITT() == tag {
				err = errTimeout
			}
		}
		switch {
		case err == errTimeout:
			s.t.fail("%s is neither rejected, nor does it end the connection", what)
		case errors.Is(err, errBroken): // it has sent something that is no PDU
			s.t.lost(s.Conn, err)
		case err != nil:
			return 0
		}
		if p.BHS.Opcode() == iscsi.OpReject {
			if len(p.Data) < iscsi.BHSLen {
				s.t.fail("%v has not the header of what it rejects", p)
			}
			return iscsi.ParseReject(&p.BHS).Reason
		}
		if !s.taken(p) {
			s.t.fail("%s is answered by %v", what, p)
		}
	}
}

func numberingCases() []Case {
	tur := []byte{scsi.TestUnitReady}
	inquiry := []byte{scsi.Inquiry, 0, 0, 0, 36}
	return []Case{
		{ID: "numbering.acknowledged", Source: "RFC 7143 4.2.2.1", Says: "ExpCmdSN is advanced by each non-immediate command", run: func(t *T) {
			s := t.login(options{}).ready()
			for range 5 {
				s.do(tur, nil, nil)
				t.require(s.expCmdSN == s.cmdSN, "ExpCmdSN is %d with the response to the command before %d", s.expCmdSN, s.cmdSN)
			}
		}},
		{ID: "numbering.immediate", Source: "RFC 7143 4.2.2.1", Says: "commands for immediate delivery do not advance ExpCmdSN", run: func(t *T) {
			s := t.login(options{}).ready()
			before := s.expCmdSN
			s.start(tur, nil, nil, how{immediate: true, patient: true}) // which some targets reject
			s.silence()
			t.require(s.expCmdSN == before, "ExpCmdSN is %d, and was %d before immediate commands", s.expCmdSN, before)
		}},
		{ID: "numbering.immediate-command", Source: "RFC 7143 4.2.2.1", Says: "An iSCSI target MUST be able to handle at least one immediate task management command and one immediate non-task-management iSCSI command per connection at any time", run: func(t *T) {
			s := t.login(options{}).ready()
			k := s.start(tur, nil, nil, how{immediate: true})
			for _, p := range s.silence() {
				t.require(p.BHS.Opcode() != iscsi.OpReject, "a SCSI Command for immediate delivery is answered by %v", p)
			}
			s.good(s.waitFor(k), "an immediate command")
		}},
		{ID: "numbering.order", Source: "RFC 7143 4.2.2.1", Says: "The target MUST deliver commands in the order of CmdSN: one that comes early waits", run: func(t *T) {
			s := t.login(options{}).ready()
			s.opens(2)
			n := s.cmdSN
			s.cmdSN += 2
			late := s.start(inquiry, nil, make([]byte, 36), how{cmdSN: n + 1})
			s.silence()
			t.require(!late.done, "a command with CmdSN %d is carried out before that with %d", n+1, n)
			t.require(s.expCmdSN == n, "ExpCmdSN is %d, and the command with %d has not been sent", s.expCmdSN, n)
			early := s.start(tur, nil, nil, how{cmdSN: n})
			s.good(s.waitFor(early), "the command that was missing")
			s.good(s.waitFor(late), "the command that has waited")
			t.require(s.expCmdSN == n+2, "ExpCmdSN is %d after the command with %d", s.expCmdSN, n+1)
		}},
		{ID: "numbering.below", Source: "RFC 7143 4.2.2.1", Says: "The target MUST silently ignore any non-immediate command outside of the range from ExpCmdSN to MaxCmdSN", run: func(t *T) {
			s := t.login(options{}).ready()
			s.good(s.do(tur, nil, nil), "TEST UNIT READY")
			again := s.start(inquiry, nil, make([]byte, 36), how{cmdSN: s.cmdSN - 1})
			other := s.silence()
			t.require(!again.done && len(other) == 0, "a command with the CmdSN of one that was carried out is not ignored: %v", other)
			s.good(s.do(tur, nil, nil), "the next command")
		}},
		{ID: "numbering.above", Source: "RFC 7143 4.2.2.1", Says: "The target MUST silently ignore any non-immediate command outside of the range from ExpCmdSN to MaxCmdSN", run: func(t *T) {
			s := t.login(options{}).ready()
			n := s.maxCmdSN + 1
			beyond := s.start(inquiry, nil, make([]byte, 36), how{cmdSN: n + 7})
			other := s.silence()
			t.require(!beyond.done && len(other) == 0, "a command with CmdSN %d, where MaxCmdSN is %d, is not ignored: %v", n+7, n-1, other)
			s.good(s.do(tur, nil, nil), "the next command")
		}},
		{ID: "numbering.window", Level: Practice, Source: "RFC 7143 4.2.2.1", Says: "a window that is filled opens again", run: func(t *T) {
			s := t.login(options{}).ready()
			n := min(s.window(), 64)
			t.require(n > 0, "the window is closed, although nothing is under way")
			var all []*Task
			for range n {
				all = append(all, s.start(tur, nil, nil, how{}))
			}
			for _, k := range all {
				s.waitFor(k)
			}
			s.good(s.do(tur, nil, nil), "a command after those")
		}},
		{ID: "numbering.task-tags", Level: Practice, Source: "RFC 7143 11.2.1.8", Says: "each command's response has its tag, whatever the tags are", run: func(t *T) {
			s := t.login(options{}).ready()
			for _, tag := range []uint32{0xfffffffe, 0x80000000, 1 << 16} {
				s.good(s.waitFor(s.start(tur, nil, nil, how{itt: tag})), "a command with an unusual task tag")
			}
		}},
		{ID: "numbering.wraps", Source: "RFC 7143 4.2.2.1", Says: "Comparisons and arithmetic on CmdSN MUST use Serial Number Arithmetic", run: func(t *T) {
			s := t.login(options{cmdSN: 0xfffffffe}).ready()
			for range 5 {
				s.good(s.do(tur, nil, nil), "a command where CmdSN wraps")
			}
		}},
	}
}

func nopCases() []Case {
	return []Case{
		{ID: "nop.echo", Source: "RFC 7143 11.19", Says: "It MUST respond with a NOP-In and duplicate up to the first MaxRecvDataSegmentLength bytes of the ping data", run: func(t *T) {
			s := t.login(options{})
			for _, n := range []int{0, 1, 3, 4, 100, 1000} {
				data := make([]byte, n)
				for i := range data {
					data[i] = byte(i*7 + n)
				}
				if t.target.Over != TCP && n > 100 { // the buffers of initiators that exist have 128 bytes
					continue
				}
				tag := s.ping(data)
				p := s.awaitPDU(iscsi.OpNOPIn)
				t.require(p.BHS.ITT() == tag && bytes.Equal(p.Data, data), "a ping with %d bytes is answered by %v", n, p)
			}
		}},
		{ID: "nop.echo-cut", Source: "RFC 7143 11.19", Says: "It MUST duplicate up to the first MaxRecvDataSegmentLength bytes, the initiator's", Over: onTCP, run: func(t *T) {
			s := t.login(options{limit: 512})
			data := bytes.Repeat([]byte("ping"), 256)
			s.ping(data)
			p := s.awaitPDU(iscsi.OpNOPIn)
			t.require(bytes.Equal(p.Data, data[:512]), "a ping with 1024 bytes, where 512 are taken, is answered by %d bytes", len(p.Data))
		}},
		{ID: "nop.silent", Source: "RFC 7143 11.18", Says: "a NOP-Out with the Initiator Task Tag 0xffffffff is not answered", run: func(t *T) {
			s := t.login(options{})
			n := iscsi.NOP{Immediate: true, ITT: iscsi.NoTag, TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			p := &PDU{}
			n.PutOut(&p.BHS)
			s.send(p)
			other := s.silence()
			t.require(len(other) == 0, "it is answered by %v", other)
		}},
		{ID: "nop.ordered", Source: "RFC 7143 11.18, 4.2.2.1", Says: "a NOP-Out that is not immediate has a CmdSN and is answered in its turn", run: func(t *T) {
			s := t.login(options{})
			s.opens(1)
			n := iscsi.NOP{ITT: s.nextTag(), TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			s.cmdSN++
			p := &PDU{Data: []byte("in turn")}
			n.PutOut(&p.BHS)
			s.send(p)
			q := s.awaitPDU(iscsi.OpNOPIn)
			t.require(q.BHS.ITT() == n.ITT && string(q.Data) == "in turn", "it is answered by %v", q)
			t.require(s.expCmdSN == s.cmdSN, "ExpCmdSN is %d after the ping with %d", s.expCmdSN, n.CmdSN)
		}},
	}
}
