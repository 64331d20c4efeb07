package nbd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// want sends a request and holds its reply against the error.
func want(t *testing.T, c *nbdtest.Client, name string, flags, typ uint16, off uint64, n uint32, payload []byte, errno uint32) *nbdtest.Reply {
	t.Helper()
	r, err := c.Do(flags, typ, off, n, payload)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if r.Error != errno || r.Structured && r.Flags != 1 {
		t.Errorf("%s: %+v, want error %d", name, r, errno)
	}
	if c.Structured && (errno != 0 || typ == cmdRead || typ == cmdStatus || c.Extended) != r.Structured {
		t.Errorf("%s: structured %v", name, r.Structured)
	}
	if r.Structured && errno != 0 && r.Message == "" {
		t.Errorf("%s: no words", name)
	}
	return r
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(b)
	return b
}

func TestCommands(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(1 << 20)
		s := serve(t, m, nbd.Config{})
		c := s.connect(structured)
		p := randomBytes(300_001)
		want(t, c, "write", 0, cmdWrite, 77, uint32(len(p)), p, 0)
		want(t, c, "durable write", fua, cmdWrite, 600_000, 512, p[:512], 0)
		if r := want(t, c, "read", 0, cmdRead, 77, uint32(len(p)), nil, 0); !bytes.Equal(r.Data, p) || structured && r.Offset != 77 {
			t.Error("read: other data than written")
		}
		if structured {
			if r := want(t, c, "unfragmented read", dontFragment, cmdRead, 600_000, 512, nil, 0); !bytes.Equal(r.Data, p[:512]) {
				t.Error("unfragmented read: other data than written")
			}
		}
		want(t, c, "flush", 0, cmdFlush, 0, 0, nil, 0)
		want(t, c, "trim", 0, cmdTrim, 100, 1000, nil, 0)
		want(t, c, "durable trim of all", fua, cmdTrim, 0, 1<<20, nil, 0)
		want(t, c, "zeroes", noHole|fua|fastZero, cmdWriteZeroes, 0, 4096, nil, 0)
		want(t, c, "read nothing", 0, cmdRead, 0, 0, nil, 0)
		want(t, c, "write nothing", 0, cmdWrite, 1<<20, 0, nil, 0)
		calls := []nbdtest.Call{
			{Op: block.OpWrite, Offset: 77, Length: 300_001}, {Op: block.OpWrite, Offset: 600_000, Length: 512, Flags: block.FUA},
			{Op: block.OpRead, Offset: 77, Length: 300_001}, {Op: block.OpRead, Offset: 600_000, Length: 512},
			{Op: block.OpFlush}, {Op: block.OpTrim, Offset: 100, Length: 1000}, {Op: block.OpTrim, Length: 1 << 20, Flags: block.FUA},
			{Op: block.OpWriteZeroes, Length: 4096, Flags: block.NoUnmap | block.FUA | block.FastZero},
		}
		if !structured {
			calls = append(calls[:3], calls[4:]...)
		}
		if got := m.Calls(); fmt.Sprint(got) != fmt.Sprint(calls) {
			t.Errorf("the device saw\n%v, want\n%v", got, calls)
		}
		c.Send(0, cmdDisc, 0, 0, 0, nil)
		wantEnd(t, c)
		m.WaitLive(0)
		st, _ := s.Stats("disk")
		if st.Writes != 3 || st.WrittenBytes != 300_513 || st.Flushes != 1 || st.Trims != 2 || st.ZeroRange != 1 || st.Errors != 0 {
			t.Errorf("figures: %+v", st)
		}
	})
}

