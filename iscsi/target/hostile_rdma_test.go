package target_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// attacker is an initiator in RDMA mode that says what a test has it say.
type attacker struct {
	*initiator
	i *isertest.Initiator
}

func attack(t *testing.T, s *served, o isertest.Options, keys ...string) *attacker {
	t.Helper()
	c := inRDMA(o)(t, s, 66, keys...)
	return &attacker{c, c.w.(*rdmaWire).i}
}

// send sends a command with any header.
func (a *attacker) send(head iser.Header, k iscsi.Command, data []byte) {
	a.t.Helper()
	a.itt++
	k.ITT, k.CmdSN, k.ExpStatSN, k.Final, k.Attr = a.itt, a.cmdSN, a.statSN, true, iscsi.Simple
	a.cmdSN++
	var h iscsi.BHS
	k.Put(&h)
	if err := a.i.Send(head, &h, data); err != nil {
		a.t.Error(err)
	}
}

// memory is memory that the target may reach.
func (a *attacker) memory(n int, access verbs.Access) *verbs.MR {
	a.t.Helper()
	mr, err := a.i.Memory(make([]byte, n), access)
	if err != nil {
		a.t.Fatal(err)
	}
	return mr
}

// over waits for the end of the connection.
func (a *attacker) over() {
	a.t.Helper()
	select {
	case <-a.i.QP.Done():
	case <-time.After(30 * time.Second):
		a.t.Fatal("the connection goes on")
	}
}

func readK(blocks uint16, edtl uint32) iscsi.Command {
	return iscsi.Command{Read: true, EDTL: edtl, CDB: cdb10(scsi.Read10, 0, blocks)}
}

func writeK(blocks uint16, edtl uint32) iscsi.Command {
	return iscsi.Command{Write: true, EDTL: edtl, CDB: cdb10(scsi.Write10, 0, blocks)}
}

