package nbd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// line is a row of servers of one disk, each of which hands its clients to the next.
type line struct {
	t       testing.TB
	path    string
	drain   time.Duration
	stop    context.CancelFunc
	done    chan error
	mu      sync.Mutex // guards what is below
	clients []nbd.Resumed
}

func newLine(t testing.TB, b block.Device, drain time.Duration) *line {
	l := &line{t: t, path: filepath.Join(t.TempDir(), "s"), drain: drain}
	l.start(b)
	t.Cleanup(l.end)
	return l
}

// start has a server serve those that were handed over, and others.
func (l *line) start(b block.Device) {
	l.t.Helper()
	ln, err := nbd.ListenUnix(l.t.Context(), l.path, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	s := nbd.NewServer(nbd.Config{DrainTimeout: l.drain, HandOver: l.keep})
	if err := s.Export("disk", b, ""); err != nil {
		l.t.Fatal(err)
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	l.done = make(chan error, 1)
	clients := l.clients
	l.clients = nil
	go func() { l.done <- s.Serve(ctx, nbd.Resume(ln, clients)) }()
}

func (l *line) keep(nc net.Conn, h nbd.Handed) {
	f, err := nc.(*net.UnixConn).File()
	if err != nil {
		l.t.Error(err)
		return
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		l.t.Error(err)
		return
	}
	h.Received = bytes.Clone(h.Received)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients = append(l.clients, nbd.Resumed{Conn: c, Handed: h})
}

// end ends the server that runs.
func (l *line) end() {
	l.t.Helper()
	l.stop()
	if err := <-l.done; err != nil {
		l.t.Error(err)
	}
	l.done <- nil
}

func (l *line) dial() net.Conn {
	l.t.Helper()
	c, err := toSocket(l.path)()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// connected returns a client with simple replies, structured ones or extended headers.
func (l *line) connected(kind string) *nbdtest.Client {
	l.t.Helper()
	c, err := nbdtest.ConnectExtended, error(nil)
	var client *nbdtest.Client
	if kind == "extended" {
		client, err = c(l.dial(), "disk")
	} else {
		client, err = nbdtest.Connect(l.dial(), "disk", kind == "structured")
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return client
}

// What a client sends before, while and after its server is replaced is carried out once each, and it notices nothing.
func TestClientIsHandedOver(t *testing.T) {
	for _, kind := range []string{"simple", "structured", "extended"} {
		t.Run(kind, func(t *testing.T) {
			m := nbdtest.NewMemory(1 << 20)
			l := newLine(t, m, time.Minute)
			c := l.connected(kind)
			for i := range byte(5) {
				text := bytes.Repeat([]byte{i + 1}, 4096)
				if r, err := c.Do(0, 1, uint64(i)<<12, 4096, text); err != nil || r.Error != 0 {
					t.Fatalf("write %d: %+v, %v", i, r, err)
				}
				l.end()
				l.start(m)
				if r, err := c.Do(0, 0, uint64(i)<<12, 4096, nil); err != nil || !bytes.Equal(r.Data, text) {
					t.Fatalf("read %d by the next server: %v", i, err)
				}
			}
			if n := len(m.Calls()); n != 10 {
				t.Errorf("%d operations, want 10", n)
			}
		})
	}
}

// A server that ends takes what has begun to arrive to its end, answers what is under way, and leaves the rest, down to a part of a
// header, to the next one.
func TestHandOverInTheMiddle(t *testing.T) {
	m := nbdtest.NewMemory(4 << 20)
	m.Hold = func(op block.Op, off uint64) bool { return op == block.OpWrite && off == 0 }
	l := newLine(t, m, time.Minute)
	c := l.connected("simple")
	text := bytes.Repeat([]byte("0123456789abcdef"), 2<<16) // 2 MiB: more than the disk takes at a time
	held := nbdtest.AppendRequest(nil, 0, 1, 1, 0, 4096, text[:4096])
	large := nbdtest.AppendRequest(nil, 0, 1, 2, 1<<20, uint32(len(text)), text)
	c.Write(append(held, large[:1<<20+100]...))
	m.WaitHeld(1)
	m.WaitCalls(2) // a piece of the large one
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.end()
	}()
	read := nbdtest.AppendRequest(nil, 0, 0, 3, 1<<20, 4096, nil)
	c.Write(append(large[1<<20+100:], read[:7]...))
	got := map[uint64]uint32{}
	receive := func() {
		r, err := c.Receive(func(cookie uint64) int { return map[uint64]int{3: 4096}[cookie] })
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[r.Cookie]; twice {
			t.Errorf("two replies to %d", r.Cookie)
		}
		got[r.Cookie] = r.Error
		if r.Cookie == 3 && !bytes.Equal(r.Data, text[:4096]) {
			t.Error("the next server reads something else")
		}
	}
	receive() // of the large one
	select {
	case <-ended:
		t.Fatal("the server has ended while a write is at the disk")
	default:
	}
	m.Let(0)
	receive()
	<-ended
	l.start(m)
	c.Write(read[7:])
	receive()
	if want := map[uint64]uint32{1: 0, 2: 0, 3: 0}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A client whose I/O does not come to an end, or which does not send what it has begun, is not handed over but disconnected: the
// next server could not know what becomes of it.
func TestNotHandedOver(t *testing.T) {
	for name, begin := range map[string]func(c *nbdtest.Client, m *nbdtest.Memory){
		"an I/O hangs": func(c *nbdtest.Client, m *nbdtest.Memory) {
			c.Send(0, 1, 1, 0, 4096, make([]byte, 4096))
			m.WaitHeld(1)
		},
		"half a payload": func(c *nbdtest.Client, m *nbdtest.Memory) {
			c.Write(nbdtest.AppendRequest(nil, 0, 1, 1, 4096, 1<<20, make([]byte, 1000)))
			m.WaitLive(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := nbdtest.NewMemory(4 << 20)
			m.Hold = func(op block.Op, off uint64) bool { return off == 0 }
			l := newLine(t, m, time.Millisecond)
			c := l.connected("simple")
			begin(c, m)
			l.end()
			if len(l.clients) != 0 {
				t.Error("it was handed over")
			}
			wantEnd(t, c)
			m.LetAll()
			m.WaitLive(0)
			l.start(m)
		})
	}
}

// A client for which the disk is another one now, or which a damaged state describes, is disconnected, and the server serves others.
func TestResumedClientIsChecked(t *testing.T) {
	type change func(h *nbd.Handed, m *nbdtest.Memory)
	for name, x := range map[string]struct {
		change
		ok bool
	}{
		"the same":                           {func(*nbd.Handed, *nbdtest.Memory) {}, true},
		"a larger disk":                      {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Size -= 4096 }, true},
		"a smaller disk":                     {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Size += 4096 }, false},
		"another export":                     {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Export = "other" }, false},
		"no export":                          {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Export = "" }, false},
		"read-only now":                      {func(_ *nbd.Handed, m *nbdtest.Memory) { m.Geo.ReadOnly = true }, false},
		"no flush":                           {func(_ *nbd.Handed, m *nbdtest.Memory) { m.Geo.CanFlush, m.Geo.CanFUA = false, false }, false},
		"larger blocks":                      {func(_ *nbd.Handed, m *nbdtest.Memory) { m.Geo.MinBlock = 4096 }, false},
		"no allocation":                      {func(h *nbd.Handed, m *nbdtest.Memory) { h.Allocation, m.Geo.CanStatus = true, false }, false},
		"too much received":                  {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Received = make([]byte, 64<<10+1) }, false},
		"garbage received":                   {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Received = bytes.Repeat([]byte{7}, 100) }, false},
		"extended headers, simple replies":   {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Extended = true }, false},
		"flags that no server has announced": {func(h *nbd.Handed, _ *nbdtest.Memory) { h.Flags |= 1 << 15 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := nbdtest.NewMemory(1 << 20)
			l := newLine(t, m, time.Minute)
			c := l.connected("simple")
			if _, err := c.Do(0, 1, 0, 512, make([]byte, 512)); err != nil {
				t.Fatal(err)
			}
			l.end()
			x.change(&l.clients[0].Handed, m)
			l.start(m)
			if !x.ok {
				wantEnd(t, c)
			} else if r, err := c.Do(0, 0, 0, 512, nil); err != nil || r.Error != 0 {
				t.Errorf("%+v, %v", r, err)
			}
			l.connected("simple")
		})
	}
}

