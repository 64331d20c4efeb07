package rnbd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

func randomBytes(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	return p
}

func TestDiskCarriesOutEveryOperation(t *testing.T) {
	srv := startServer(t, fileExport(t, "scratch", 64<<20))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "scratch")
	g := d.Geometry()
	if g.Size != 64<<20 || g.ReadOnly || !g.CanFUA || !g.CanFlush || !g.MultiConn || !g.CanWriteZeroes {
		t.Fatalf("geometry %+v", g)
	}
	for _, n := range []int{512, 4096, rtrs.DefaultMaxIO, rtrs.DefaultMaxIO + 512, 5*rtrs.DefaultMaxIO + 1024, int(g.MaxIO)} {
		p := randomBytes(n)
		write(t, d, p, 1024)
		if got := read(t, d, n, 1024); !bytes.Equal(got, p) {
			t.Fatalf("%d bytes read back differ", n)
		}
	}
	p := randomBytes(8192)
	if e := do(t, d, block.OpWrite, p, 0, 0, block.FUA); e != 0 {
		t.Errorf("FUA write: %v", e)
	}
	if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != 0 {
		t.Errorf("flush: %v", e)
	}
	for _, fl := range []block.Flags{0, block.NoUnmap, block.FUA} {
		write(t, d, p, 4096)
		if e := do(t, d, block.OpWriteZeroes, nil, 4096, 4096, fl); e != 0 {
			t.Errorf("write zeroes with flags %#x: %v", fl, e)
		}
		if got := read(t, d, 8192, 4096); !bytes.Equal(got[:4096], make([]byte, 4096)) || !bytes.Equal(got[4096:], p[4096:]) {
			t.Errorf("write zeroes with flags %#x did not zero exactly its range", fl)
		}
	}
	if g.CanTrim {
		if e := do(t, d, block.OpTrim, nil, 0, 1<<20, 0); e != 0 {
			t.Errorf("trim: %v", e)
		}
	}
	for name, e := range map[string]syscall.Errno{
		"beyond the end": do(t, d, block.OpWrite, p, g.Size-4096, 0, 0),
		"unaligned":      do(t, d, block.OpRead, make([]byte, 512), 1, 0, 0),
	} {
		if e != syscall.EINVAL {
			t.Errorf("%s: %v, want EINVAL", name, e)
		}
	}
	if e := do(t, d, block.OpWriteZeroes, nil, 0, 512, block.FastZero); e != syscall.EOPNOTSUPP {
		t.Errorf("fast zero: %v, want EOPNOTSUPP", e)
	}
	if s := d.Info().Stats; s.Flushes != 1 || s.Zeroes != 3 || s.Errors != 0 || s.WriteBytes == 0 {
		t.Errorf("stats %+v", s)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the server still has the export open", func() bool { return len(srv.Exports()[0].Openers) == 0 })
}

func TestOpenRefusals(t *testing.T) {
	forbidden := ramExport("forbidden", newRAM(1<<20))
	forbidden.AllowAll, forbidden.Allow = false, []transport.Identity{"fqdn:gamma"}
	mine := ramExport("mine", newRAM(1<<20))
	mine.AllowAll, mine.Allow = false, []transport.Identity{"fqdn:gamma", "loopback"}
	srv := startServer(t, forbidden, mine)
	c := connect(t, srv.addr)
	ctx := testContext(t)
	if _, err := c.Open(ctx, "nothing", OpenOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown export: %v", err)
	}
	if _, err := c.Open(ctx, "forbidden", OpenOptions{}); !errors.Is(err, ErrForbidden) {
		t.Errorf("forbidden export: %v", err)
	}
	if _, err := c.Open(ctx, "a\x00b", OpenOptions{}); !errors.Is(err, ErrWire) {
		t.Errorf("bad name: %v", err)
	}
	openDisk(t, c, "mine")
	list, err := c.List(ctx)
	if err != nil || len(list) != 1 || list[0] != (Listed{"mine", 1 << 20, false}) {
		t.Errorf("list %v, %v", list, err)
	}
	if n := len(c.Disks()); n != 1 {
		t.Errorf("%d disks are open, want 1", n)
	}
}
