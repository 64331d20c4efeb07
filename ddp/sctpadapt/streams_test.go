package sctpadapt_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// earlyPlacer records when segments are placed and when their turn comes.
type earlyPlacer struct {
	*texts
}

func (p earlyPlacer) Early(seg []byte, ahead int) (int, error) {
	return 4, p.texts.Segment(append([]byte("early "), seg[:4]...))
}

func (p earlyPlacer) Turn(head []byte, total int) error {
	return p.texts.Segment(append([]byte("turn "), head...))
}

// RFC 5041 section 5.3 over RFC 5043: a lost chunk does not hold back the
// placement of the others, only their delivery.
func TestLostChunkDoesNotHoldBackPlacement(t *testing.T) {
	var release atomic.Bool
	drop := func(fromClient bool, p []byte) bool {
		return fromClient && !release.Load() && bytes.Contains(p[:min(len(p), 40)], []byte("0000"))
	}
	mtu := func(c *sctp.Config) { c.MTU = 1500 } // each segment in a packet of its own
	x := connectWith(t, mtu, sctpadapt.Config{}, sctpadapt.Config{}, relayed(sctptest.Faults{Drop: drop}))
	a, b := x.session(t)
	in := newTexts()
	over := make(chan error)
	go func() { over <- b.Receive(earlyPlacer{in}) }()
	// First the congestion window has to open.
	const warm, n = 400, 50
	for range warm {
		if err := a.Append([]byte("warm"), [][]byte{make([]byte, 1200)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	in.wait(warm)
	for i := range n {
		if err := a.Append(fmt.Appendf(nil, "%04d", i), [][]byte{make([]byte, 1200)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	// All but the first are placed, however often the first gets lost.
	seen := make(map[string]bool)
	for _, s := range in.wait(warm + n - 1)[warm:] {
		seen[s] = true
	}
	for i := 1; i < n; i++ {
		if s := fmt.Sprintf("early %04d", i); !seen[s] {
			t.Errorf("segment %d is not placed: %v", i, seen)
			break
		}
	}
	release.Store(true)
	got := in.wait(warm + 2*n - 1)[warm+n-1:]
	if got[0][:4] != "0000" {
		t.Errorf("then comes %.20q", got[0])
	}
	for i := 1; i < n; i++ {
		if want := fmt.Sprintf("turn %04d", i); got[i] != want {
			t.Fatalf("%.20q, want %q", got[i], want)
		}
	}
	a.Close()
	if err := <-over; err != io.EOF {
		t.Error(err)
	}
	b.Close()
}

// 100 DDP streams in one association, one of which takes nothing although its
// peer sends more than a receive window: the others go on.
func TestStalledStreamDoesNotStallOthers(t *testing.T) {
	x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, nil)
	const n = 100
	var as, bs [n]*sctpadapt.Stream
	for i := range n {
		as[i], bs[i] = x.session(t)
	}
	var wg sync.WaitGroup
	sinks := make([]*texts, n)
	for i := range n {
		sinks[i] = newTexts()
		if i == 0 {
			sinks[i].stall = make(chan struct{})
		}
		wg.Go(func() {
			if err := bs[i].Receive(sinks[i]); err != io.EOF {
				t.Errorf("stream %d: %v", i, err)
			}
			bs[i].Close()
		})
	}
	send := func(i, k int) {
		for range k {
			if err := as[i].Append([]byte("header"), [][]byte{make([]byte, 1200)}); err != nil {
				t.Error(err)
				return
			}
			if as[i].Full() {
				if err := as[i].Flush(); err != nil {
					t.Error(err)
					return
				}
			}
		}
		if err := as[i].Flush(); err != nil {
			t.Error(err)
		}
	}
	send(0, 5000) // 6 MB, where the window has 4 MiB
	for i := 1; i < n; i++ {
		send(i, 100)
	}
	for i := 1; i < n; i++ {
		sinks[i].wait(100)
	}
	close(sinks[0].stall)
	sinks[0].wait(5000)
	for i := range n {
		as[i].Close()
	}
	wg.Wait()
	if s := x.ab.Stats(); s.HeldHere != 0 {
		t.Errorf("%d bytes are held at the end", s.HeldHere)
	}
}

// A stream whose user takes nothing leaves the receive window to the others, up to
// a limit. If that is reached and the user goes on taking nothing, the session
// ends, and no other.
func TestHoardingStreamIsTerminated(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, false)
	s, other := f.accept(1), f.accept(3)
	f.mux.Look() // from now on only the test calls it
	big, n := string(make([]byte, 1400)), uint16(0)
	segments := func(bytes int) {
		for ; bytes > 0; bytes -= len(big) {
			n++
			f.segment(1, n, big)
		}
	}
	segments(1 << 20)
	if f.held < 1<<20 {
		t.Errorf("%d bytes are held at once: the peer is not slowed down", f.held)
	}
	f.mux.Look()
	segments(7 << 20)
	if f.held > 64<<10 {
		t.Errorf("%d bytes of the window are taken by a stream that has stalled", f.held)
	}
	segments(2 << 20)
	if f.held < 1<<20 {
		t.Errorf("%d bytes are held beyond the limit: the peer is not slowed down", f.held)
	}
	f.mu.Lock()
	early := len(f.sent) - f.read
	f.mu.Unlock()
	if early != 0 {
		t.Error("the session was terminated at once")
	}
	for range sctpadapt.StallTicks {
		f.mux.Look()
	}
	f.want(1, 1, sctpadapt.FunctionTerminate, "")
	s.Close()
	other.Close()
	if f.held != 0 || f.aborted != "" {
		t.Errorf("%d bytes held, abort %q", f.held, f.aborted)
	}
}

// RFC 5043 section 10: numbers of 16 bits go round, in order, whatever the network
// does.
func TestNumbersGoRound(t *testing.T) {
	x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, relayed(sctptest.Faults{Loss: 0.002, Reorder: 0.01, Duplicate: 0.01}))
	a, b := x.session(t)
	const n = 150000
	over := make(chan error)
	in := &counting{}
	go func() { over <- b.Receive(in) }()
	for i := range uint32(n) {
		if err := a.Append(binary.BigEndian.AppendUint32(nil, i), nil); err != nil {
			t.Fatal(err)
		}
		if a.Full() {
			if err := a.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != io.EOF || in.n != n {
		t.Errorf("%d segments, then %v", in.n, err)
	}
	a.Close()
	b.Close()
}

// counting is a Sink that checks that segments are numbered.
type counting struct {
	texts
	n uint32
}

func (c *counting) Segment(seg []byte) error {
	if got := binary.BigEndian.Uint32(seg); got != c.n {
		return fmt.Errorf("segment %d where %d is due", got, c.n)
	}
	c.n++
	return nil
}

// Sessions from both ends at the same time, one after the other, more than there
// are streams.
func TestManySessionsFromBothEnds(t *testing.T) {
	x := &muxes{}
	cfg := config()
	cfg.Streams = 6
	cfg.Accept = func(a *sctp.Assoc) assoc.Receiver {
		x.b = sctpadapt.New(a, sctpadapt.Config{}, false)
		return x.b
	}
	eb := listen(t, cfg)
	ea := listen(t, cfg)
	a, err := ea.Dial(patient(t), eb.Addr(), sctp.DialConfig{Receiver: func(a *sctp.Assoc) assoc.Receiver {
		x.a = sctpadapt.New(a, sctpadapt.Config{}, true)
		return x.a
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var servers, clients sync.WaitGroup
	for _, m := range []*sctpadapt.Mux{x.a, x.b} {
		servers.Go(func() {
			for {
				r, err := m.Accept(ctx)
				if err != nil {
					return
				}
				s, err := r.Accept(sctpadapt.Session{})
				if err != nil {
					t.Error(err)
					return
				}
				servers.Go(func() {
					in := newTexts()
					if err := s.Receive(in); err != io.EOF || len(in.got) != 3 {
						t.Errorf("%v after %d segments", err, len(in.got))
					}
					s.Close()
				})
			}
		})
		clients.Go(func() {
			for range 60 {
				s, err := m.Initiate(patient(t), sctpadapt.Session{})
				for ; err != nil; s, err = m.Initiate(patient(t), sctpadapt.Session{}) {
					// The streams of the last sessions are not quiet yet.
					if ctx := patient(t); ctx.Err() != nil || !errors.Is(err, sctpadapt.ErrNoStream) {
						t.Error(err)
						return
					}
				}
				for range 3 {
					s.Append([]byte("segment"), nil)
				}
				if err := s.Flush(); err != nil {
					t.Error(err)
				}
				s.CloseWrite()
				if err := s.Receive(newTexts()); err != io.EOF {
					t.Error(err)
				}
				s.Close()
			}
		})
	}
	clients.Wait()
	cancel()
	servers.Wait()
}

var _ ddp.Placer = earlyPlacer{}

// Streams whose users are only slower than the network are slowed down, not
// terminated.
func TestBusyStreamsAreSlowedDown(t *testing.T) {
	x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, nil)
	const n, segments = 4, 10000
	var wg sync.WaitGroup
	var one sync.Mutex // the processor
	for range n {
		a, b := x.session(t)
		c := &slow{tally: &tally{}, one: &one}
		wg.Go(func() {
			if err := b.Receive(c); err != io.EOF || c.n != segments {
				t.Errorf("%d of %d segments, %v", c.n, segments, err)
			}
			b.Close()
		})
		wg.Go(func() {
			for range segments {
				if err := a.Append([]byte("header"), [][]byte{make([]byte, 1200)}); err != nil {
					t.Error(err)
					return
				}
				if a.Full() {
					if err := a.Flush(); err != nil {
						t.Error(err)
						return
					}
				}
			}
			if err := a.Flush(); err != nil {
				t.Error(err)
			}
			a.Close()
		})
	}
	wg.Wait()
	if s := x.ab.Stats(); s.HeldHere != 0 {
		t.Errorf("%d bytes are held at the end", s.HeldHere)
	}
}

// slow is a tally that needs some time for each segment, one at a time.
type slow struct {
	*tally
	one *sync.Mutex
	sum [32]byte
}

func (c *slow) Segment(seg []byte) error {
	c.one.Lock()
	defer c.one.Unlock()
	for range 10 {
		c.sum = sha256.Sum256(seg)
	}
	return c.tally.Segment(seg)
}