// Clients that write and read without a pause while one server follows another find what they wrote, each time, whatever was
// under way.
func TestHandOverUnderLoad(t *testing.T) {
	const depth, blocks, size = 16, 64, 4096
	m := nbdtest.NewMemory(4 * blocks * size)
	l := newLine(t, m, time.Minute)
	var all sync.WaitGroup
	stop := make(chan struct{})
	for who := range 4 {
		c := l.connected([]string{"simple", "structured", "extended", "simple"}[who])
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(who), 1))
			var version [blocks]uint64
			for round := uint64(1); ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				order := rnd.Perm(blocks)[:depth]
				for typ := range uint16(2) {
					typ = 1 - typ // a write, then a read, of each
					for i, b := range order {
						var payload []byte
						if typ == 1 {
							version[b] = round
							payload = bytes.Repeat(binary.BigEndian.AppendUint64(nil, round<<8|uint64(b)), size/8)
						}
						if err := c.Send(0, typ, uint64(i), uint64((who*blocks+b)*size), size, payload); err != nil {
							t.Error(err)
							return
						}
					}
					seen := map[uint64]bool{}
					for len(seen) < depth {
						r, err := c.Receive(func(uint64) int { return map[uint16]int{0: size}[typ] })
						if err != nil || r.Error != 0 || r.Cookie >= depth || seen[r.Cookie] {
							t.Errorf("client %d, round %d, operation %d: %+v, %v", who, round, typ, r, err)
							return
						}
						b := order[r.Cookie]
						if typ == 0 && binary.BigEndian.Uint64(r.Data) != version[b]<<8|uint64(b) {
							t.Errorf("client %d, block %d: version %d, want %d", who, b, binary.BigEndian.Uint64(r.Data)>>8, version[b])
						}
						if !r.Structured || r.Flags&1 != 0 {
							seen[r.Cookie] = true
						}
					}
				}
			}
		})
	}
	for i := range 20 {
		m.WaitCalls(len(m.Calls()) + 100)
		l.end()
		if len(l.clients) != 4 {
			t.Errorf("%d clients are handed over the %dth time", len(l.clients), i)
		}
		l.start(m)
	}
	close(stop)
	all.Wait()
}