// TestHostileInitiators: whatever an initiator says of its memory, and does to the target's, ends at most its
// own session. Another one's goes on, the disk stays as it was, and nothing is left over.
func TestHostileInitiators(t *testing.T) {
	for name, attempt := range map[string]func(a *attacker){
		"reads to an STag that is none": func(a *attacker) {
			a.send(iser.Header{Read: true, ReadTag: 0xdeadbeef}, readK(8, 4096), nil)
		},
		"writes from an STag that is none": func(a *attacker) {
			a.send(iser.Header{Write: true, WriteTag: 0xdeadbeef}, writeK(8, 4096), nil)
		},
		"reads to an STag that has been invalidated": func(a *attacker) {
			mr := a.memory(4096, verbs.LocalWrite|verbs.RemoteWrite)
			tag := mr.STag()
			mr.Invalidate()
			a.send(iser.Header{Read: true, ReadTag: tag}, readK(8, 4096), nil)
		},
		"reads to memory that is too short": func(a *attacker) {
			mr := a.memory(4095, verbs.LocalWrite|verbs.RemoteWrite)
			a.send(iser.Header{Read: true, ReadTag: mr.STag()}, readK(8, 4096), nil)
		},
		"writes from memory that is too short": func(a *attacker) {
			mr := a.memory(4095, verbs.RemoteRead)
			a.send(iser.Header{Write: true, WriteTag: mr.STag()}, writeK(8, 4096), nil)
		},
		"a base at the end of all addresses": func(a *attacker) {
			mr := a.memory(4096, verbs.RemoteRead)
			a.send(iser.Header{Write: true, WriteTag: mr.STag(), WriteBase: 1<<64 - 1}, writeK(8, 4096), nil)
		},
		"reads without memory": func(a *attacker) { a.send(iser.Header{}, readK(8, 4096), nil) },
		"writes without memory": func(a *attacker) {
			a.send(iser.Header{Read: true, ReadTag: 1}, writeK(8, 4096), nil)
		},
		"an answer to an R2T that there is not": func(a *attacker) {
			var h iscsi.BHS
			d := iscsi.DataOut{Final: true, ITT: 1, TTT: 0}
			d.Put(&h)
			a.i.Send(iser.Header{}, &h, make([]byte, 512))
		},
		"a PDU that is longer than was agreed": func(a *attacker) {
			var h iscsi.BHS
			n := iscsi.NOP{Immediate: true, ITT: 5, TTT: iscsi.NoTag}
			n.PutOut(&h)
			a.i.Send(iser.Header{}, &h, make([]byte, iser.Segment+4))
		},
		"a message that is longer than a receive": func(a *attacker) { a.i.SendRaw(make([]byte, 16384)) },
		"a message of an unassigned type":         func(a *attacker) { a.i.SendRaw(append([]byte{0x70}, make([]byte, 75)...)) },
		"a message of one byte":                   func(a *attacker) { a.i.SendRaw([]byte{0x10}) },
		"a Hello in the middle": func(a *attacker) {
			b := make([]byte, iser.HeaderLen)
			h := iser.Header{Op: iser.OpHello, MaxVersion: iser.Version, Version: iser.Version, Depth: 1}
			h.Put(b)
			a.i.SendRaw(b)
		},
		"a HelloReply": func(a *attacker) {
			b := make([]byte, iser.HeaderLen)
			h := iser.Header{Op: iser.OpHelloReply, MaxVersion: iser.Version, Version: iser.Version}
			h.Put(b)
			a.i.SendRaw(b)
		},
		"a login in full feature phase": func(a *attacker) {
			var h iscsi.BHS
			q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature}
			q.Put(&h)
			a.i.Send(iser.Header{}, &h, nil)
		},
		"Immediate Data": func(a *attacker) { a.i.QP.PostSend(&verbs.SendWR{Op: verbs.OpImmediate, Imm: 1}) },
		"more PDUs at once than there are receives": func(a *attacker) {
			var h iscsi.BHS
			for i := range uint32(2000) {
				n := iscsi.NOP{Immediate: true, ITT: i, TTT: iscsi.NoTag, CmdSN: a.cmdSN}
				n.PutOut(&h)
				if a.i.Send(iser.Header{}, &h, nil) != nil {
					return // it has ended
				}
			}
			// It was served fast enough, or ended for want of a receive.
			a.i.QP.Abort(nil)
		},
		"an RDMA Write to the target": func(a *attacker) {
			mr := a.memory(64, verbs.LocalWrite)
			for tag := range uint32(4) {
				a.i.QP.PostSend(&verbs.SendWR{Op: verbs.OpWrite, RemoteSTag: tag << 8, SGL: []verbs.SGE{{MR: mr, Len: 64}}})
			}
		},
		"a Send with Invalidate of an STag of the target's": func(a *attacker) {
			mr := a.memory(64, 0)
			a.i.QP.PostSend(&verbs.SendWR{Op: verbs.OpSend, Invalidate: true, InvalidateSTag: 0x100, SGL: []verbs.SGE{{MR: mr, Len: 64}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
			honest := inRDMA(isertest.Options{IRD: 4, Invalidates: true})(t, s, 1)
			honest.ready()
			content := bytes.Repeat([]byte("honest"), 4096/6+1)[:4096]
			honest.good(cdb10(scsi.Write10, 0, 8), 0, content, nil)
			a := attack(t, s, isertest.Options{IRD: 4, ORD: 4, Invalidates: true})
			a.ready()
			attempt(a)
			a.over()
			in := make([]byte, 4096)
			if honest.good(cdb10(scsi.Read10, 0, 8), 0, nil, in); !bytes.Equal(in, content) {
				t.Error("the disk is not what it was")
			}
			s.stop()
			if got, err := os.ReadFile(s.files[0]); err != nil || !bytes.Equal(got[:4096], content) || !bytes.Equal(got[4096:], make([]byte, 1<<20-4096)) {
				t.Errorf("the file is not what it was: %v", err)
			}
		})
	}
}

// TestNobodyReadsTheTarget: an initiator may make no Read of the target at all, whatever STag it guesses.
func TestNobodyReadsTheTarget(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	a := attack(t, s, isertest.Options{IRD: 1, ORD: 8})
	if n := a.i.QP.ORD(); n != 0 {
		t.Errorf("%d Reads of the target are agreed on", n)
	}
}

// TestExactlyWhatWasExpected: what a command moves ends at its expected length, in both directions, in
// memory of which the target could reach more.
func TestExactlyWhatWasExpected(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	a := attack(t, s, isertest.Options{IRD: 4})
	a.ready()
	mr := a.memory(8192, verbs.LocalWrite|verbs.RemoteWrite)
	fill := bytes.Repeat([]byte{0xaa}, 8192)
	copy(mr.Bytes(), fill)
	a.send(iser.Header{Read: true, ReadTag: mr.STag(), ReadBase: 100}, readK(8, 1000), nil)
	if r, _ := a.response(); r.Status != 0 || !r.Overflow || r.Count != 3096 {
		t.Errorf("%+v", r)
	}
	b := mr.Bytes()
	if !bytes.Equal(b[:100], fill[:100]) || !bytes.Equal(b[100:1100], make([]byte, 1000)) || !bytes.Equal(b[1100:], fill[1100:]) {
		t.Error("more or less than was expected has been written")
	}
	from := a.memory(8192, verbs.RemoteRead)
	copy(from.Bytes(), fill)
	a.send(iser.Header{Write: true, WriteTag: from.STag(), WriteBase: 4096}, writeK(8, 2048), nil) // 2048 bytes are less than 8 blocks
	a.response()
	in := make([]byte, 8192)
	a.good(cdb10(scsi.Read10, 0, 16), 0, nil, in)
	if bytes.Contains(in[2048:], []byte{0xaa}) {
		t.Error("more has been read than was expected")
	}
}

// TestAReadThatIsNotAnswered: an initiator that does not answer a Read holds what the command has no longer
// than ReadAge.
func TestAReadThatIsNotAnswered(t *testing.T) {
	s := serveRDMA(t, target.Config{ReadAge: 50 * time.Millisecond}, unit{size: 1 << 20})
	honest := overTCP(t, s, 1)
	honest.ready()
	content := bytes.Repeat([]byte{7}, 4096)
	honest.good(cdb10(scsi.Write10, 0, 8), 0, content, nil)
	p := newProxy(t, s)
	a := attack(t, &served{address: p.Address}, isertest.Options{IRD: 4})
	a.ready()
	mr := a.memory(4096, verbs.RemoteRead)
	p.Hold(isertest.Down)
	a.send(iser.Header{Write: true, WriteTag: mr.STag()}, writeK(8, 4096), nil)
	a.over()
	honest.good([16]byte{}, 0, nil, nil)
	s.stop()
	if got, err := os.ReadFile(s.files[0]); err != nil || !bytes.Equal(got[:4096], content) {
		t.Errorf("what has not come has been written: %v", err)
	}
}

// TestHello is the exchange of RFC 7145 section 5.1.3, and what it must not be.
func TestHello(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	hello := func(c *initiator, low, high uint8, ird uint16) (iser.Header, bool) {
		i := c.w.(*rdmaWire).i
		h := iser.Header{Op: iser.OpHello, MaxVersion: high, Version: low, Depth: ird}
		b := make([]byte, iser.HeaderLen)
		h.Put(b)
		i.SendRaw(b)
		m, _, err := i.Receive(t.Context())
		return m.Header, err == nil
	}
	for name, connect := range map[string]func(*testing.T, *served, byte, ...string) *initiator{
		"in RDMA mode": inRDMA(isertest.Options{IRD: 4}), "after streaming mode": fromStream,
	} {
		for _, keys := range [][]string{{"iSERHelloRequired=Yes"}, nil} { // an old initiator does not ask
			c := connect(t, s, 1, keys...)
			if h, ok := hello(c, iser.Version, iser.Version, 2); !ok || h.Op != iser.OpHelloReply || h.Reject || h.MaxVersion != 10 || h.Version != 10 || h.Depth != 2 {
				t.Errorf("%s, %v: %+v", name, keys, h)
			}
			c.ready()
			data := bytes.Repeat([]byte{byte(len(name))}, 64<<10)
			c.good(cdb10(scsi.Write10, 0, 128), 0, data, nil)
			in := make([]byte, len(data))
			if c.good(cdb10(scsi.Read10, 0, 128), 0, nil, in); !bytes.Equal(in, data) {
				t.Errorf("%s: what was written is not read", name)
			}
		}
		c := connect(t, s, 2, "iSERHelloRequired=Yes")
		if h, ok := hello(c, 11, 12, 2); !ok || h.Op != iser.OpHelloReply || !h.Reject {
			t.Errorf("%s: versions from 11 on: %+v", name, h)
		}
		(&attacker{c, c.w.(*rdmaWire).i}).over()
		c = connect(t, s, 2, "iSERHelloRequired=Yes")
		c.start([16]byte{}, 0, nil, nil)
		(&attacker{c, c.w.(*rdmaWire).i}).over() // a command before the Hello
	}
}

// TestShortOfMemory: a session for which there is no memory is refused, and a command for which there is none
// fails, and later ones do not.
func TestShortOfMemory(t *testing.T) {
	s := serveULP(t, target.Config{}, verbs.ULPConfig{Quota: verbs.Quota{Bytes: 5 << 19}}, unit{size: 1 << 20})
	c := inRDMA(isertest.Options{IRD: 4})(t, s, 1)
	c.ready()
	in := make([]byte, 512<<10)
	c.good(cdb10(scsi.Read10, 0, 1024), 0, nil, in)
	if r, sense := c.do(cdb10(scsi.Read10, 0, 2048), 0, nil, make([]byte, 1<<20)); r.Status != 0 && sense.Code != scsi.InsufficientResources {
		t.Errorf("%+v %+v", r, sense)
	} else if r.Status == 0 {
		t.Error("there is memory for it")
	}
	c.good(cdb10(scsi.Read10, 0, 1024), 0, nil, in)
	i := newInitiator(t, isertest.Options{IRD: 1})
	if err := i.Dial(t.Context(), netip.MustParseAddrPort(s.address)); err != nil {
		t.Fatal(err)
	}
	var h iscsi.BHS
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, 9}, CmdSN: 1}
	q.Put(&h)
	i.Send(iser.Header{}, &h, []byte("InitiatorName=iqn.x:i\x00TargetName="+targetName+"\x00"))
	m, _, err := i.Receive(t.Context())
	if r, rerr := iscsi.ParseLoginResponse(&m.BHS); err != nil || rerr != nil || r.Status != iscsi.LoginNoResources {
		t.Errorf("%+v %v", r, errors.Join(err, rerr))
	}
}