// TestRefusedRequestsKeepTheStreamInStep also proves that a refused write's
// payload is skipped, whatever its length.
func TestRefusedRequestsKeepTheStreamInStep(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(1 << 20)
		m.Geo.MinBlock, m.Geo.CanTrim, m.Geo.CanFastZero = 512, false, false
		c := serve(t, m, nbd.Config{}).connect(structured)
		big := make([]byte, 33<<20)
		for _, r := range []struct {
			name       string
			flags, typ uint16
			off        uint64
			n          uint32
			payload    []byte
			errno      uint32
		}{
			{"unknown command", 0, 9, 0, 512, nil, 22},
			{"block status not selected", 0, cmdStatus, 0, 512, nil, 22},
			{"extended payload", payloadLen, cmdTrim, 0, 512, nil, 22},
			{"unknown flag", 1 << 8, cmdRead, 0, 512, nil, 22},
			{"read beyond the end", 0, cmdRead, 1 << 20, 512, nil, 22},
			{"read at the end of all", 0, cmdRead, 1<<64 - 512, 1024, nil, 22},
			{"unaligned read", 0, cmdRead, 1, 512, nil, 22},
			{"huge read", 0, cmdRead, 0, 1<<32 - 512, nil, 22},
			{"write beyond the end", 0, cmdWrite, 1<<20 - 512, 1024, big[:1024], 28},
			{"unaligned write", 0, cmdWrite, 512, 100_000, big[:100_000], 22},
			{"huge write", 0, cmdWrite, 0, uint32(len(big)), big, 22},
			{"write with a strange flag", noHole, cmdWrite, 0, 512, big[:512], 22},
			{"trim not offered", 0, cmdTrim, 0, 512, nil, 22},
			{"fast zero not offered", fastZero, cmdWriteZeroes, 0, 512, nil, 22},
			{"zeroes beyond the end", 0, cmdWriteZeroes, 0, 1 << 21, nil, 28},
			{"flush of a range", 0, cmdFlush, 512, 0, nil, 22},
		} {
			want(t, c, r.name, r.flags, r.typ, r.off, r.n, r.payload, r.errno)
			want(t, c, "read after "+r.name, 0, cmdRead, 0, 512, nil, 0)
		}
		for _, call := range m.Calls() {
			if call.Op != block.OpRead || call.Length != 512 {
				t.Errorf("the device was asked for %+v", call)
			}
		}
	})
}

func TestReadOnlyExportRefusesWrites(t *testing.T) {
	m := nbdtest.NewMemory(4096)
	m.Geo.ReadOnly = true
	c := serve(t, m, nbd.Config{}).connect(true)
	if c.Flags&2 == 0 || c.Flags&(32|64) != 0 {
		t.Errorf("transmission flags %#x", c.Flags)
	}
	want(t, c, "write", 0, cmdWrite, 0, 1024, make([]byte, 1024), 1)
	want(t, c, "trim", 0, cmdTrim, 0, 512, nil, 1)
	want(t, c, "zeroes", 0, cmdWriteZeroes, 0, 512, nil, 1)
	want(t, c, "flush", 0, cmdFlush, 0, 0, nil, 0)
	want(t, c, "read", 0, cmdRead, 0, 512, nil, 0)
}

// TestDeviceErrorsAreTheRequests proves that they never end the connection.
func TestDeviceErrorsAreTheRequests(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(1 << 20)
		var fail atomic.Int64
		m.Errno = func(block.Op, uint64, uint32, block.Flags) syscall.Errno { return syscall.Errno(fail.Load()) }
		s := serve(t, m, nbd.Config{})
		c := s.connect(structured)
		for errno, code := range map[syscall.Errno]uint32{
			syscall.EIO: 5, syscall.ENOSPC: 28, syscall.EDQUOT: 28, syscall.EPERM: 1, syscall.ESHUTDOWN: 108,
			syscall.EOPNOTSUPP: 22, syscall.EBADF: 5,
		} {
			fail.Store(int64(errno))
			want(t, c, "read", 0, cmdRead, 0, 8192, nil, code)
			want(t, c, "write", 0, cmdWrite, 0, 8192, make([]byte, 8192), code)
			want(t, c, "flush", 0, cmdFlush, 0, 0, nil, code)
			want(t, c, "trim", 0, cmdTrim, 0, 512, nil, code)
			fail.Store(0)
			want(t, c, "read afterwards", 0, cmdRead, 0, 8192, nil, 0)
		}
		fail.Store(int64(syscall.EOPNOTSUPP))
		want(t, c, "fast zero", fastZero, cmdWriteZeroes, 0, 512, nil, 95)
		if st, _ := s.Stats("disk"); st.Errors != 29 || st.Clients != 1 {
			t.Errorf("figures: %+v", st)
		}
	})
}

