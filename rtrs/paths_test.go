package rtrs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// journal is a handler that counts how often each write was executed. The header of a
// request is its number, its data the number again and again.
type journal struct {
	mu     sync.Mutex
	count  map[uint64]int
	last   map[uint64]uint64 // by place, the number modulo 64
	delay  func() <-chan time.Time
	after  func() // a request is executed, and before it is answered
	closed atomic.Int32
	wg     sync.WaitGroup
}

func newJournal() *journal {
	return &journal{count: make(map[uint64]int), last: make(map[uint64]uint64)}
}

func (j *journal) session(SessionInfo) (ServerHandler, error) { return j, nil }

func (j *journal) Serve(r *Request) {
	switch {
	case j.after != nil:
		j.wg.Go(func() {
			errno := j.do(r)
			j.after()
			r.Complete(errno)
		})
		return
	case j.delay == nil:
		r.CompleteMore(j.do(r))
		return
	}
	j.wg.Go(func() {
		<-j.delay()
		r.Complete(j.do(r))
	})
}

func (j *journal) do(r *Request) syscall.Errno {
	if len(r.Header) < 8 {
		return 0
	}
	n := binary.LittleEndian.Uint64(r.Header)
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.Dir == Read {
		fill(r.Data, j.last[n%64])
		return 0
	}
	if !bytes.Equal(r.Data, filled(len(r.Data), n)) {
		return syscall.EBADMSG
	}
	j.count[n]++
	j.last[n%64] = n
	return 0
}

func (j *journal) BatchEnd()               {}
func (j *journal) Closed(time.Time, error) { j.closed.Add(1) }

func (j *journal) executions(n uint64) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.count[n]
}

func fill(b []byte, n uint64) {
	for i := range b {
		b[i] = byte(n >> (8 * (i % 8)))
	}
}

func filled(size int, n uint64) []byte {
	b := make([]byte, size)
	fill(b, n)
	return b
}

// put writes number n.
func (j *journal) put(t testing.TB, cl *Client, n uint64, size int) syscall.Errno {
	t.Helper()
	return write(t, cl, int(n), filled(size, n))
}

// flows is a protector of loopback flows whose security association can be away.
type flows struct {
	transport.Protector
	away atomic.Bool
}

func newFlows() *flows { return &flows{Protector: transport.LoopbackOnly()} }

func (f *flows) Admit(ctx context.Context, flow transport.Flow, out bool, c transport.Monitored) (transport.Protection, error) {
	p, err := f.Protector.Admit(ctx, flow, out, c)
	return pausedAs{p, f}, err
}

type pausedAs struct {
	transport.Protection
	f *flows
}

func (p pausedAs) Paused() bool { return p.f.away.Load() }

// road is a path to a server that a test can break.
type road struct {
	*proxy
	*flows
}

// roads starts n paths to a server, and returns the configuration of a client that has
// them all.
func roads(t testing.TB, srv *testServer, n int) ([]road, ClientConfig) {
	var all []road
	cfg := clientConfig(newHost(t), srv.addr, "a")
	cfg.Paths = nil
	for i := range n {
		r := road{startProxy(t, srv.addr), newFlows()}
		all = append(all, r)
		cfg.Paths = append(cfg.Paths, r.config(fmt.Sprintf("p%d", i)))
	}
	return all, cfg
}

func (r road) config(name string) PathConfig {
	return PathConfig{Name: name, Remote: r.addr(), Transport: &transport.Config{Protector: r.flows}}
}

// setAway has the path without its security association, or with it again: nothing
// passes meanwhile, and nothing is lost.
func (r road) setAway(on bool) {
	r.away.Store(on)
	r.freeze(on)
}

func allUp(t testing.TB, cl *Client) {
	t.Helper()
	eventually(t, "all paths are up", func() bool {
		for _, p := range cl.Info().Paths {
			if p.State != PathConnected {
				return false
			}
		}
		return true
	})
}