// TestAnInitiatorLeavesWithAReadUnderWay: nothing is written that has not come.
func TestAnInitiatorLeavesWithAReadUnderWay(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	honest := overTCP(t, s, 1)
	honest.ready()
	content := bytes.Repeat([]byte{7}, 4096)
	honest.good(cdb10(scsi.Write10, 0, 8), 0, content, nil)
	for range 20 {
		p := newProxy(t, s)
		a := attack(t, &served{address: p.Address}, isertest.Options{IRD: 4})
		a.ready()
		mr := a.memory(4096, verbs.RemoteRead)
		p.Hold(isertest.Down)
		a.send(iser.Header{Write: true, WriteTag: mr.STag()}, writeK(8, 4096), nil)
		p.AwaitHeld(isertest.Down) // the Read Request
		a.i.QP.Abort(nil)
		a.over()
	}
	s.stop()
	if got, err := os.ReadFile(s.files[0]); err != nil || !bytes.Equal(got[:4096], content) {
		t.Errorf("what has not come has been written: %v", err)
	}
}

// TestAnAbortWithAReadUnderWay: the write is not carried out, and the session goes on.
func TestAnAbortWithAReadUnderWay(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	p := newProxy(t, s)
	a := attack(t, &served{address: p.Address}, isertest.Options{IRD: 4})
	a.ready()
	mr := a.memory(4096, verbs.RemoteRead)
	copy(mr.Bytes(), "not to be written")
	p.Hold(isertest.Down)
	a.send(iser.Header{Write: true, WriteTag: mr.STag()}, writeK(8, 4096), nil)
	p.AwaitHeld(isertest.Down) // the Read Request
	a.manage(iscsi.AbortTask, a.itt, a.cmdSN-1)
	p.Release(isertest.Down)
	h, _ := a.w.next()
	if h.Opcode() == iscsi.OpResponse { // it was carried out before the abort came
		h, _ = a.w.next()
		if r := iscsi.ParseTaskReply(&h); r.Response != iscsi.TaskDoesNotExist {
			t.Errorf("%+v", r)
		}
		return
	}
	if h.Opcode() != iscsi.OpTaskResp || iscsi.ParseTaskReply(&h).Response != iscsi.FunctionComplete {
		t.Errorf("%v", h.Opcode())
	}
	in := make([]byte, 4096)
	if a.good(cdb10(scsi.Read10, 0, 8), 0, nil, in); !bytes.Equal(in, make([]byte, 4096)) {
		t.Errorf("an aborted write was carried out: %q", in[:20])
	}
}