func TestGetErrorsAreTheRequests(t *testing.T) {
	m := nbdtest.NewMemory(4 << 20)
	m.GetError = func(_ block.Op, off uint64, _ uint32) error {
		switch off {
		case 512:
			return fmt.Errorf("no path: %w", syscall.ESHUTDOWN)
		case 1024:
			return errors.New("something else")
		case 2 << 20:
			return syscall.ENOMEM
		}
		return nil
	}
	c := serve(t, m, nbd.Config{}).connect(true)
	for off, code := range map[uint64]uint32{512: 108, 1024: 5} {
		want(t, c, "read", 0, cmdRead, off, 4096, nil, code)
		want(t, c, "write", 0, cmdWrite, off, 70_000, make([]byte, 70_000), code)
	}
	want(t, c, "second piece of a large write", 0, cmdWrite, 1<<20, 2<<20, make([]byte, 2<<20), 12)
	want(t, c, "second piece of a large read", 0, cmdRead, 1<<20, 2<<20, nil, 12)
	want(t, c, "read", 0, cmdRead, 0, 4096, nil, 0)
	m.WaitLive(0)
}

func TestRepliesComeInTheOrderOfCompletion(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(1 << 20)
		m.Hold = func(block.Op, uint64) bool { return true }
		c := serve(t, m, nbd.Config{}).connect(structured)
		m.Data(func(data []byte) { copy(data, randomBytes(len(data))) })
		var b []byte
		for i := range uint64(10) {
			b = nbdtest.AppendRequest(b, 0, cmdRead, i, i*4096, 4096, nil)
		}
		c.Write(b)
		m.WaitHeld(10)
		receive := func(i uint64) {
			t.Helper()
			r, err := c.Receive(func(uint64) int { return 4096 })
			if err != nil || r.Cookie != i || r.Error != 0 {
				t.Fatalf("%+v, %v, want the reply to %d", r, err, i)
			}
			m.Data(func(data []byte) {
				if !bytes.Equal(r.Data, data[i*4096:][:4096]) {
					t.Errorf("reply to %d: wrong data", i)
				}
			})
		}
		for i := uint64(9); i > 5; i-- {
			m.Let(i * 4096)
			receive(i)
		}
		m.LetAll()
		for i := range uint64(6) {
			receive(i)
		}
		m.WaitLive(0)
	})
}

// TestPipelinedWrites sends small and large payloads back to back, so that
// they begin and end anywhere in the receive buffer.
func TestPipelinedWrites(t *testing.T) {
	const size = 8 << 20
	m := nbdtest.NewMemory(size)
	c := serve(t, m, nbd.Config{}).connect(false)
	content := randomBytes(size)
	var b []byte
	n := 0
	r := rand.New(rand.NewPCG(1, 1))
	for off := 0; off < size; n++ {
		k := min(1+r.IntN(9000), size-off)
		if r.IntN(20) == 0 {
			k = min(1+r.IntN(200_000), size-off)
		}
		b = nbdtest.AppendRequest(b, 0, cmdWrite, uint64(n), uint64(off), uint32(k), content[off:off+k])
		off += k
	}
	go func() {
		for len(b) > 0 {
			k := min(len(b), 1+r.IntN(300_000))
			c.Write(b[:k])
			b = b[k:]
		}
	}()
	for range n {
		if r, err := c.Receive(func(uint64) int { return 0 }); err != nil || r.Error != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	m.Data(func(data []byte) {
		if !bytes.Equal(data, content) {
			t.Error("other data than written")
		}
	})
}

func TestMoreRequestsThanTheDeviceHasRoomFor(t *testing.T) {
	for name, cfg := range map[string]nbd.Config{"device": {}, "server": {MaxInFlight: 3}} {
		t.Run(name, func(t *testing.T) {
			m := nbdtest.NewMemory(1 << 20)
			if name == "device" {
				m.Depth = 3
			}
			s := serve(t, m, cfg)
			var wg sync.WaitGroup
			for range 3 {
				c := s.connect(true)
				wg.Go(func() {
					var b []byte
					for i := range uint64(200) {
						b = nbdtest.AppendRequest(b, 0, cmdRead, i, i*4096, 4096, nil)
					}
					go c.Write(b)
					for range 200 {
						if r, err := c.Receive(nil); err != nil || r.Error != 0 {
							t.Errorf("%+v, %v", r, err)
							return
						}
					}
				})
			}
			wg.Wait()
			m.WaitLive(0)
		})
	}
}

// TestClientThatReadsLate has the server's socket full of replies.
func TestClientThatReadsLate(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(16 << 20)
		content := randomBytes(16 << 20)
		m.Data(func(data []byte) { copy(data, content) })
		c := serve(t, m, nbd.Config{}).connect(structured)
		for i := range uint64(16) {
			c.Send(0, cmdRead, i, i<<20, 1<<20, nil)
			c.Send(0, cmdFlush, 100+i, 0, 0, nil)
		}
		for range 32 {
			r, err := c.Receive(func(cookie uint64) int {
				if cookie >= 100 {
					return 0
				}
				return 1 << 20
			})
			if err != nil || r.Error != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			if r.Cookie < 100 && !bytes.Equal(r.Data, content[r.Cookie<<20:][:1<<20]) {
				t.Errorf("reply to %d: wrong data", r.Cookie)
			}
		}
		m.WaitLive(0)
	})
}

