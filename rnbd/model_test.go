package rnbd

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// link forwards connections and can cut them.
type link struct {
	ln    net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
}

func startLink(t testing.TB, target string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{ln: ln, conns: make(map[net.Conn]struct{})}
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				c.Close()
				continue
			}
			l.mu.Lock()
			if l.down {
				l.mu.Unlock()
				c.Close()
				s.Close()
				continue
			}
			l.conns[c], l.conns[s] = struct{}{}, struct{}{}
			l.mu.Unlock()
			pipe := func(dst, src net.Conn) {
				io.Copy(dst, src)
				dst.Close()
				src.Close()
				l.mu.Lock()
				delete(l.conns, src)
				l.mu.Unlock()
			}
			l.wg.Go(func() { pipe(c, s) })
			l.wg.Go(func() { pipe(s, c) })
		}
	})
	t.Cleanup(func() { ln.Close(); l.cut(); l.wg.Wait() })
	return l
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

// set takes the link down, or up again.
func (l *link) set(up bool) {
	l.mu.Lock()
	l.down = !up
	l.mu.Unlock()
	if !up {
		l.cut()
	}
}

// modelWorker does random operations on its own region of d and compares with
// a model.
func modelWorker(t *testing.T, d *Disk, rnd *rand.Rand, base uint64, size int, stop func() bool, ops *atomic.Int64) {
	model := make([]byte, size)
	sectors := size / SectorSize
	for !stop() && !t.Failed() {
		first := rnd.IntN(sectors)
		n := 1 + rnd.IntN(min(sectors-first, 1+rnd.IntN(sectors)))
		off, length := first*SectorSize, n*SectorSize
		window := model[off : off+length]
		at := base + uint64(off)
		switch rnd.IntN(9) {
		case 0, 1, 2:
			for i := 0; i < length; i += 8 {
				le.PutUint64(window[i:], rnd.Uint64())
			}
			if e := do(t, d, block.OpWrite, window, at, 0, block.Flags(rnd.IntN(2))*block.FUA); e != 0 {
				t.Errorf("write: %v", e)
			}
		case 3:
			clear(window)
			if e := do(t, d, block.OpWriteZeroes, nil, at, uint32(length), 0); e != 0 {
				t.Errorf("write zeroes: %v", e)
			}
		case 4:
			if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != 0 {
				t.Errorf("flush: %v", e)
			}
		case 5:
			for at := off; at < off+length; {
				for _, e := range statusOf(t, d, base+uint64(at), uint32(off+length-at)) {
					part := model[at : at+int(e.Length)]
					if e.State&block.Zero != 0 && !bytes.Equal(part, make([]byte, len(part))) {
						t.Errorf("%d bytes at %d are said to be zeroes", len(part), at)
					}
					at += len(part)
				}
			}
		default:
			got := make([]byte, length)
			if e := do(t, d, block.OpRead, got, at, 0, 0); e != 0 {
				t.Errorf("read: %v", e)
			}
			if !bytes.Equal(got, window) {
				t.Errorf("%d bytes at %d differ from the model", length, at)
			}
		}
		ops.Add(1)
	}
}

// TestDiskMatchesModelWhileThePathIsCut runs random I/O, much of it split, on
// two disks of one session through a link that is cut again and again.
func TestDiskMatchesModelWhileThePathIsCut(t *testing.T) {
	srv := startServer(t, modelExports(t)...)
	l := startLink(t, srv.addr.String())
	matchModel(t, connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort()), l.cut)
}

