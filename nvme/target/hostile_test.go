package target_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/nvme/target"
	"github.com/ironwarp/ironwarp/verbs"
)

// attacker is a host that does what a test has it do.
type attacker struct {
	t *testing.T
	s *served
	h *nvmetest.Host
	q *nvmetest.Queue
}

// memory is memory that the target may reach.
func (a *attacker) memory(n int, access verbs.Access) *verbs.MR {
	a.t.Helper()
	mr, err := a.q.Memory(make([]byte, n), access)
	if err != nil {
		a.t.Fatal(err)
	}
	return mr
}

// fails sends a command that has to end with a status; the connection goes on.
func (a *attacker) fails(what string, c nvme.Command, st nvme.Status) {
	a.t.Helper()
	e, err := a.q.Do(a.s.ctx, c)
	want(a.t, what, e, err, st)
}

// over waits for the end of the connection.
func (a *attacker) over() {
	a.t.Helper()
	select {
	case <-a.q.QP.Done():
	case <-time.After(30 * time.Second):
		a.t.Fatal("the connection goes on")
	}
}

func with(c nvme.Command, s nvme.SGL) nvme.Command {
	c.SetSGL(s)
	return c
}

// TestBadCommands: a command that is wrong gets the status for it, and nothing else happens.
func TestBadCommands(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	_, q := s.queue(1)
	a := &attacker{t: t, s: s, q: q}
	mr := a.memory(1<<20, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	keyed := func(n uint32) nvme.SGL { return nvme.SGL{Type: nvme.KeyedBlock, Length: n, Key: mr.STag()} }
	last := uint64(diskSize / 512)
	read := func(slba uint64, blocks uint32) nvme.Command { return rw(q, nvme.Read, slba, blocks) }
	write := func(slba uint64, blocks uint32) nvme.Command { return rw(q, nvme.Write, slba, blocks) }
	for _, c := range []struct {
		what string
		cmd  nvme.Command
		st   nvme.Status
	}{
		{"a read with memory that is too short", with(read(0, 8), keyed(512)), nvme.DataLengthInvalid},
		{"a read with memory that is longer", with(read(0, 1), keyed(4096)), nvme.DataLengthInvalid},
		{"a write with memory that is too short", with(write(0, 8), keyed(4095)), nvme.DataLengthInvalid},
		{"a read without memory", read(0, 8), nvme.DataLengthInvalid},
		{"a read into the capsule", with(read(0, 1), nvme.SGL{Type: nvme.DataBlockOffset, Length: 512}), nvme.SGLTypeInvalid},
		{"a write from a capsule without data", with(write(0, 1), nvme.SGL{Type: nvme.DataBlockOffset, Length: 512}), nvme.SGLOffsetInvalid},
		{"a write from behind the capsule", with(write(0, 1), nvme.SGL{Type: nvme.DataBlockOffset, Address: 1 << 63, Length: 512}), nvme.SGLOffsetInvalid},
		{"a write from an offset that wraps", with(write(0, 1), nvme.SGL{Type: nvme.DataBlockOffset, Address: 1<<64 - 256, Length: 512}), nvme.SGLOffsetInvalid},
		{"a segment of SGLs", with(write(0, 1), nvme.SGL{Type: 0x20, Length: 512}), nvme.SGLTypeInvalid},
		{"another subtype", with(write(0, 1), nvme.SGL{Type: 0x45, Length: 512}), nvme.SGLTypeInvalid},
		{"a read beyond the end", with(read(last-1, 2), keyed(1024)), nvme.LBAOutOfRange},
		{"a read far beyond the end", with(read(1<<63, 2), keyed(1024)), nvme.LBAOutOfRange},
		{"a write that wraps", with(write(1<<64-1, 2), keyed(1024)), nvme.LBAOutOfRange},
		{"a read of more than MDTS", with(read(0, 2049), keyed(2049*512)), nvme.InvalidField},
		{"write zeroes beyond the end", rw(q, nvme.WriteZeroes, last-1, 2), nvme.LBAOutOfRange},
		{"an operation that there is not", rw(q, 0x7e, 0, 1), nvme.InvalidOpcode},
		{"a fabrics command that there is not", q.New(nvme.Fabrics), nvme.InvalidOpcode},
	} {
		if c.what == "a fabrics command that there is not" {
			c.cmd[4] = 0x33
		}
		a.fails(c.what, c.cmd, c.st)
	}
	other := read(0, 1)
	other.SetNSID(2)
	a.fails("another namespace", with(other, keyed(512)), nvme.InvalidNamespace)
	other = read(0, 1)
	other.SetNSID(nvme.AllNamespaces)
	a.fails("all namespaces", with(other, keyed(512)), nvme.InvalidNamespace)
	fused := with(read(0, 1), keyed(512))
	fused[1] |= 1
	a.fails("half of a fused operation", fused, nvme.InvalidField)
	prps := with(read(0, 1), keyed(512))
	prps[1] = 0
	a.fails("PRPs", prps, nvme.InvalidField)
	ranges := q.New(nvme.DatasetManagement)
	ranges.SetNSID(1)
	ranges.SetDWord(11, nvme.DSMDeallocate)
	e, err := q.Out(s.ctx, ranges, nvme.Range{SLBA: last, Blocks: 1}.Append(nil))
	want(t, "a range beyond the end", e, err, nvme.LBAOutOfRange)
	if b, err := os.ReadFile(s.file); err != nil || !bytes.Equal(b, make([]byte, diskSize)) {
		t.Errorf("the disk is not what it was: %v", err)
	}
	if !bytes.Equal(mr.Bytes(), make([]byte, 1<<20)) {
		t.Error("the host's memory is not what it was")
	}
}

// TestHostileHosts: whatever a host says of its memory, and does to the target's, ends at most its own connection. Another
// host's goes on, the disk stays as it was, and nothing is left over.
func TestHostileHosts(t *testing.T) {
	for name, attempt := range map[string]func(a *attacker){
		"reads to an STag that is none": func(a *attacker) {
			a.q.Send(with(rw(a.q, nvme.Read, 0, 8), nvme.SGL{Type: nvme.KeyedBlock, Length: 4096, Key: 0xdeadbeef}))
		},
		"writes from an STag that is none": func(a *attacker) {
			a.q.Send(with(rw(a.q, nvme.Write, 0, 8), nvme.SGL{Type: nvme.KeyedBlock, Length: 4096, Key: 0xdeadbeef}))
		},
		"reads to an STag that has been invalidated": func(a *attacker) {
			mr := a.memory(4096, verbs.LocalWrite|verbs.RemoteWrite)
			tag := mr.STag()
			mr.Invalidate()
			a.q.Send(with(rw(a.q, nvme.Read, 0, 8), nvme.SGL{Type: nvme.KeyedBlock, Length: 4096, Key: tag}))
		},
		"writes from memory that is shorter than it says": func(a *attacker) {
			mr := a.memory(4095, verbs.RemoteRead)
			a.q.Send(with(rw(a.q, nvme.Write, 0, 8), nvme.SGL{Type: nvme.KeyedBlock, Length: 4096, Key: mr.STag()}))
		},
		"writes from the end of all addresses": func(a *attacker) {
			mr := a.memory(4096, verbs.RemoteRead)
			a.q.Send(with(rw(a.q, nvme.Write, 0, 8), nvme.SGL{Type: nvme.KeyedBlock, Address: 1<<64 - 1, Length: 4096, Key: mr.STag()}))
		},
		"has an STag invalidated that is none": func(a *attacker) {
			a.q.Send(with(rw(a.q, nvme.Flush, 0, 1), nvme.SGL{Type: nvme.KeyedBlockInvalidate, Key: 0xdeadbeef}))
		},
		"a capsule that is longer than a receive": func(a *attacker) { a.q.Send(make([]byte, 16<<10)) },
		"a capsule of one byte":                   func(a *attacker) { a.q.Send([]byte{1}) },
		"an empty capsule":                        func(a *attacker) { a.q.Send(nil) },
		"Immediate Data":                          func(a *attacker) { a.q.QP.PostSend(&verbs.SendWR{Op: verbs.OpImmediate, Imm: 1}) },
		"an RDMA Write to the target": func(a *attacker) {
			mr := a.memory(64, verbs.LocalWrite)
			for tag := range uint32(4) {
				a.q.QP.PostSend(&verbs.SendWR{Op: verbs.OpWrite, RemoteSTag: tag << 8, SGL: []verbs.SGE{{MR: mr, Len: 64}}})
			}
		},
		"a Send with Invalidate of an STag of the target's": func(a *attacker) {
			a.q.QP.PostSend(&verbs.SendWR{Op: verbs.OpSend, Invalidate: true, InvalidateSTag: 0x100, Flags: verbs.Inline, Data: make([]byte, 64)})
		},
		"goes away amid its commands": func(a *attacker) {
			mr := a.memory(1<<20, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
			for range 30 {
				a.q.Send(with(rw(a.q, nvme.Read, 0, 2048), nvme.SGL{Type: nvme.KeyedBlock, Length: 1 << 20, Key: mr.STag()}))
			}
			a.q.QP.Abort(nil)
		},
		"loses its admin queue amid its commands": func(a *attacker) {
			mr := a.memory(1<<20, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
			for range 30 {
				a.q.Send(with(rw(a.q, nvme.Read, 0, 2048), nvme.SGL{Type: nvme.KeyedBlock, Length: 1 << 20, Key: mr.STag()}))
			}
			a.h.Admin.QP.Abort(nil)
		},
		"asks for events beyond the limit, and leaves": func(a *attacker) {
			refused := 0
			for range 8 {
				c := a.h.Admin.New(nvme.AdminAsyncEvent)
				if err := a.h.Admin.Send(c); err != nil {
					a.t.Error(err)
				}
			}
			for refused < 4 {
				e, _, err := a.h.Admin.Receive(a.s.ctx)
				want(a.t, "an event too many", e, err, nvme.AsyncEventLimit)
				refused++
			}
			a.h.Admin.QP.Abort(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, target.Config{}, target.Subsystem{}, nil)
			_, honest := s.queue(1)
			content := bytes.Repeat([]byte("honest"), 4096/6+1)[:4096]
			e, err := honest.Inline(s.ctx, rw(honest, nvme.Write, 0, 8), content)
			want(t, "an honest write", e, err, nvme.Success)
			a := &attacker{t: t, s: s}
			a.h, a.q = s.queue(2)
			attempt(a)
			a.over()
			b, e, err := honest.In(s.ctx, rw(honest, nvme.Read, 0, 8), 4096)
			want(t, "an honest read", e, err, nvme.Success)
			if !bytes.Equal(b, content) {
				t.Error("the disk is not what it was")
			}
			s.stop() // which looks whether something is left
			if got, err := os.ReadFile(s.file); err != nil || !bytes.Equal(got[:4096], content) || !bytes.Equal(got[4096:], make([]byte, diskSize-4096)) {
				t.Errorf("the file is not what it was: %v", err)
			}
		})
	}
}

// TestNobodyReadsTheTarget: a host may make no Read of the target at all, whatever STag it guesses.
func TestNobodyReadsTheTarget(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	_, q := s.queue(1)
	if n := q.QP.ORD(); n != 0 {
		t.Errorf("%d Reads of the target are agreed on", n)
	}
}

// TestMoreThanMemory: commands wait for memory, all are served in the end, and what a queue has for data is bounded.
func TestMoreThanMemory(t *testing.T) {
	s := serve(t, target.Config{Memory: 1}, target.Subsystem{}, nil)
	_, q := s.queue(1)
	mr, err := q.Memory(bytes.Repeat([]byte("memory.."), 1<<17), verbs.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	var ids []uint16
	for i := range uint64(24) {
		c := with(rw(q, nvme.Write, i%3*2048, 2048), nvme.SGL{Type: nvme.KeyedBlock, Length: 1 << 20, Key: mr.STag()})
		if err := q.Send(c); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID())
	}
	for _, id := range ids {
		e, err := q.Wait(s.ctx, id)
		want(t, "a write", e, err, nvme.Success)
	}
	if n := s.ulp.Usage().Bytes; n > 3<<20 {
		t.Errorf("%d bytes are registered, where a queue has memory for one command", n)
	}
}

// TestOverflow: as many commands as a queue has entries may be under way, one more ends the connection.
func TestOverflow(t *testing.T) {
	held := newHeld()
	s := serve(t, target.Config{}, target.Subsystem{}, held.on)
	_, q := s.queue(1)
	held.hold()
	send := func() {
		t.Helper()
		if err := q.Send(append(with(rw(q, nvme.Write, 0, 1), nvme.SGL{Type: nvme.DataBlockOffset, Length: 512}), make([]byte, 512)...)); err != nil {
			t.Fatal(err)
		}
	}
	for range 32 {
		send()
	}
	eventually(t, "all are under way", func() bool { all := s.server.Controllers(); return len(all) == 1 && all[0].Active == 32 })
	send()
	(&attacker{t: t, s: s, q: q}).over()
	held.release()
}
