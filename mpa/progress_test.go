package mpa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/wakes"
)

// watched counts who calls it, and finds out if two do at once.
type watched struct {
	collector
	inside atomic.Int32
	twice  atomic.Bool
}

func (w *watched) Segment(seg []byte) error {
	if w.inside.Add(1) > 1 {
		w.twice.Store(true)
	}
	defer w.inside.Add(-1)
	return w.collector.Segment(seg)
}

// All that is sent is received once and in order, whoever receives it, and by one at a time.
func TestProgressReceivesBesideReceive(t *testing.T) {
	const segments, callers = 2000, 3
	for _, v := range []struct {
		name   string
		cfg    Config
		direct int
	}{
		{"CRC", Config{}, 0},
		{"no CRC, read into place", Config{CRC: CRCAvoid}, 4096},
		{"markers", Config{Markers: true}, 0},
		{"a pool", Config{Pool: new(Pool)}, 0},
		{"spinning", Config{Spin: 1}, 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			client, server := connect(t, "tcp", &Config{CRC: v.cfg.CRC}, &v.cfg)
			w := &watched{}
			w.direct = v.direct
			w.onSeg = func(seg []byte) error {
				if len(w.segs) == segments {
					return errEnough
				}
				return nil
			}
			over := make(chan error, 1)
			go func() { over <- server.Receive(w) }()
			var all sync.WaitGroup
			defer all.Wait()
			stop := make(chan struct{})
			defer close(stop)
			for range callers {
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							server.Progress()
							server.Polled(rand.IntN(4) > 0)
							runtime.Gosched()
						}
					}
				})
			}
			for i := range segments {
				if err := client.Append(binary.BigEndian.AppendUint32(make([]byte, 14), uint32(i)), [][]byte{bytes.Repeat([]byte{byte(i)}, i*37%9000)}); err != nil {
					t.Fatal(err)
				}
				if err := client.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-over; !errors.Is(err, errEnough) {
				t.Fatalf("Receive ended with %v", err)
			}
			if w.twice.Load() {
				t.Error("two received at the same time")
			}
			for i, seg := range w.segs {
				if n := i * 37 % 9000; len(seg) != 18+n || binary.BigEndian.Uint32(seg[14:]) != uint32(i) || !bytes.Equal(seg[18:], bytes.Repeat([]byte{byte(i)}, n)) {
					t.Fatalf("segment %d is not what was sent: %d bytes", i, len(seg))
				}
			}
			if server.Progress() {
				t.Error("something was received after Receive had ended")
			}
		})
	}
}