// The same over SCTP, through a network that loses, reorders and duplicates, whose
// association is aborted again and again.
func TestDiskMatchesModelOverSCTP(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:7471")
	server := iwarptest.SCTPInUDP(t)
	relay, err := sctptest.NewRelay(netip.AddrPortFrom(local.Addr(), server.UDPPort), sctptest.Faults{Loss: 0.002, Reorder: 0.01, Duplicate: 0.01}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	client := *server
	client.UDPPort = relay.Addr().Port()
	srv := startServerOn(t, server, local, rtrs.ServerConfig{}, modelExports(t)...)
	matchModel(t, connectOver(t, &client, local), func() { srv.dev.EndAssociations("loopback", "cut by a test") })
}

const modelWorkers, modelRegion = 6, 1 << 20

func modelExports(t *testing.T) []Export {
	return []Export{fileExport(t, "a", modelWorkers*modelRegion), ramExport("b", newRAM(modelWorkers*modelRegion))}
}

// matchModel runs random I/O on both exports while cut is called some times.
func matchModel(t *testing.T, c *Client, cut func()) {
	const workers, region, cuts = modelWorkers, modelRegion, 8
	var stop atomic.Bool
	var ops atomic.Int64
	var wg sync.WaitGroup
	for i, name := range []string{"a", "b"} {
		d := openDisk(t, c, name)
		for w := range workers {
			wg.Go(func() {
				modelWorker(t, d, rand.New(rand.NewPCG(uint64(i), uint64(w))), uint64(w*region), region, stop.Load, &ops)
			})
		}
	}
	for range cuts {
		before := ops.Load()
		eventually(t, "I/O flows", func() bool { return ops.Load() >= before+100 || t.Failed() })
		cut()
	}
	before := ops.Load()
	eventually(t, "I/O flows", func() bool { return ops.Load() >= before+100 || t.Failed() })
	stop.Store(true)
	wg.Wait()
	if n := c.Info().Reconnects; n == 0 {
		t.Errorf("%d reconnects after %d cuts", n, cuts)
	}
	for _, d := range c.Disks() {
		if i := d.Info(); i.Err != nil || i.Stats.Errors != 0 {
			t.Errorf("disk %s: %v, %d errors", i.Export, i.Err, i.Stats.Errors)
		}
	}
}

// TestLargeIOsDoNotStarveEachOther: four of these take all permits of the session.
func TestLargeIOsDoNotStarveEachOther(t *testing.T) {
	srv := startServerAt(t, anyPort, rtrs.ServerConfig{QueueDepth: 8, MaxIO: 64 << 10}, ramExport("r", newRAM(8<<20)))
	d := openDisk(t, connect(t, srv.addr), "r")
	if g := d.Geometry(); g.MaxIO != 2*64<<10 {
		t.Fatalf("MaxIO is %d", g.MaxIO)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			p := bytes.Repeat([]byte{byte(w)}, 128<<10)
			for range 20 {
				write(t, d, p, uint64(w)<<20)
				if !bytes.Equal(read(t, d, len(p), uint64(w)<<20), p) {
					t.Error("read differs")
				}
			}
		})
	}
	wg.Wait()
}

// TestSplitIOReportsTheFirstError and completes once, when all its parts have.
func TestSplitIOReportsTheFirstError(t *testing.T) {
	r := newRAM(4 << 20)
	var parts atomic.Int32
	r.before = func(op block.Op, off, n int64) syscall.Errno {
		parts.Add(1)
		if off == 2*rtrs.DefaultMaxIO {
			return syscall.ENOSPC
		}
		return 0
	}
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	if e := do(t, d, block.OpWrite, make([]byte, 4*rtrs.DefaultMaxIO), 0, 0, 0); e != syscall.ENOSPC {
		t.Errorf("%v, want ENOSPC", e)
	}
	if parts.Load() != 4 {
		t.Errorf("%d parts, want 4", parts.Load())
	}
}

// TestFlushCoversWritesOfAllConnections: what was acknowledged before a flush
// survives a crash after it.
func TestFlushCoversWritesOfAllConnections(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() { write(t, d, bytes.Repeat([]byte{byte(w + 1)}, 4096), uint64(w)*4096) })
	}
	wg.Wait()
	if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != 0 {
		t.Fatal(e)
	}
	for w := range 32 {
		if r.flushed[w*4096] != byte(w+1) {
			t.Errorf("write %d is not covered by the flush", w)
		}
	}
	if e := do(t, d, block.OpWrite, bytes.Repeat([]byte{99}, 512), 0, 0, block.FUA); e != 0 || r.flushed[0] != 99 {
		t.Errorf("FUA write: %v, durable byte %d", e, r.flushed[0])
	}
}

// TestNoLateWriteOnTheDisk: a slow write is in flight when the path is cut; it
// must not land after a later acknowledged write to the same place.
func TestNoLateWriteOnTheDisk(t *testing.T) {
	r := newRAM(1 << 20)
	entered, release, _ := r.holdFirstWrite()
	srv := startServer(t, ramExport("r", r))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	d := openDisk(t, c, "r")
	done := make(chan syscall.Errno, 1)
	go func() { done <- do(t, d, block.OpWrite, bytes.Repeat([]byte{1}, 4096), 0, 0, 0) }()
	<-entered
	l.cut()
	eventually(t, "the client is refused until the write has ended", func() bool {
		return errors.Is(c.Info().LastError, syscall.EBUSY)
	})
	close(release)
	if e := <-done; e != 0 {
		t.Fatal(e)
	}
	write(t, d, bytes.Repeat([]byte{2}, 4096), 0)
	if got := read(t, d, 4096, 0); !bytes.Equal(got, bytes.Repeat([]byte{2}, 4096)) {
		t.Error("a late execution overwrote an acknowledged write")
	}
}