// TestLargerThanTheDeviceTakes has requests taken apart.
func TestLargerThanTheDeviceTakes(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(34 << 20)
		m.Geo.MaxIO = 100_000
		m.Depth = 1
		var failAt atomic.Uint64
		failAt.Store(1 << 63)
		m.Errno = func(_ block.Op, off uint64, n uint32, _ block.Flags) syscall.Errno {
			if f := failAt.Load(); f >= off && f < off+uint64(n) {
				return syscall.ENOSPC
			}
			return 0
		}
		c := serve(t, m, nbd.Config{}).connect(structured)
		p := randomBytes(32 << 20)
		want(t, c, "write", fua, cmdWrite, 12345, uint32(len(p)), p, 0)
		for range 6 { // more than there are places for such reads
			if r := want(t, c, "read", 0, cmdRead, 12345, uint32(len(p)), nil, 0); !bytes.Equal(r.Data, p) {
				t.Error("other data than written")
			}
		}
		failAt.Store(1 << 20)
		want(t, c, "write that fails inside", 0, cmdWrite, 0, 2<<20, make([]byte, 2<<20), 28)
		want(t, c, "read that fails inside", 0, cmdRead, 0, 2<<20, nil, 28)
		want(t, c, "read", 0, cmdRead, 0, 4096, nil, 0)
		for _, call := range m.Calls() {
			if call.Length > 100_000 || call.Op == block.OpWrite && call.Offset >= 12345 && call.Flags != block.FUA && failAt.Load() == 0 {
				t.Errorf("the device was asked for %+v", call)
			}
		}
		m.WaitLive(0)
	})
}

func TestDisconnectLetsRequestsFinish(t *testing.T) {
	m := nbdtest.NewMemory(4096)
	m.Hold = func(block.Op, uint64) bool { return true }
	c := serve(t, m, nbd.Config{}).connect(false)
	c.Send(0, cmdRead, 1, 0, 512, nil)
	c.Send(0, cmdDisc, 2, 0, 0, nil)
	m.WaitHeld(1)
	m.Let(0)
	if r, err := c.Receive(func(uint64) int { return 512 }); err != nil || r.Cookie != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	wantEnd(t, c)
}

func TestClientThatGoesAwayLeavesNothing(t *testing.T) {
	m := nbdtest.NewMemory(8 << 20)
	m.Hold = func(block.Op, uint64) bool { return true }
	s := serve(t, m, nbd.Config{})
	for name, f := range map[string]func(c *nbdtest.Client){
		"with requests under way": func(c *nbdtest.Client) {
			c.Send(0, cmdRead, 1, 0, 4096, nil)
			c.Send(0, cmdWrite, 2, 0, 4096, make([]byte, 4096))
			m.WaitHeld(2)
		},
		"inside a header": func(c *nbdtest.Client) { c.Write([]byte{0x25, 0x60}) },
		"inside a payload": func(c *nbdtest.Client) {
			c.Write(nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 0, 100_000, make([]byte, 99_999)))
			m.WaitLive(1)
		},
		"inside a refused payload": func(c *nbdtest.Client) {
			c.Write(nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 1<<40, 100_000, make([]byte, 99_999)))
		},
		"inside a large payload": func(c *nbdtest.Client) {
			c.Write(nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 0, 2<<20, make([]byte, 1<<20)))
			m.WaitHeld(1)
		},
		"with nonsense": func(c *nbdtest.Client) { c.Write(make([]byte, 28)) },
	} {
		c := s.connect(false)
		f(c)
		c.Close()
		m.LetAll()
		m.WaitLive(0)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	s.close() // would wait for ever for a client that is still served
}