// A write that is being executed when its path is cut is answered by the next path, when
// its only execution has ended. Nothing waits for that but the write itself.
func TestWriteThatIsBeingExecutedIsNotExecutedAgain(t *testing.T) {
	for _, paths := range []int{1, 2} {
		t.Run(fmt.Sprint(paths), func(t *testing.T) {
			m := newMemory(4096)
			entered, release := make(chan struct{}, 8), make(chan struct{})
			var executions atomic.Int32
			m.gate = func(r *Request) {
				if r.Dir == Write && binary.LittleEndian.Uint64(r.Header) == 0 {
					executions.Add(1)
					entered <- struct{}{}
					<-release
				}
			}
			srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
			rs, cfg := roads(t, srv, paths)
			cl := connect(t, cfg)
			allUp(t, cl)
			p, w := get(t, cl), newWaiter()
			copy(p.Buffer(), bytes.Repeat([]byte{1}, 512))
			p.Submit(Write, header(0), 512, w)
			<-entered
			for _, r := range rs {
				r.cut()
			}
			// Another I/O passes, although the first is still at the handler.
			if e := write(t, cl, 1024, []byte("beside")); e != 0 {
				t.Fatal(e)
			}
			select {
			case e := <-w.ch:
				t.Fatalf("the write ended (%v) before its execution", e)
			default:
			}
			close(release)
			if e := w.wait(t); e != 0 {
				t.Fatal(e)
			}
			cl.Put(p)
			if n := executions.Load(); n != 1 {
				t.Errorf("%d executions", n)
			}
			if len(m.closed) != 0 {
				t.Error("the session has ended")
			}
		})
	}
}

// A write whose answer was lost is answered from memory.
func TestWriteWhoseAnswerWasLostIsNotExecutedAgain(t *testing.T) {
	if n := answerLost(t); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// answerLost returns how often a write is executed whose first answer is lost.
func answerLost(t *testing.T) (executions int) {
	j := newJournal()
	executed, answered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	j.after = func() {
		once.Do(func() {
			close(executed)
			<-answered
		})
	}
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 1)
	cl := connect(t, cfg)
	p, w := get(t, cl), newWaiter()
	fill(p.Buffer()[:4096], 1)
	p.Submit(Write, header(1), 4096, w)
	<-executed
	rs[0].freeze(true)
	close(answered)
	j.wg.Wait() // the answer is on its way, and goes no further
	rs[0].cut()
	rs[0].freeze(false)
	if e := w.wait(t); e != 0 {
		t.Error(e)
	}
	cl.Put(p)
	return j.executions(1)
}

// What waits on a path whose security association is away goes by another after two
// seconds. The path is not torn down, and what comes by it late is not executed.
func TestPathWhoseSAIsAwayIsAvoided(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cfg.Policy = Preferred
	cl := connect(t, cfg)
	allUp(t, cl)
	rs[0].setAway(true)
	// All permits are used: each write is stuck on the first path.
	var ps []*Permit
	var ws []*waiter
	for n := range cl.QueueDepth() {
		p, w := get(t, cl), newWaiter()
		fill(p.Buffer()[:512], uint64(n))
		p.Submit(Write, header(n), 512, w)
		ps, ws = append(ps, p), append(ws, w)
	}
	for _, w := range ws {
		if e := w.wait(t); e != 0 {
			t.Fatal(e)
		}
	}
	cl.Put(ps...)
	// The same places are written once more before what is stuck comes loose.
	for n := range cl.QueueDepth() {
		if e := j.put(t, cl, uint64(n+64*1000), 512); e != 0 {
			t.Fatal(e)
		}
	}
	i := cl.Info()
	if i.Paths[0].State != PathConnected || !i.Paths[0].Avoided || i.Paths[0].Incarnation != 1 || i.Paths[0].Moved == 0 {
		t.Errorf("the path whose SA is away: %+v", i.Paths[0])
	}
	rs[0].setAway(false)
	eventually(t, "the path is in use again", func() bool {
		i := cl.Info().Paths[0]
		return !i.Avoided && i.InFlight == 0
	})
	for n := range cl.QueueDepth() {
		if got := j.executions(uint64(n)); got != 1 {
			t.Errorf("write %d was executed %d times", n, got)
		}
		if got := j.last[uint64(n)%64]; got < 64*1000 {
			t.Errorf("place %d has %d, which was written before", n%64, got)
		}
	}
	before := cl.Info().Paths[0].Stats.Writes
	if e := j.put(t, cl, 7, 512); e != 0 || cl.Info().Paths[0].Incarnation != 1 {
		t.Errorf("%v, %+v", e, cl.Info().Paths[0])
	}
	eventually(t, "it is counted, which follows its end", func() bool { return cl.Info().Paths[0].Stats.Writes == before+1 })
}

