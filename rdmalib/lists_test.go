package rdmalib

import (
	"bytes"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

// longPair is pair of queue pairs that are made for the longest lists.
func longPair(t *testing.T) (client, server *program, cq, sq uint32) {
	t.Helper()
	server, client = newProgram(t), newProgram(t)
	_, to := server.listen("127.0.0.1:0")
	id := client.id(2)
	client.resolve(id, to)
	for _, x := range []struct {
		p *program
		q *uint32
	}{{client, &cq}, {server, &sq}} {
		h, errno := x.p.e.CreateQP(&QPConfig{PD: x.p.pd, SendCQ: x.p.cq, RecvCQ: x.p.cq, MaxSend: 8, MaxRecv: 8, SendSGE: verbs.MaxSGE, RecvSGE: verbs.MaxSGE})
		x.p.ok(errno)
		*x.q = h
	}
	client.ok(client.connect(id, param(cq, "", 4, 4)))
	server.ok(server.accept(server.want(cmConnectRequest).id, 3, param(sq, "", 4, 4)))
	client.want(cmEstablished)
	server.want(cmEstablished)
	return client, server, cq, sq
}

// drain waits for a completion and takes it.
func (p *program) drain() {
	for p.ring.Head == load(&p.ring.Tail) {
		runtime.Gosched()
	}
	atomic.AddUint64(&p.ring.Head, 1)
}

// TestLongLists: what a queue pair is made for is what it takes, either way and as the sink of a Read, and no more; posting it,
// as posting one piece, allocates nothing.
func TestLongLists(t *testing.T) {
	client, server, cq, sq := longPair(t)
	mem, lkey, _ := client.mapped(1 << 16)
	far, flkey, frkey := server.mapped(1 << 16)
	pieces := func(b []byte, key uint32, n int) (l []SGE) {
		for i := range n {
			l = append(l, SGE{addrOf(b) + uint64(i*7%n)*1000, uint32(100 + i), key})
		}
		return l
	}
	joined := func(b []byte, l []SGE) (all []byte) {
		for _, x := range l {
			all = append(all, b[x.Addr-addrOf(b):][:x.Len]...)
		}
		return all
	}
	from, into, back := pieces(mem, lkey, verbs.MaxSGE), pieces(far, flkey, verbs.MaxSGE), pieces(mem[32<<10:], lkey, verbs.MaxSGE)
	slices.Reverse(into)
	post := func(op uint32, l []SGE) syscall.Errno {
		s := Send{ID: 1, Op: op, Flags: FlagSignaled, SG: &l[0], NSGE: uint32(len(l))}
		if op != SendSend {
			s.RAddr, s.RKey = addrOf(far[40<<10:]), frkey
		}
		_, errno := client.e.PostSend(cq, &s, 1)
		return errno
	}
	for i := range mem[:32<<10] {
		mem[i] = byte(i * i >> 3)
	}
	want := joined(mem, from)
	send := func() {
		server.ok(server.e.PostRecv(sq, 1, &into[0], uint32(len(into))))
		client.ok(post(SendSend, from))
		client.drain()
		server.drain()
	}
	if send(); !bytes.Equal(joined(far, into), want) {
		t.Error("a Send brings something else")
	}
	client.ok(post(SendWrite, from))
	client.ok(post(SendRead, back))
	client.drain()
	client.drain()
	if !bytes.Equal(far[40<<10:][:len(want)], want) || !bytes.Equal(joined(mem, back), want) {
		t.Error("a Write or Read brings something else")
	}
	more := append(slices.Clone(from), from[0])
	if errno := post(SendWrite, more); errno != syscall.EINVAL {
		t.Errorf("a send of one element more: %v", errno)
	}
	if errno := server.e.PostRecv(sq, 1, &more[0], uint32(len(more))); errno != syscall.EINVAL {
		t.Errorf("a receive of one element more: %v", errno)
	}
	if raceEnabled {
		return
	}
	for range 2 {
		if n := testing.AllocsPerRun(200, send); n >= 1 {
			t.Errorf("lists of %d: %v allocations for a Send, its receive and their completions", len(from), n)
		}
		from, into = from[:1], into[:1]
		into[0].Len = from[0].Len
	}
}

// TestSharedQueueOfLongLists: a shared receive queue takes lists as long as it is made for.
func TestSharedQueueOfLongLists(t *testing.T) {
	p := newProgram(t)
	mem, lkey, _ := p.mapped(1 << 12)
	for _, most := range []uint32{0, verbs.DefaultSGE, verbs.MaxSGE} {
		h, errno := p.e.CreateSRQ(p.pd, 4, most)
		p.ok(errno)
		most = max(most, verbs.DefaultSGE)
		l := slices.Repeat([]SGE{{addrOf(mem), 8, lkey}}, int(most)+1)
		p.ok(p.e.PostSRQRecv(h, 1, &l[0], most))
		if errno := p.e.PostSRQRecv(h, 1, &l[0], most+1); errno != syscall.EINVAL {
			t.Errorf("%d elements in a queue for %d: %v", most+1, most, errno)
		}
		p.ok(p.e.DestroySRQ(h))
	}
	if _, errno := p.e.CreateSRQ(p.pd, 4, verbs.MaxSGE+1); errno != syscall.EINVAL {
		t.Errorf("a queue for lists of %d: %v", verbs.MaxSGE+1, errno)
	}
	if _, errno := p.e.CreateQP(&QPConfig{PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq, MaxSend: 1, MaxRecv: 1, SendSGE: verbs.MaxSGE + 1}); errno != syscall.EINVAL {
		t.Errorf("a queue pair for lists of %d: %v", verbs.MaxSGE+1, errno)
	}
}