func TestClientThatStopsReadingIsLetGo(t *testing.T) {
	m := nbdtest.NewMemory(8 << 20)
	s := serve(t, m, nbd.Config{})
	c := s.connect(false)
	for i := range uint64(8) {
		c.Send(0, cmdRead, i, i<<20, 1<<20, nil)
	}
	io.ReadFull(c, make([]byte, 100_000))
	c.Close()
	m.WaitLive(0)
}

// TestManyClientsAtOnce has each client work on a range of its own and compare
// with what it should be; completions come on all kinds of goroutines.
func TestManyClientsAtOnce(t *testing.T) {
	const clients, each = 4, 1 << 20
	m := nbdtest.NewMemory(clients * each)
	var n atomic.Int64
	held := make(chan struct{}, 1)
	m.Hold = func(block.Op, uint64) bool {
		if n.Add(1)%3 != 0 {
			return false
		}
		select {
		case held <- struct{}{}:
		default:
		}
		return true
	}
	s := serve(t, m, nbd.Config{})
	var letter, wg sync.WaitGroup
	for range 2 {
		letter.Go(func() {
			for range held {
				m.LetAll()
			}
		})
	}
	for i := range uint64(clients) {
		c := s.connect(i%2 == 0)
		wg.Go(func() {
			r := rand.New(rand.NewPCG(i, 1))
			model := make([]byte, each)
			for range 300 {
				off := r.IntN(each)
				k := r.IntN(min(each-off, 150_000)) + 1
				switch r.IntN(3) {
				case 0:
					p := bytes.Repeat([]byte{byte(r.Uint32())}, k)
					want(t, c, "write", 0, cmdWrite, i*each+uint64(off), uint32(k), p, 0)
					copy(model[off:], p)
				case 1:
					want(t, c, "zeroes", 0, cmdWriteZeroes, i*each+uint64(off), uint32(k), nil, 0)
					clear(model[off : off+k])
				case 2:
					if r := want(t, c, "read", 0, cmdRead, i*each+uint64(off), uint32(k), nil, 0); !bytes.Equal(r.Data, model[off:off+k]) {
						t.Errorf("client %d: wrong data", i)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	m.Data(func([]byte) { close(held) }) // in order with Hold
	letter.Wait()
	m.WaitLive(0)
}

// The kernel's driver does not negotiate: it is told what Info says, and transmits.
func TestTransmitServesWhoDoesNotNegotiate(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	srv := nbd.NewServer(nbd.Config{})
	if err := srv.Export("disk", m, ""); err != nil {
		t.Fatal(err)
	}
	if info, err := srv.Info("disk"); err != nil || info.Size != 1<<20 || info.Flags&0x1af != 0x12d { // flags, flush, FUA, trim, several connections; neither read-only nor DF

		t.Errorf("%+v, %v", info, err)
	}
	if _, err := srv.Info("none"); !errors.Is(err, nbd.ErrNoExport) {
		t.Errorf("an export that there is not: %v", err)
	}
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- srv.Transmit(t.Context(), ours, "disk") }()
	c := &nbdtest.Client{Conn: theirs}
	if r, err := c.Do(0, cmdWrite, 512, 4, []byte("data")); err != nil || r.Error != 0 {
		t.Fatalf("write: %+v, %v", r, err)
	}
	if r, err := c.Do(0, cmdRead, 512, 4, nil); err != nil || string(r.Data) != "data" {
		t.Fatalf("read: %+v, %v", r, err)
	}
	if err := c.Send(0, cmdDisc, 1, 0, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after a disconnect: %v", err)
	}
	ours, theirs = net.Pipe()
	if err := srv.Transmit(t.Context(), ours, "none"); !errors.Is(err, nbd.ErrNoExport) {
		t.Errorf("no export: %v", err)
	}
	if _, err := theirs.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}
