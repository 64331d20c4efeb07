package nbd_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

func (s *server) connectExtended() *nbdtest.Client {
	s.t.Helper()
	c, err := nbdtest.ConnectExtended(s.dial(), "disk")
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// connectStatus is connect with structured replies and base:allocation.
func (s *server) connectStatus() *nbdtest.Client {
	s.t.Helper()
	c, err := nbdtest.Hello(s.dial(), 3)
	if err != nil {
		s.t.Fatal(err)
	}
	option(s.t, c, structuredReply, nil)
	c.Structured = true
	if rs, err := c.Option(setMeta, nbdtest.MetaData("disk", "base:allocation")); err != nil || len(rs) != 2 {
		s.t.Fatalf("%+v, %v", rs, err)
	}
	if err := c.Go("disk"); err != nil {
		s.t.Fatal(err)
	}
	return c
}

const holeAndZero = 3

func TestBlockStatus(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	m.Geo.MinBlock = 512
	m.Data(func(p []byte) { p[4096], p[8191], p[16<<10] = 1, 1, 1 })
	s := serve(t, m, nbd.Config{})
	for name, c := range map[string]*nbdtest.Client{"structured": s.connectStatus(), "extended": s.connectExtended()} {
		status := func(what string, flags uint16, off uint64, n uint32, extents ...nbdtest.Extent) {
			t.Helper()
			r := want(t, c, what, flags, cmdStatus, off, n, nil, 0)
			if r.Context != 1 || fmt.Sprint(r.Extents) != fmt.Sprint(extents) || (r.Type == 6) != c.Extended {
				t.Errorf("%s, %s: %+v, want %v", name, what, r, extents)
			}
		}
		status("all", 0, 0, 1<<20, nbdtest.Extent{Length: 4096, State: holeAndZero}, nbdtest.Extent{Length: 512}, nbdtest.Extent{Length: 3072, State: holeAndZero},
			nbdtest.Extent{Length: 512}, nbdtest.Extent{Length: 8192, State: holeAndZero}, nbdtest.Extent{Length: 512}, nbdtest.Extent{Length: 1<<20 - 16896, State: holeAndZero})
		status("a part", 0, 2048, 2560, nbdtest.Extent{Length: 2048, State: holeAndZero}, nbdtest.Extent{Length: 512})
		status("one extent", reqOne, 2048, 8192, nbdtest.Extent{Length: 2048, State: holeAndZero})
		status("one extent within the request", reqOne, 2048, 1024, nbdtest.Extent{Length: 1024, State: holeAndZero})
		status("the end", 0, 1<<20-512, 512, nbdtest.Extent{Length: 512, State: holeAndZero})
		want(t, c, "of nothing", 0, cmdStatus, 0, 0, nil, 22)
		want(t, c, "beyond the end", 0, cmdStatus, 1<<20-512, 1024, nil, 22)
		want(t, c, "unaligned", 0, cmdStatus, 1, 512, nil, 22)
		want(t, c, "with a strange flag", noHole, cmdStatus, 0, 512, nil, 22)
		want(t, c, "cache", 0, cmdCache, 0, 1<<20, nil, 0)
	}
	m.WaitLive(0)
	failing := nbdtest.NewMemory(512)
	failing.Errno = func(block.Op, uint64, uint32, block.Flags) syscall.Errno { return syscall.EIO }
	want(t, serve(t, failing, nbd.Config{}).connectStatus(), "of a disk that fails", 0, cmdStatus, 0, 512, nil, 5)
}

// TestStatusWithMoreExtentsThanAnAnswerHas: the client can go on where it ends.
func TestStatusWithMoreExtentsThanAnAnswerHas(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	m.Geo.MinBlock = 512
	m.Data(func(p []byte) {
		for i := 0; i < len(p); i += 1024 {
			p[i] = 1
		}
	})
	c := serve(t, m, nbd.Config{}).connectStatus()
	off := uint64(0)
	for n := uint64(1 << 20); off < n; {
		r := want(t, c, "status", 0, cmdStatus, off, uint32(n-off), nil, 0)
		for _, e := range r.Extents {
			if hole := off%1024 == 512; e.Length != 512 || (e.State == holeAndZero) != hole {
				t.Fatalf("at %d: %+v", off, e)
			}
			off += e.Length
		}
	}
	if n := len(m.Calls()); n != 4 {
		t.Errorf("%d calls of the device, want 4", n)
	}
}

// TestReadsOfZeroesAreHoles, where a client understands that.
func TestReadsOfZeroesAreHoles(t *testing.T) {
	m := nbdtest.NewMemory(8 << 20)
	m.Data(func(p []byte) { p[5<<20-1] = 1 })
	s := serve(t, m, nbd.Config{})
	for _, c := range []*nbdtest.Client{s.connect(false), s.connect(true), s.connectExtended()} {
		for _, r := range []struct {
			name  string
			flags uint16
			off   uint64
			n     uint32
			hole  bool
		}{
			{"zeroes", 0, 4096, 1 << 20, true},
			{"unfragmented zeroes", dontFragment, 4096, 8192, true},
			{"zeroes of several I/Os", 0, 0, 3 << 20, true},
			{"zeroes but for the last byte", 0, 4 << 20, 1 << 20, false},
			{"zeroes of several I/Os but for a byte", 0, 2 << 20, 6 << 20, false},
			{"few zeroes", 0, 0, 512, false},
			{"nothing", 0, 0, 0, false},
		} {
			if !c.Structured {
				r.flags, r.hole = 0, false
			}
			got := want(t, c, r.name, r.flags, cmdRead, r.off, r.n, nil, 0)
			m.Data(func(p []byte) {
				if !bytes.Equal(got.Data, p[r.off:r.off+uint64(r.n)]) || (got.Type == 2) != r.hole || c.Structured && r.n > 0 && got.Offset != r.off {
					t.Errorf("%s, structured %v: chunk of type %d, %d bytes at %d", r.name, c.Structured, got.Type, len(got.Data), got.Offset)
				}
			})
		}
	}
	m.WaitLive(0)
}

// TestExtendedHeaders: every command, lengths beyond 32 bits, payloads that do not belong.
func TestExtendedHeaders(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	s := serve(t, m, nbd.Config{})
	c := s.connectExtended()
	p := randomBytes(300_001)
	want(t, c, "write", 0, cmdWrite, 77, uint32(len(p)), p, 0)
	if r := want(t, c, "read", dontFragment, cmdRead, 77, uint32(len(p)), nil, 0); !bytes.Equal(r.Data, p) || r.Offset != 77 {
		t.Error("read: other data than written")
	}
	want(t, c, "flush", 0, cmdFlush, 0, 0, nil, 0)
	want(t, c, "trim", fua, cmdTrim, 100, 1000, nil, 0)
	want(t, c, "zeroes", noHole|fastZero, cmdWriteZeroes, 0, 4096, nil, 0)
	want(t, c, "cache", 0, cmdCache, 0, 4096, nil, 0)
	want(t, c, "read nothing", 0, cmdRead, 0, 0, nil, 0)
	want(t, c, "huge read", 0, cmdRead, 0, 1<<32-512, nil, 22)
	want(t, c, "payload of a trim", 0, cmdTrim, 0, 8192, p[:8192], 22)
	want(t, c, "payload of a block status", 0, cmdStatus, 0, 12, p[:12], 22)
	want(t, c, "payload of an unknown command", 0, 99, 0, 100_000, p[:100_000], 22)
	want(t, c, "write beyond the end", 0, cmdWrite, 1<<20-1, 2, p[:2], 28)
	const cookie = 5
	for _, r := range []struct {
		name       string
		typ, flags uint16
		off, n     uint64
	}{
		{"write without a payload", cmdWrite, 0, 0, 512},
		{"read of more than all", cmdRead, 0, 0, 1 << 40},
		{"range that wraps around", cmdTrim, 0, 512, 1<<64 - 512},
		{"status of more than all", cmdStatus, 0, 0, 1 << 63},
	} {
		c.SendExtended(r.flags, r.typ, cookie, r.off, r.n, nil)
		if got, err := c.Receive(nil); err != nil || got.Error != 22 || got.Cookie != cookie {
			t.Errorf("%s: %+v, %v", r.name, got, err)
		}
	}
	c.SendExtended(payloadLen, cmdWrite, cookie, 0, 1<<32, nil)
	wantEnd(t, c) // it is not skipped, as it might be all that there is
	m.WaitLive(0)
}

// TestRangesBeyond32Bits: what a device cannot take at once is taken apart.
func TestRangesBeyond32Bits(t *testing.T) {
	m := nbdtest.NewMemory(0)
	m.Geo.Size, m.Geo.MinBlock = 1<<40, 512
	m.Geo.MaxIO = 1 << 20
	m.Skip = true
	m.Errno = func(op block.Op, off uint64, n uint32, fl block.Flags) syscall.Errno {
		if op == block.OpWriteZeroes && off > 0 {
			return syscall.ENOSPC
		}
		return 0
	}
	s := serve(t, m, nbd.Config{})
	c := s.connectExtended()
	const piece = 1<<32 - 1<<16
	do := func(name string, flags, typ uint16, off, n uint64, errno uint32, calls ...nbdtest.Call) {
		t.Helper()
		before := len(m.Calls())
		c.SendExtended(flags, typ, 1, off, n, nil)
		if r, err := c.Receive(nil); err != nil || r.Error != errno {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if got := m.Calls()[before:]; fmt.Sprint(got) != fmt.Sprint(calls) {
			t.Errorf("%s: the device saw\n%v, want\n%v", name, got, calls)
		}
	}
	do("trim", fua, cmdTrim, 512, 1<<33, 0, nbdtest.Call{Op: block.OpTrim, Offset: 512, Length: piece, Flags: block.FUA},
		nbdtest.Call{Op: block.OpTrim, Offset: 512 + piece, Length: piece, Flags: block.FUA}, nbdtest.Call{Op: block.OpTrim, Offset: 512 + 2*piece, Length: 1 << 17, Flags: block.FUA})
	do("cache", 0, cmdCache, 0, 1<<40, 0, nbdtest.Call{Op: block.OpCache, Length: piece})
	do("status", 0, cmdStatus, 512, 1<<40-512, 0, nbdtest.Call{Op: block.OpStatus, Offset: 512, Length: piece})
	do("zeroes that fail", 0, cmdWriteZeroes, 0, 1<<33, 28, nbdtest.Call{Op: block.OpWriteZeroes, Length: piece}, nbdtest.Call{Op: block.OpWriteZeroes, Offset: piece, Length: piece})
	if st, _ := s.Stats("disk"); st.Trims != 1 || st.ZeroRange != 0 || st.Errors != 1 {
		t.Errorf("figures: %+v", st)
	}
	m.WaitLive(0)
}