// TestStormOverSeveralPaths breaks paths in each way, at random, removes and adds them,
// under I/O whose data is checked: each write is executed once, and none after a later one
// to its place.
func TestStormOverSeveralPaths(t *testing.T) {
	for _, policy := range []Policy{MinInFlight, RoundRobin, MinLatency, Preferred} {
		t.Run(policy.String(), func(t *testing.T) { storm(t, policy, 3) })
	}
}

func storm(t *testing.T, policy Policy, paths int) {
	j := newJournal()
	j.delay = func() <-chan time.Time { return time.After(time.Duration(rand.IntN(2000)) * time.Microsecond) }
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	t.Cleanup(j.wg.Wait)
	rs, cfg := roads(t, srv, paths)
	cfg.Policy, cfg.QueueDepth = policy, 16
	cl := connect(t, cfg)
	var stop atomic.Bool
	var ops atomic.Int64
	var wg sync.WaitGroup
	for place := range uint64(8) {
		wg.Go(func() {
			for n := place + 64; !stop.Load(); n += 64 {
				if e := j.put(t, cl, n, 1+rand.IntN(cl.MaxIO())); e != 0 {
					t.Errorf("write %d: %v", n, e)
					return
				}
				if got := j.executions(n); got != 1 {
					t.Errorf("write %d was executed %d times", n, got)
					return
				}
				got := make([]byte, 1+rand.IntN(1000))
				if e := read(t, cl, int(place), got); e != 0 || !bytes.Equal(got, filled(len(got), n)) {
					t.Errorf("place %d, write %d: %v, or other data", place, n, e)
					return
				}
				ops.Add(1)
			}
		})
	}
	rnd := rand.New(rand.NewPCG(uint64(policy), 7))
	for range 25 {
		before := ops.Load()
		eventually(t, "I/O flows", func() bool { return ops.Load() > before+10 || t.Failed() })
		i := rnd.IntN(paths)
		switch r, p := rs[i], cl.Paths()[rnd.IntN(paths)]; rnd.IntN(7) {
		case 0:
			r.cut()
		case 1: // all of them
			for _, r := range rs {
				r.cut()
			}
		case 2:
			r.setDown(true)
			r.cut()
			rs[(i+1)%paths].setDown(false)
		case 3:
			r.setAway(true)
		case 4:
			p.Disconnect()
			cl.Paths()[(i+1)%paths].Reconnect()
		case 5:
			name := p.Name()
			var k int
			fmt.Sscanf(name, "p%d", &k)
			p.Remove()
			if _, err := cl.AddPath(rs[k].config(name)); err != nil {
				t.Fatal(err)
			}
		case 6:
			for _, p := range cl.Paths() {
				p.Reconnect()
			}
		}
		if rnd.IntN(3) == 0 {
			for _, r := range rs {
				r.setDown(false)
				r.setAway(false)
			}
			for _, p := range cl.Paths() {
				p.Reconnect()
			}
		}
		if none := func() bool { // each fault may have taken the last path
			for _, p := range cl.Info().Paths {
				if p.State == PathConnected && !p.Avoided {
					return false
				}
			}
			return true
		}(); none {
			for i, r := range rs {
				r.setDown(false)
				r.setAway(false)
				cl.Paths()[i].Reconnect()
			}
		}
	}
	for _, r := range rs {
		r.setDown(false)
		r.setAway(false)
	}
	for _, p := range cl.Paths() {
		p.Reconnect()
	}
	allUp(t, cl)
	stop.Store(true)
	wg.Wait()
	if n := j.closed.Load(); n != 0 {
		t.Errorf("the session ended %d times", n)
	}
	t.Logf("%d writes and reads", ops.Load())
}