// What a client had sent that is gone when the next server begins is not carried out there: others may have written since, and it was told
// nothing. That of one which is there is.
func TestClientThatIsGoneWhenItIsHandedOver(t *testing.T) {
	for _, gone := range []bool{true, false} {
		m := nbdtest.NewMemory(1 << 20)
		l := newLine(t, m, time.Minute)
		c := l.connected("simple")
		if _, err := c.Do(0, 0, 0, 512, nil); err != nil {
			t.Fatal(err)
		}
		l.end()
		l.clients[0].Received = nbdtest.AppendRequest(nil, 0, 1, 7, 0, 512, bytes.Repeat([]byte{1}, 512))
		if gone {
			c.Close()
		}
		l.start(m)
		if !gone {
			if r, err := c.Receive(func(uint64) int { return 0 }); err != nil || r.Error != 0 || r.Cookie != 7 {
				t.Errorf("the write of a client that is there: %+v, %v", r, err)
			}
		}
		other := l.connected("simple")
		if r, err := other.Do(0, 1, 4096, 512, make([]byte, 512)); err != nil || r.Error != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		l.end() // all that was begun has ended
		m.Data(func(data []byte) {
			if written := data[0] == 1; written == gone {
				t.Errorf("gone %v: its write is carried out: %v", gone, written)
			}
		})
		l.start(m)
	}
}