// What Progress finds wrong ends Receive, with the error that Receive itself would have found.
func TestFaultThatProgressFindsEndsReceive(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, v := range []struct {
		name string
		send func(c *Conn)
		want func(error) bool
	}{
		{"a wrong CRC", func(c *Conn) { c.nc.Write([]byte{0, 18, 22: 0, 23: 1}) }, func(err error) bool { return errors.Is(err, ErrCRC) }},
		{"the Sink's", func(c *Conn) { c.Append(make([]byte, 18), nil); c.Flush() }, func(err error) bool { return errors.Is(err, errEnough) }},
		{"the end of the stream", func(c *Conn) { c.CloseWrite() }, func(err error) bool { return err == io.EOF }},
		{"the end within an FPDU", func(c *Conn) { c.nc.Write([]byte{0, 18, 1}); c.CloseWrite() }, func(err error) bool {
			var e *ddp.Error
			return errors.As(err, &e) && e.Code == CodeConnectionLost
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			client, server := connect(t, "tcp", nil, nil)
			over := make(chan error, 1)
			go func() { over <- server.Receive(until(1, 0)) }()
			for !server.waits() {
				runtime.Gosched()
			}
			v.send(client) // the goroutine of Receive does not run before Progress, unless this one is preempted
			for {
				server.Progress()
				select {
				case err := <-over:
					if !v.want(err) {
						t.Fatalf("Receive ended with %v", err)
					}
					if again := server.Receive(until(1, 0)); again != err {
						t.Errorf("after %v, Receive ended with %v", err, again)
					}
					client.Close()
					if _, err := io.Copy(io.Discard, server.nc); errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("the deadline that woke Receive is still there")
					}
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
}

// waits reports whether Receive waits for something to read.
func (c *Conn) waits() bool {
	if !c.rx.role.TryLock() {
		return false
	}
	defer c.rx.role.Unlock()
	return c.rx.sink != nil
}

// A Sink may call Progress: it is receiving already.
func TestProgressFromASinkDoesNothing(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	s := until(1, 0)
	enough := s.onSeg
	s.onSeg = func(seg []byte) error {
		if server.Progress() {
			t.Error("something was received within the Sink")
		}
		return enough(seg)
	}
	client.Append(make([]byte, 18), nil)
	client.Append(make([]byte, 18), nil)
	client.Flush()
	if err := server.Receive(s); !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
}

// Progress does nothing before Receive, and on a connection that has no file descriptor.
func TestProgressDoesNothingWhereItCannot(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	client.Append(make([]byte, 18), nil)
	client.Flush()
	if server.Progress() {
		t.Error("it received before there was a Sink")
	}
	client, server = connect(t, "pipe", nil, nil)
	over := make(chan error, 1)
	go func() { over <- server.Receive(until(1, 0)) }()
	if server.Progress() {
		t.Error("it received from a pipe")
	}
	client.Append(make([]byte, 18), nil)
	client.Flush()
	if err := <-over; !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
}

// taken notes of each segment whether Progress has brought it.
type taken struct {
	collector
	polling atomic.Bool
	by      chan bool
}

func newTaken(direct int) *taken {
	s := &taken{by: make(chan bool, 1000)}
	s.direct = direct
	s.onSeg = func([]byte) error {
		s.by <- s.polling.Load()
		return nil
	}
	return s
}

// progress calls Progress until it brings something, or Receive has.
func (s *taken) progress(t *testing.T, c *Conn) {
	t.Helper()
	for {
		s.polling.Store(true)
		came := c.Progress()
		s.polling.Store(false)
		if came || len(s.by) > 0 {
			return
		}
		runtime.Gosched()
	}
}

// TestPolledStreamWakesNobodyForLittle: Receive brings it once nobody polls any more, and what is much, or the end, at once.
func TestPolledStreamWakesNobodyForLittle(t *testing.T) {
	client, server := connect(t, "tcp", nil, nil)
	s := newTaken(0)
	over := make(chan error, 1)
	go func() { over <- server.Receive(s) }()
	for !server.waits() {
		runtime.Gosched()
	}
	send := func(n int) {
		t.Helper()
		if err := errors.Join(client.Append(make([]byte, 18), [][]byte{make([]byte, n)}), client.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if server.Polled(true) {
		t.Error("something has waited that nobody sent")
	}
	woken, pass := 0, wakes.New(t)
	for range 200 {
		send(100)
		pass()
		s.progress(t, server)
		if !<-s.by {
			woken++
		}
	}
	if woken > 20 { // not by what came before
		t.Errorf("Receive was woken for %d of 200 short segments of a stream that is polled", woken)
	}
	send(100)
	if !server.Polled(false) {
		t.Error("it is not reported that something waited")
	}
	if <-s.by {
		t.Error("nobody has polled")
	}
	server.Polled(true)
	for range 4 {
		send(30 << 10) // long enough together
	}
	for range 4 {
		<-s.by
	}
	client.CloseWrite()
	if err := <-over; err != io.EOF {
		t.Errorf("Receive ended with %v", err)
	}
}

// TestPolledStreamIsReadIntoPlace: while it is, only Receive can receive, and is woken for the little that is missing.
func TestPolledStreamIsReadIntoPlace(t *testing.T) {
	client, server := connect(t, "tcp", &Config{CRC: CRCAvoid}, &Config{CRC: CRCAvoid})
	const size = 60_000
	s := newTaken(size)
	over := make(chan error, 1)
	go func() { over <- server.Receive(s) }()
	for !server.waits() {
		runtime.Gosched()
	}
	fpdu := make([]byte, 2+18+size+crcLen)
	binary.BigEndian.PutUint16(fpdu, 18+size)
	server.Polled(true)
	for range 20 {
		for _, part := range [][]byte{fpdu[:size-1000], fpdu[size-1000 : size-10], fpdu[size-10:]} {
			if _, err := client.nc.Write(part); err != nil {
				t.Fatal(err)
			}
			for len(part) == size-1000 && server.waits() {
				runtime.Gosched() // until Receive has it
			}
		}
		if <-s.by {
			t.Fatal("Progress has received what is read into place")
		}
		for !server.waits() {
			runtime.Gosched()
		}
	}
	client.CloseWrite()
	if err := <-over; err != io.EOF {
		t.Errorf("Receive ended with %v", err)
	}
}
