package rdmalib

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/wakes"
)

// readable reports whether something has come on one of the sockets of a ring.
func readable(r *Ring) bool {
	var fds []unix.PollFd
	for i := range r.Sockets {
		if s := load32(&r.Sockets[i]); s != 0 {
			fds = append(fds, unix.PollFd{Fd: s - 1, Events: unix.POLLIN})
		}
	}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// TestWhoPollsReceives: the library can see on a ring's sockets that something has come, and Progress brings it: with one
// processor no goroutine of the engine runs before it does, unless the test's is preempted just then.
func TestWhoPollsReceives(t *testing.T) {
	client, server, cq, sq := longPair(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	mem, lkey, _ := client.mapped(64)
	const rounds = 100
	seen, brought := 0, 0
	for readable(server.ring) { // the ready-to-receive message
		runtime.Gosched()
	}
	for range rounds {
		server.ok(server.e.PostRecv(sq, 1, nil, 0))
		if readable(server.ring) {
			t.Fatal("something has come that nobody has sent")
		}
		s := Send{ID: 1, Op: SendSend, Flags: FlagSignaled | FlagInline, SG: &SGE{addrOf(mem), 0, lkey}, NSGE: 1}
		_, errno := client.e.PostSend(cq, &s, 1)
		client.ok(errno)
		if readable(server.ring) {
			seen++
		}
		brought += server.e.Progress(server.cq)
		server.drain()
		client.drain()
	}
	if seen < rounds/4 || brought < rounds/4 {
		t.Errorf("of %d messages the sockets showed %d, and Progress brought %d", rounds, seen, brought)
	}
}

// TestSocketsOfARing: a ring has a stream's socket while that is up, and is left alone when it is the program's again.
func TestSocketsOfARing(t *testing.T) {
	client, server, cq, sq := longPair(t)
	if load32(&client.ring.Sockets[0]) == 0 || load32(&server.ring.Sockets[0]) == 0 {
		t.Fatalf("the rings have sockets %v and %v", client.ring.Sockets, server.ring.Sockets)
	}
	mark := client.ring.Sockets[0]
	queue := client.e.cqs.get(client.cq)
	client.ok(client.e.DestroyQP(cq))
	client.ok(client.e.DestroyCQ(client.cq))
	client.ring.Sockets[0] = mark // whatever the program does with that memory
	client.want(cmDisconnected)
	queue.replaceSocket(mark, 0) // late
	if client.ring.Sockets[0] != mark {
		t.Error("the ring of a destroyed queue was written to")
	}
	server.want(cmDisconnected)
	for i := range server.ring.Sockets {
		if load32(&server.ring.Sockets[i]) != 0 {
			t.Errorf("the ring has sockets %v when its stream is over", server.ring.Sockets)
		}
	}
	server.ok(server.e.DestroyQP(sq))
}

// TestPollsThatFindNothing: a poll calls the engine only if something has come.
func TestPollsThatFindNothing(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("needs libibverbs-dev")
	}
	program := filepath.Join(t.TempDir(), "polls")
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-Wno-unused-function", "-Ic", "-o", program, "testdata/polls.c", "c/data.c", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func load32(p *int32) int32 { return atomic.LoadInt32(p) }

// TestEngineReliesOnWhoSpins: it is not woken for what a program that spins brings itself, until that waits for an event, or
// stops and something has waited, after which it is woken for some time whatever the program does.
func TestEngineReliesOnWhoSpins(t *testing.T) {
	client, server, cq, sq := longPair(t)
	mem, lkey, _ := client.mapped(64)
	c := server.e.cqs.get(server.cq)
	c.watched.Store(true) // by the test
	now, w := time.Now(), watch{}
	// passes has the program poll for some looks, without success.
	passes := func(looks int, polls uint64) {
		for range looks {
			atomic.AddUint64(&server.ring.Spins, polls)
			now = now.Add(watchEvery)
			if !c.look(&w, now) {
				t.Fatal("it is not looked at the program any more")
			}
		}
	}
	quiet := func() bool { return atomic.LoadUint32(&server.ring.Quiet) == 1 }
	send := func() {
		server.ok(server.e.PostRecv(sq, 1, nil, 0))
		s := Send{ID: 1, Op: SendSend, Flags: FlagSignaled | FlagInline, SG: &SGE{addrOf(mem), 0, lkey}, NSGE: 1}
		_, errno := client.e.PostSend(cq, &s, 1)
		client.ok(errno)
		client.drain()
	}
	passes(slowAfter, spinning)
	if quiet() {
		t.Error("the engine relies on a program that polls now and then")
	}
	passes(1, spinning+1)
	woken, pass := 0, wakes.New(t)
	for range 100 {
		before := load(&server.ring.Tail)
		send()
		pass()
		if !quiet() {
			t.Fatal("the engine does not rely on a program that spins")
		}
		if load(&server.ring.Tail) != before {
			woken++
		}
		for load(&server.ring.Tail) == before {
			server.e.Progress(server.cq)
			runtime.Gosched()
		}
		server.drain()
		passes(slowAfter-1, 0) // it had no processor
		passes(1, spinning+1)
	}

	if woken > 10 { // not by what came before
		t.Errorf("the engine was woken for %d of 100 messages while the program spins", woken)
	}

	atomic.StoreUint64(&server.ring.Armed, load(&server.ring.Tail)<<2|2)
	server.e.Sleeps(server.cq)
	passes(10, spinning+1)
	if quiet() {
		t.Error("the engine relies on the polls of a program that waits for an event")
	}
	send()
	server.drain() // by the engine
	if load(&server.ring.Armed) != 0 {
		t.Fatal("there was no event")
	}

	for pause := pauseMin; pause < 8*pauseMin; pause *= 2 {
		passes(1, spinning+1)
		if !quiet() {
			t.Fatal("the engine does not rely on a program that spins again")
		}
		send()
		passes(slowAfter, 0)
		server.drain() // by the engine
		for slept := watchEvery; slept < pause; slept += watchEvery {
			if passes(1, spinning+1); quiet() {
				t.Fatalf("it relies on it again after %v, not %v", slept, pause)
			}
		}
		passes(1, spinning+1)
	}
	passes(slowAfter, 0) // nothing has waited
	if passes(1, spinning+1); !quiet() {
		t.Error("there is a pause though nothing has waited")
	}
}

// TestEngineReliesOnNobodyWhoSeesNotAllStreams: a ring has room for some sockets, and what comes on others the engine brings.
func TestEngineReliesOnNobodyWhoSeesNotAllStreams(t *testing.T) {
	client, server := newProgram(t), newProgram(t)
	_, to := server.listen("127.0.0.1:0")
	c := server.e.cqs.get(server.cq)
	c.watched.Store(true) // by the test
	w := watch{}
	quiet := func() bool {
		atomic.AddUint64(&server.ring.Spins, spinning+1)
		c.look(&w, time.Now())
		return atomic.LoadUint32(&server.ring.Quiet) == 1
	}
	var from, at []uint32
	for i := range len(server.ring.Sockets) + 2 {
		id := client.id(2)
		client.resolve(id, to)
		from, at = append(from, client.qp()), append(at, server.qp())
		client.ok(client.connect(id, param(from[i], "", 4, 4)))
		server.ok(server.accept(server.want(cmConnectRequest).id, uint64(3+i), param(at[i], "", 4, 4)))
		client.want(cmEstablished)
		server.want(cmEstablished)
		if want := i < len(server.ring.Sockets); quiet() != want {
			t.Fatalf("with %d streams the engine relies on a program that spins: %v, want %v", i+1, !want, want)
		}
	}
	for i := range from {
		server.ok(server.e.PostRecv(at[i], 1, nil, 0))
		s := Send{ID: 1, Op: SendSend, Flags: FlagSignaled}
		_, errno := client.e.PostSend(from[i], &s, 1)
		client.ok(errno)
		client.drain()
		server.drain() // by the engine
	}
	for range 2 {
		server.e.DestroyQP(at[len(at)-1])
		at = at[:len(at)-1]
	}
	for !quiet() { // once those streams are over
		runtime.Gosched()
	}
}

// TestRingsThatAreFreed: the engine looks at no ring that is the library's again, which may have given it back to the kernel. The
// process would end by a signal otherwise.
func TestRingsThatAreFreed(t *testing.T) {
	p := newProgram(t)
	type room struct {
		ring Ring
		wcs  [4]WC
	}
	ringAt := func() (*Ring, []byte) {
		mem, err := unix.Mmap(-1, 0, int(unsafe.Sizeof(room{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		r := (*room)(unsafe.Pointer(&mem[0]))
		r.ring = Ring{FD: -1, Mask: 3, WC: &r.wcs[0]}
		return &r.ring, mem
	}
	ring, mem := ringAt()
	h, errno := p.e.CreateCQ(ring)
	p.ok(errno)
	c := p.e.cqs.get(h)
	over := make(chan struct{})
	go func() {
		defer close(over)
		now, w := time.Now(), watch{}
		for polls := uint64(0); ; polls++ {
			w.spins -= polls % 2 * (spinning + 1) // it has polled, or not
			w.slow %= slowAfter
			now = now.Add(watchEvery)
			if !c.look(&w, now) {
				return
			}
		}
	}()
	for range 5000 {
		next, more := ringAt()
		p.ok(p.e.ResizeCQ(h, next))
		if err := unix.Munmap(mem); err != nil {
			t.Fatal(err)
		}
		mem = more
	}
	p.ok(p.e.DestroyCQ(h))
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
	<-over
}
