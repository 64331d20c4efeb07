package rtrs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// keeper is a server's handler that keeps the requests, in the order in which they arrive.
type keeper struct{ arrived chan *Request }

func (k keeper) session(SessionInfo) (ServerHandler, error) { return k, nil }
func (k keeper) Serve(r *Request)                           { k.arrived <- r }
func (k keeper) BatchEnd()                                  {}
func (k keeper) Closed(time.Time, error)                    {}

// Control requests go at once as far as the queue has room for them, and the queue gets its
// permits back.
func TestControlRequestsGoAtOnce(t *testing.T) {
	const requests = 2 * maxBorrowed
	k := keeper{make(chan *Request, requests)}
	srv := startServer(t, ServerConfig{NewSession: k.session, QueueDepth: 2 * requests})
	cfg := clientConfig(newHost(t), srv.addr, "a")
	cfg.QueueDepth = 2 * requests
	cl := connect(t, cfg)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			answer := make([]byte, 8)
			if err := cl.Control(testContext(t), header(i), answer); err != nil || int(binary.LittleEndian.Uint64(answer)) != i {
				t.Errorf("request %d: %x, %v", i, answer, err)
			}
		})
	}
	var held []*Request
	for range maxBorrowed + 1 {
		held = append(held, <-k.arrived)
	}
	select {
	case <-k.arrived:
		t.Error("more go at once than may")
	default:
	}
	for range requests - len(held) {
		held[0].answer()
		held = append(held[1:], <-k.arrived)
	}
	for _, r := range held {
		r.answer()
	}
	wg.Wait()
	all := make([]*Permit, cl.QueueDepth())
	if ok, err := cl.TryGetN(all); !ok || err != nil {
		t.Fatalf("the queue has not all of its permits: %v", err)
	}
	cl.Put(all...)
}

// answer answers a request with its header.
func (r *Request) answer() {
	copy(r.Data, r.Header)
	r.Complete(0)
}

// The server receives control requests in the order in which they are sent, also those that
// nobody waits for any more: a CLOSE never before its OPEN.
func TestControlRequestsKeepTheirOrder(t *testing.T) {
	const requests = 32
	k := keeper{make(chan *Request, requests)}
	srv := startServer(t, ServerConfig{NewSession: k.session})
	cfg := clientConfig(newHost(t), srv.addr, "a")
	cfg.Conns = 4
	cl := connect(t, cfg)
	over, cancel := context.WithCancel(testContext(t))
	cancel()
	for i := range requests {
		if err := cl.Control(over, header(i), make([]byte, 8)); !errors.Is(err, context.Canceled) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	var order, want []int
	for i := range requests {
		r := <-k.arrived
		order, want = append(order, int(binary.LittleEndian.Uint64(r.Header))), append(want, i)
		r.answer()
	}
	if !slices.Equal(order, want) {
		t.Errorf("they came as %v", order)
	}
}

// A permit whose last request has gone on by another path, and is not answered by the one of
// control requests, is borrowed for none of these: it would fail at once, for as long as that
// path's security association is away.
func TestControlRequestsBorrowWhatTheirPathHasRoomFor(t *testing.T) {
	k := keeper{make(chan *Request, 4)}
	srv := startServer(t, ServerConfig{NewSession: k.session})
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	ended := make(chan error, 4)
	ask := func(ctx context.Context) { ended <- cl.Control(ctx, header(1), make([]byte, 8)) }
	go ask(testContext(t))
	held := <-k.arrived // it has the permit of control requests
	cl.mu.Lock()
	path := cl.ctlPath
	cl.mu.Unlock()
	borrowed := cl.pool.borrow(func(p *Permit) bool { return p.id%cl.cfg.Conns == cl.depth%cl.cfg.Conns })
	moved := &path.path.chunks[borrowed.id].busy
	moved.Store(true)
	cl.Put(borrowed) // it is the next that would be borrowed
	go ask(testContext(t))
	select {
	case r := <-k.arrived:
		if int(r.id) == borrowed.id {
			t.Error("it is the permit that is in use")
		}
		r.answer()
	case err := <-ended:
		t.Fatalf("it ended at once: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for i := range cl.depth {
		path.path.chunks[i].busy.Store(true)
	}
	over, cancel := context.WithCancel(testContext(t))
	cancel()
	ask(over)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("without a permit it does not wait for one: %v", err)
	}
	// Nor does who waits get one that comes back.
	w := make(chan *Permit, 1)
	cl.controls.mu.Lock()
	cl.controls.waiters = append(cl.controls.waiters, w)
	cl.controls.borrowed++
	cl.controls.mu.Unlock()
	cl.controls.put(cl.pool.borrow(func(*Permit) bool { return true }))
	held.answer()
	if p := <-w; p.id != cl.depth {
		t.Errorf("permit %d", p.id)
	} else {
		cl.controls.put(p)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for i := range cl.depth {
		path.path.chunks[i].busy.Store(false)
	}
}

// A path that is lost while it waits for its turn to come into use takes no control requests:
// each would fail at once, for ever.
func TestPathThatIsLostBeforeItsUseTakesNoControlRequests(t *testing.T) {
	srv := startServer(t, ServerConfig{NewSession: newMemory(1).session})
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	cl.mu.Lock()
	lost, epoch := cl.ctlPath, cl.epoch
	cl.mu.Unlock()
	srv.stop(t)
	eventually(t, "the path is lost", lost.isDown)
	if err := cl.enter(testContext(t), lost, epoch); err == nil || err != lost.err {
		t.Errorf("it came into use: %v", err)
	}
	if cl.HasPath() {
		t.Error("control requests take it")
	}
}

// The memory of a control request is there for as long as it is used, though the client is
// closed meanwhile.
func TestControlRequestOfAClientThatIsClosed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	k := keeper{make(chan *Request, 8)}
	srv := startServer(t, ServerConfig{NewSession: k.session})
	for i := range 50 {
		cl := connect(t, clientConfig(newHost(t), srv.addr, fmt.Sprint(i)))
		ended := make(chan error, 1)
		go func() { ended <- cl.Control(testContext(t), header(0), make([]byte, 4096)) }()
		r := <-k.arrived
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, ErrPathLost) && !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
		r.Complete(0)
	}
}