// Two servers behind the addresses of one session are noticed: the path that comes up second
// is refused, with words, as long as the first answers.
func TestPathsToDifferentServers(t *testing.T) {
	a := startServer(t, ServerConfig{NewSession: newMemory(4096).session})
	b := startServer(t, ServerConfig{NewSession: newMemory(4096).session})
	cfg := clientConfig(newHost(t), a.addr, "a")
	cfg.challengeWait = testTimeout // the first answers, however slow the machine is
	cfg.Paths = append(cfg.Paths, PathConfig{Remote: b.addr, Transport: loopback()})
	cl := connect(t, cfg)
	first := 0
	if cl.Info().Paths[1].State == PathConnected {
		first = 1
	}
	eventually(t, "the other path is refused", func() bool {
		return errors.Is(cl.Info().Paths[1-first].LastError, ErrAnotherServer)
	})
	if e := write(t, cl, 0, []byte("x")); e != 0 || cl.Info().Paths[first].State != PathConnected {
		t.Errorf("%v, %+v", e, cl.Info().Paths[first])
	}
}

// I/O is spread as the policy has it.
func TestPolicies(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	_, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	allUp(t, cl)
	for _, c := range []struct {
		policy Policy
		even   bool
	}{{RoundRobin, true}, {MinInFlight, true}, {Preferred, false}} {
		cl.SetPolicy(c.policy)
		before := cl.Info()
		var ps []*Permit
		var ws []*waiter
		for range 32 {
			p, w := get(t, cl), newWaiter()
			p.Submit(Read, header(0), 512, w)
			ps, ws = append(ps, p), append(ws, w)
		}
		for _, w := range ws {
			w.wait(t)
		}
		cl.Put(ps...)
		n := [2]uint64{}
		eventually(t, "all are counted", func() bool {
			for i, p := range cl.Info().Paths {
				n[i] = p.Stats.Reads - before.Paths[i].Stats.Reads
			}
			return n[0]+n[1] == 32
		})
		if even := n[0] == 16; even != c.even || !c.even && n[0] != 32 {
			t.Errorf("%v: %d and %d", c.policy, n[0], n[1])
		}
	}
	for _, name := range policies {
		if p, err := ParsePolicy(name); err != nil || p.String() != name {
			t.Errorf("%q: %v, %v", name, p, err)
		}
	}
	if _, err := ParsePolicy("fastest"); err == nil {
		t.Error("a policy that there is not")
	}
}

// What is sent again is counted by the path that carries it then, by its kind, and what
// requests take is measured with one path as well.
func TestReplaysAreCounted(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cfg.Policy = Preferred
	cfg.KindOf = func(p *Permit) string { return fmt.Sprint(p.dir, " of ", p.Header()[0]) }
	cl := connect(t, cfg)
	allUp(t, cl)
	rs[0].freeze(true)
	p, w := get(t, cl), newWaiter()
	p.Submit(Read, header(3), 512, w)
	q, u := submit(t, cl, 5)
	rs[0].setDown(true)
	rs[0].cut()
	for _, w := range []*waiter{w, u} {
		if e := w.wait(t); e != 0 {
			t.Fatal(e)
		}
	}
	cl.Put(p, q)
	i := cl.Info().Paths
	if got := fmt.Sprint(i[1].Replays); got != "map[read of 3:1 write of 5:1]" || len(i[0].Replays) != 0 || i[0].Moved != 2 {
		t.Errorf("replays %s and %v, %d moved", got, i[0].Replays, i[0].Moved)
	}
	rs[0].freeze(false)
	cl.Paths()[0].Remove()
	before := cl.Info().Paths[0].Latency
	for n := range uint64(timedEvery * 4) {
		if e := j.put(t, cl, n, 512); e != 0 {
			t.Fatal(e)
		}
	}
	if now := cl.Info().Paths[0].Latency; now == 0 || now == before {
		t.Errorf("a request takes %v, before %v", now, before)
	}
}