func newProxy(t *testing.T, s *served) *isertest.Proxy {
	t.Helper()
	p, err := isertest.NewProxy(s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestUnexpectedPDUsAreBounded: to an initiator that acknowledges nothing, no more Rejects are sent than it
// has room for (RFC 7145 section 8.1.2) besides a ping, nor than a bound of the target's own, and after it has
// acknowledged them there are more.
func TestUnexpectedPDUsAreBounded(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	for said, most := range map[string]int{"": 1, "MaxOutstandingUnexpectedPDUs=5": 4, "MaxOutstandingUnexpectedPDUs=4000000000": 63} {
		var keys []string
		if said != "" {
			keys = append(keys, said)
		}
		a := attack(t, s, isertest.Options{IRD: 1}, keys...)
		a.ready()
		for range 2 {
			var h iscsi.BHS
			for range most + 9 {
				n := iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, ExpStatSN: a.statSN}
				n.Put(&h)
				a.w.control(&h, nil)
			}
			ping := iscsi.NOP{Immediate: true, ITT: 9, TTT: iscsi.NoTag, CmdSN: a.cmdSN, ExpStatSN: a.statSN}
			ping.PutOut(&h)
			a.w.control(&h, nil)
			rejects := 0
			for h, _ = a.w.next(); h.Opcode() == iscsi.OpReject; h, _ = a.w.next() {
				rejects++
			}
			if n, err := iscsi.ParseNOPIn(&h); rejects != most || err != nil || n.ITT != 9 {
				t.Errorf("%q: %d rejects, then %v", said, rejects, h.Opcode())
			} else {
				a.statSN = n.StatSN + 1
			}
		}
	}
}

// TestLoginInRDMAMode: what may not be agreed on there, and what a login is not.
func TestLoginInRDMAMode(t *testing.T) {
	s := serveRDMA(t, target.Config{}, unit{size: 1 << 20})
	say := func(q iscsi.LoginRequest, text string) (iscsi.LoginResponse, *isertest.Initiator) {
		i := newInitiator(t, isertest.Options{IRD: 1})
		if err := i.Dial(t.Context(), netip.MustParseAddrPort(s.address)); err != nil {
			t.Fatal(err)
		}
		var h iscsi.BHS
		q.Put(&h)
		if err := i.Send(iser.Header{}, &h, []byte(text)); err != nil {
			t.Fatal(err)
		}
		m, _, err := i.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := iscsi.ParseLoginResponse(&m.BHS)
		if err != nil {
			t.Fatal(err)
		}
		return r, i
	}
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, 9}, CmdSN: 1}
	names := "InitiatorName=iqn.x:i\x00TargetName=" + targetName + "\x00"
	if r, i := say(q, names+"RDMAExtensions=No\x00"); r.Status != iscsi.LoginInitiatorError {
		t.Errorf("RDMAExtensions=No in RDMA mode: %#x", r.Status)
	} else if _, _, err := i.Receive(t.Context()); err == nil {
		t.Error("it goes on after a refusal")
	}
	q.NSG, q.Transit = 0, false
	for range 100 { // until two requests come at once, where there is room for one
		r, i := say(q, names)
		if r.Status != iscsi.LoginOK || r.Transit {
			t.Fatalf("%+v", r)
		}
		var h iscsi.BHS
		q.Put(&h)
		const more = 3
		for range more {
			i.Send(iser.Header{}, &h, nil)
		}
		answered := 0
		var err error
		for answered < more && err == nil {
			if _, _, err = i.Receive(t.Context()); err == nil {
				answered++
			}
		}
		if answered == more {
			i.Close()
			continue // each was answered before the next came
		}
		var term *verbs.TerminateError
		if <-i.QP.Done(); !errors.As(i.QP.Err(), &term) {
			t.Errorf("requests at once end with %v", i.QP.Err())
		}
		return
	}
	t.Error("requests never come at once")
}
