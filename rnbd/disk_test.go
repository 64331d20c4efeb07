package rnbd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
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
	write(t, d, p, 0)
	switch e := do(t, d, block.OpWriteZeroes, nil, 0, 512, block.FastZero); {
	case e != 0 && e != syscall.EOPNOTSUPP:
		t.Errorf("fast zero: %v", e)
	case (e == 0) != bytes.Equal(read(t, d, 512, 0), make([]byte, 512)):
		t.Errorf("fast zero: %v, and the disk says otherwise", e)
	}
	if e := do(t, d, block.OpCache, nil, 0, uint32(g.Size), 0); e != 0 {
		t.Errorf("cache: %v", e)
	}
	if s := d.Info().Stats; s.Flushes != 1 || s.Zeroes != 4 || s.Errors > 1 || s.WriteBytes == 0 {
		t.Errorf("stats %+v", s)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the server still has the export open", func() bool { return len(srv.Exports()[0].Openers) == 0 })
}

// TestStatusOfARemoteDisk: the holes of the exported file are those of the disk, and follow
// what is written and given up.
func TestStatusOfARemoteDisk(t *testing.T) {
	srv := startServer(t, fileExport(t, "sparse", 3<<30))
	d := openDisk(t, connect(t, srv.addr), "sparse")
	const hole = block.Hole | block.Zero
	want := func(what string, off uint64, n uint32, extents ...block.Extent) {
		t.Helper()
		if got := statusOf(t, d, off, n); !slices.Equal(got, extents) {
			t.Errorf("%s: %v, want %v", what, got, extents)
		}
	}
	want("an empty file", 0, 3<<30, block.Extent{Length: 3 << 30, State: hole})
	write(t, d, randomBytes(64<<10), 1<<30)
	want("after a write", 0, 3<<30, block.Extent{Length: 1 << 30, State: hole}, block.Extent{Length: 64 << 10}, block.Extent{Length: 2<<30 - 64<<10, State: hole})
	want("the last sector", 3<<30-SectorSize, SectorSize, block.Extent{Length: SectorSize, State: hole})
	if e := do(t, d, block.OpWriteZeroes, nil, 1<<30, 64<<10, 0); e != 0 {
		t.Fatal(e)
	}
	want("after the zeroes", 0, 3<<30, block.Extent{Length: 3 << 30, State: hole})
	for _, bad := range []struct {
		off uint64
		n   uint32
	}{{3 << 30, SectorSize}, {1, SectorSize}, {0, SectorSize + 1}} {
		if e := do(t, d, block.OpStatus, nil, bad.off, bad.n, 0); e != syscall.EINVAL {
			t.Errorf("%d bytes at %d: %v", bad.n, bad.off, e)
		}
	}
}

// TestServerThatDoesNotKnowAnOperation: one that is older answers EOPNOTSUPP to what came
// after it. Then all is data, and a hint has no effect.
func TestServerThatDoesNotKnowAnOperation(t *testing.T) {
	srv := startServer(t, ramExport("ram", newRAM(1<<20)))
	d := openDisk(t, connect(t, srv.addr), "ram")
	if got := statusOf(t, d, 4096, 8192); !slices.Equal(got, []block.Extent{{Length: 8192}}) {
		t.Errorf("status: %v", got)
	}
	if e := do(t, d, block.OpCache, nil, 0, 4096, 0); e != 0 {
		t.Errorf("cache: %v", e)
	}
	if s := d.Info().Stats; s.Errors != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestServerChecksWhatAnOperationCarries: every combination that is not the operation's.
func TestServerChecksWhatAnOperationCarries(t *testing.T) {
	d := &device{exp: &export{}}
	d.exp.sectors.Store(16)
	for _, c := range []struct {
		name   string
		op     block.Op
		dir    rtrs.Dir
		data   int
		sector uint64
		size   uint32
		errno  syscall.Errno
	}{
		{"read", block.OpRead, rtrs.Read, 4096, 8, 4096, 0},
		{"read beyond the end", block.OpRead, rtrs.Read, 4096, 9, 4096, syscall.EINVAL},
		{"read of less than it has room for", block.OpRead, rtrs.Read, 4096, 0, 512, syscall.EINVAL},
		{"status", block.OpStatus, rtrs.Read, block.StatusLen, 0, 16 * SectorSize, 0},
		{"status beyond the end", block.OpStatus, rtrs.Read, block.StatusLen, 0, 17 * SectorSize, syscall.EINVAL},
		{"status far beyond", block.OpStatus, rtrs.Read, block.StatusLen, 1<<64 - 1, SectorSize, syscall.EINVAL},
		{"status without room", block.OpStatus, rtrs.Read, 8, 0, SectorSize, syscall.EINVAL},
		{"status with too much room", block.OpStatus, rtrs.Read, 2 * block.StatusLen, 0, SectorSize, syscall.EINVAL},
		{"status as a write", block.OpStatus, rtrs.Write, block.StatusLen, 0, SectorSize, syscall.EINVAL},
		{"cache", block.OpCache, rtrs.Write, 0, 0, SectorSize, 0},
		{"cache with data", block.OpCache, rtrs.Write, SectorSize, 0, SectorSize, syscall.EINVAL},
		{"trim as a read", block.OpTrim, rtrs.Read, 0, 0, SectorSize, syscall.EINVAL},
	} {
		r := rtrs.Request{Dir: c.dir, Data: make([]byte, c.data)}
		if errno := d.checkIO(&r, &ioMsg{Sector: c.sector, Size: c.size}, c.op); errno != c.errno {
			t.Errorf("%s: %v, want %v", c.name, errno, c.errno)
		}
	}
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