// The policy Preferred goes by the order of the paths as it is now: after one was removed,
// added, or they were arranged in another way.
func TestPreferredFollowsTheOrderOfPaths(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	rs, cfg := roads(t, srv, 3)
	cfg.Policy = Preferred
	cl := connect(t, cfg)
	goesBy := func(name string) {
		t.Helper()
		allUp(t, cl)
		before := map[string]uint64{}
		for _, p := range cl.Info().Paths {
			before[p.Name] = p.Stats.Writes
		}
		if e := j.put(t, cl, 1, 512); e != 0 {
			t.Fatal(e)
		}
		eventually(t, "it is counted", func() bool {
			for _, p := range cl.Info().Paths {
				if p.Stats.Writes > before[p.Name] {
					if p.Name != name {
						t.Fatalf("I/O goes by %s, want %s", p.Name, name)
					}
					return true
				}
			}
			return false
		})
	}
	goesBy("p0")
	cl.Arrange([]string{"p2", "p1"})
	goesBy("p2")
	cl.Paths()[0].Remove()
	goesBy("p1")
	if _, err := cl.AddPath(rs[2].config("p2")); err != nil {
		t.Fatal(err)
	}
	goesBy("p1")
	cl.Paths()[0].Remove() // p0 was arranged behind it, and came up before p2
	goesBy("p0")
	cl.Arrange([]string{"p2", "p0"})
	goesBy("p2")
}

// Nothing of a path is left when it is removed, and its name may be used again.
func TestPathsComeAndGo(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	rs, cfg := roads(t, srv, 1)
	cl := connect(t, cfg)
	one := cfg.ULP.Usage().MRs
	for range 3 {
		p, err := cl.AddPath(rs[0].config("more"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.AddPath(rs[0].config("more")); err == nil {
			t.Fatal("a name was taken twice")
		}
		allUp(t, cl)
		held := get(t, cl) // whose data may be in the path's memory
		p.Remove()
		fill(held.Buffer()[:512], 3)
		w := newWaiter()
		held.Submit(Write, header(3), 512, w)
		if e := w.wait(t); e != 0 {
			t.Fatal(e)
		}
		cl.Put(held)
		if n := cfg.ULP.Usage().MRs; n != one {
			t.Errorf("%d memory regions, %d with one path", n, one)
		}
	}
	if _, err := cl.AddPath(rs[0].config("more")); err != nil {
		t.Fatal(err)
	}
	allUp(t, cl)
	cl.Paths()[0].Disconnect()
	eventually(t, "the first is disconnected", func() bool { return cl.Info().Paths[0].State == PathDisconnected })
	if e := j.put(t, cl, 1, 512); e != 0 {
		t.Fatal(e)
	}
	cl.Paths()[0].Reconnect()
	allUp(t, cl)
}

// A peer that leaves one session behind after the other, without a word, has no more of
// them than it may have sessions.
func TestSessionsThatAreLeftBehindAreBounded(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, MaxSessionsPerPeer: 2, Linger: time.Minute})
	for i := range 6 {
		r := road{startProxy(t, srv.addr), newFlows()}
		cfg := clientConfig(newHost(t), r.addr(), fmt.Sprint("left ", i))
		cfg.Paths = []PathConfig{r.config("p")}
		connect(t, cfg)
		r.setDown(true)
		r.cut()
		eventually(t, "its path is gone", func() bool {
			paths, _ := srv.Rooms()
			return len(paths) == 0
		})
		if n := len(srv.Sessions()); n > 2 {
			t.Fatalf("%d sessions of a peer that may have 2", n)
		}
	}
}
