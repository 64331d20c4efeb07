package rdmalib

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
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
