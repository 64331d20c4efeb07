package iscsitest

import (
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// survives fails the case unless another initiator logs in and works, after whatever was done.
func (t *T) survives() {
	s := t.login(options{initiator: 5}).ready()
	s.good(s.do(inquiry(-1, 36), nil, make([]byte, 36)), "INQUIRY of another initiator")
	s.logout(iscsi.CloseSession, s.cid)
}

// hostile is a case in which a target is done wrong. It may end the connection; others do not notice.
func hostile(id, says string, over []Transport, run func(t *T)) Case {
	return Case{ID: "hostile." + id, Source: "RFC 7143 9, 7.7", Says: says, Need: Hostile, Over: over, run: func(t *T) {
		t.amiss = true
		run(t)
		t.amiss = false
		t.survives()
	}}
}

// fuzzed is a case with PDUs of one kind that are changed at random after a login.
func fuzzed(id, says string, change func(t *T, s *Session, p *PDU)) Case {
	return hostile("fuzz-"+id, says, nil, func(t *T) {
		for range 20 {
			s, _ := t.tryLogin(options{})
			if s == nil {
				t.fail("the login is refused after PDUs at random")
			}
			for range 30 {
				p := &PDU{}
				change(t, s, p)
				if s.trySend(p) != nil {
					break
				}
			}
			for range 200 {
				if p, err := s.tryReceive(t.soon()); err != nil || p == nil {
					break
				}
			}
			s.close()
		}
	})
}

func hostileCases() []Case {
	return []Case{
		hostile("noise-first", "bytes at random in place of a login harm nobody else", onTCP, func(t *T) {
			for range 30 {
				c := t.dial()
				b := make([]byte, 48+t.rng.IntN(200))
				for i := range b {
					b[i] = byte(t.rng.Uint32())
				}
				_ = c.sendRaw(b) // the target may have ended the connection
				c.close()
			}
		}),
		hostile("half-a-header", "half a header, and silence, harms nobody else", onTCP, func(t *T) {
			for range 20 {
				c := t.dial()
				if err := c.sendRaw(make([]byte, 24)); err != nil {
					t.unclear("%v", err)
				}
			}
		}),
		hostile("length-claimed", "a data segment of 16 MiB that is claimed before a login, and does not come, harms nobody else", onTCP, func(t *T) {
			for range 20 {
				l := t.begin(3)
				p := &PDU{claims: 1<<24 - 1}
				l.q.Put(&p.BHS)
				_ = l.trySend(p)
			}
		}),
		hostile("key-flood", "keys without end, whether they are refused or not, harm nobody else", onTCP, func(t *T) {
			l := t.begin(3)
			l.q.CSG = iscsi.Operational
			first := t.names(3)
			for range 100 {
				pairs := first
				first = nil
				for i := range 30 {
					pairs = append(pairs, "X-org.example.flood."+string(rune('a'+i%26))+string(rune('a'+l.expStatSN%26))+"=value")
				}
				if a := l.step(iscsi.Operational, iscsi.Operational, pairs...); a.refused() {
					return
				}
			}
		}),
		hostile("endless-text", "a text that never ends is refused, and harms nobody else", onTCP, func(t *T) {
			l := t.begin(3)
			l.q.CSG, l.q.Continue = iscsi.Operational, true
			piece := make([]byte, 8000)
			for i := range piece {
				piece[i] = 'a'
			}
			for range 1000 {
				if a := l.ask(piece); a.refused() {
					return
				}
			}
			t.fail("8,000,000 bytes of a text that has no end are taken before a login")
		}),
		hostile("silent-reader", "who does not read what he has asked for harms nobody else", onTCP, func(t *T) {
			s := t.login(options{initiator: 3}).ready()
			n := s.blockLen()
			for range min(s.window(), 64) {
				k := s.start(read10(0, 128), nil, make([]byte, 128*n), how{})
				k.gone = true
			}
		}),
		hostile("window-overrun", "many commands beyond the window harm nobody else", nil, func(t *T) {
			s := t.login(options{initiator: 3}).ready()
			n := s.maxCmdSN
			for i := range uint32(200) {
				k := iscsi.Command{Final: true, Attr: iscsi.Simple, LUN: s.lun(), ITT: 0x10000 + i, CmdSN: n + 1 + i, ExpStatSN: s.expStatSN}
				p := &PDU{}
				k.Put(&p.BHS)
				if s.trySend(p) != nil {
					return
				}
			}
		}),
		hostile("immediate-flood", "commands for immediate delivery without end harm nobody else", onTCP, func(t *T) {
			s := t.login(options{initiator: 3}).ready()
			for i := range uint32(1000) {
				k := iscsi.Command{Immediate: true, Final: true, Attr: iscsi.Simple, LUN: s.lun(), ITT: 0x10000 + i, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
				p := &PDU{}
				k.Put(&p.BHS)
				if s.trySend(p) != nil {
					return
				}
			}
		}),
		hostile("same-tag", "two commands with one task tag harm nobody else", nil, func(t *T) {
			s := t.login(options{initiator: 3}).ready()
			n := s.blockLen()
			if t.o.Allow&Data == 0 || t.target.Over != TCP {
				return
			}
			s.opens(2)
			s.start(write10(900, 1), make([]byte, n), nil, how{noData: true, hold: true, itt: 0x99})
			k := iscsi.Command{Final: true, Attr: iscsi.Simple, LUN: s.lun(), ITT: 0x99, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			p := &PDU{}
			k.Put(&p.BHS)
			_ = s.trySend(p)
		}),
		hostile("expected-length", "an expected length of 4 GiB takes no memory that is not there, and harms nobody else", onTCP, func(t *T) {
			s := t.login(options{initiator: 3}).ready()
			for i := range uint32(min(s.window(), 64)) {
				k := iscsi.Command{Final: true, Read: true, Attr: iscsi.Simple, LUN: s.lun(), ITT: 0x10000 + i, EDTL: 0xfffffff0, CmdSN: s.cmdSN + i, ExpStatSN: s.expStatSN}
				copy(k.CDB[:], inquiry(-1, 36))
				p := &PDU{}
				k.Put(&p.BHS)
				if s.trySend(p) != nil {
					return
				}
			}
			for range 64 {
				if _, err := s.tryReceive(t.soon()); err != nil {
					return
				}
			}
		}),
		hostile("additional-headers", "additional headers that are longer than they are, or of no type, harm nobody else", onTCP, func(t *T) {
			for _, ahs := range [][]byte{{0xff, 0xff, 1, 0}, {0, 0, 1, 0}, {0, 1, 0x3f, 0}, {0, 5, 2, 0}, make([]byte, 1020)} {
				s := t.login(options{initiator: 3})
				k := iscsi.Command{Final: true, Attr: iscsi.Simple, LUN: s.lun(), ITT: 7, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
				p := &PDU{AHS: ahs}
				k.Put(&p.BHS)
				_ = s.trySend(p)
				_, _ = s.tryReceive(t.soon())
				s.close()
			}
		}),
		fuzzed("headers", "headers at random harm nobody else", func(t *T, s *Session, p *PDU) {
			for i := range p.BHS {
				p.BHS[i] = byte(t.rng.Uint32())
			}
			if op := iscsi.Opcode(p.BHS[0] & 0x3f); op == iscsi.OpCommand || op == iscsi.OpDataOut {
				p.BHS[0] ^= 2 // nothing at random is written
			}
		}),
		fuzzed("fields", "PDUs of each kind with some bytes at random harm nobody else", func(t *T, s *Session, p *PDU) {
			ops := []iscsi.Opcode{iscsi.OpNOPOut, iscsi.OpText, iscsi.OpLogout, iscsi.OpSNACK, iscsi.OpLogin, iscsi.OpTaskMgmt}
			if t.o.Allow&Data == 0 { // a reset is felt by others
				ops = ops[:5]
			}
			p.BHS[0], p.BHS[1] = byte(ops[t.rng.IntN(len(ops))])|0x40, 0x80
			for range 1 + t.rng.IntN(6) {
				p.BHS[1+t.rng.IntN(iscsi.BHSLen-1)] = byte(t.rng.Uint32())
			}
			p.Data = t.pattern(t.rng.IntN(8) * 8)
		}),
		fuzzed("reads", "commands that move nothing to the disk, with fields at random, harm nobody else", func(t *T, s *Session, p *PDU) {
			k := iscsi.Command{Final: true, Read: true, Attr: iscsi.Attr(t.rng.IntN(8)), LUN: s.lun(), ITT: t.rng.Uint32(), EDTL: t.rng.Uint32() >> t.rng.IntN(32), CmdSN: s.cmdSN, ExpStatSN: t.rng.Uint32()}
			s.cmdSN++
			k.CDB[0] = []byte{scsi.Inquiry, scsi.Read10, scsi.Read16, scsi.ReportLUNs, scsi.ModeSense6, scsi.ServiceActionIn16, scsi.PersistentReserveIn, scsi.MaintenanceIn}[t.rng.IntN(8)]
			for i := 1; i < 16; i++ {
				if t.rng.IntN(3) == 0 {
					k.CDB[i] = byte(t.rng.Uint32())
				}
			}
			k.Put(&p.BHS)
			p.in = nil
		}),
	}
}
