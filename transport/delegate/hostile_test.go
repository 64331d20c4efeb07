package delegate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/hangs"
	"github.com/ironwarp/ironwarp/transport"
)

// soon fails the test if f takes longer than what a program should be able to make a daemon wait.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("a program makes the daemon wait: %s", what)
	}
}

// TestSocketThatIsKeptLocked: whatever is asked of it and done to it, the daemon does not wait, its other flows are ended,
// and that one when it can be. Until then it counts.
func TestSocketThatIsKeptLocked(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	locked, peer := connected(t)
	other, otherPeer := connected(t)
	for _, m := range []mon{locked, other} {
		if _, err := c.Admit(t.Context(), m.flow(), true, m); err != nil {
			t.Fatal(err)
		}
	}
	unlock := hangs.Lock(t, locked)
	serving := d.current()
	serving.mu.Lock()
	var socks []*Socket
	for _, f := range serving.flows {
		socks = append(socks, f.sock)
	}
	serving.mu.Unlock()
	for _, s := range socks {
		soon(t, "bytes", func() { s.Bytes() })
		soon(t, "queue", func() {
			if _, err := s.Outq(); err != nil {
				t.Error(err)
			}
		})
	}
	again := make(chan error, 1)
	go func() {
		_, err := c.Admit(t.Context(), locked.flow(), true, locked)
		again <- err
	}()
	soon(t, "the end of all flows", func() { serving.End(func(*Socket) error { return errors.New("by request") }) })
	if !isOver(t, otherPeer) {
		t.Error("another flow goes on")
	}
	if err := <-again; !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("another one of which nothing is known: %v", err)
	}
	go c.Close()
	await(t, "the end of the other flow", func() bool { n, _ := d.count(); return n == 1 })
	unlock()
	peer.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(peer); err != nil {
		t.Errorf("the flow goes on: %v", err)
	}
	await(t, "the end of the flow", func() bool { n, _ := d.count(); return n == 0 })
}

// TestDaemonThatEndsDoesNotWaitForALock of a program's.
func TestDaemonThatEndsDoesNotWaitForALock(t *testing.T) {
	d := newDaemon(t)
	a, b := pair(t)
	defer a.Close()
	s := NewServing(b, d, new(Account))
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { _ = s.Run(ctx, func() bool { return false }); close(ran) }()
	ours, _ := connected(t)
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	l := &link{UnixConn: a}
	raw.Control(func(fd uintptr) { err = l.send(&message{Op: opAdmit, ID: 1}, int(fd)) })
	if m, rerr := l.receive(); err != nil || rerr != nil || m.err() != nil {
		t.Fatal(m, err, rerr)
	}
	unlock := hangs.Lock(t, ours)
	soon(t, "the end of its connection", s.Close)
	cancel()
	soon(t, "the daemon's end", func() { <-ran })
	unlock()
	await(t, "the end of the flow", func() bool { n, _ := d.count(); return n == 0 })
}

// TestDescriptorsThatAreNotReceived are closed with the connection, which takes as long as a program likes.
func TestDescriptorsThatAreNotReceived(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before []byte // what the daemon receives first
		n      int
	}{
		{"behind what is no message", make([]byte, 3*maxMessage), 1},
		{"more than there is room for", []byte{0}, 253},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pair(t)
			fd := hangs.Descriptor(t)
			fds := make([]int, tc.n)
			for i := range fds {
				fds[i] = fd
			}
			if _, err := a.Write(tc.before); err != nil {
				t.Fatal(err)
			}
			if _, _, err := a.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			s := NewServing(b, newDaemon(t), new(Account))
			soon(t, "its connection", func() { _ = s.Run(t.Context(), func() bool { return false }) })
			soon(t, "the end of that", s.Close)
			a.Close()
		})
	}
}

// TestProgramThatDoesNotRead keeps nobody waiting who tells it something.
func TestProgramThatDoesNotRead(t *testing.T) {
	a, b := pair(t)
	defer a.Close()
	s := NewServing(b, newDaemon(t), new(Account))
	terms := Terms{Account: string(bytes.Repeat([]byte{'a'}, 2000)), Ports: []Ports{}}
	soon(t, "terms", func() {
		for range 1000 {
			s.Tell(terms)
		}
	})
	go s.Run(t.Context(), func() bool { return false })
	s.Close()
	s.wg.Wait()
}

// TestFlowThatIsSaidToBeOver does not go on in another process.
func TestFlowThatIsSaidToBeOver(t *testing.T) {
	d := newDaemon(t)
	c := client(t, d)
	ours, peer := connected(t)
	p, err := c.Admit(t.Context(), ours.flow(), true, ours)
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	if !isOver(t, peer) {
		t.Error("it goes on, and the daemon knows nothing of it")
	}
}

// waits is a daemon that admits nothing until the end of the call.
type waits struct {
	*daemon
	n atomic.Int64
}

func (w *waits) Admit(ctx context.Context, _ bool, _ *Socket) (transport.Protection, error) {
	w.n.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCallsOfAnAccountAreBounded: each of its programs may ask for much, all of them for no more.
func TestCallsOfAnAccountAreBounded(t *testing.T) {
	w := &waits{daemon: newDaemon(t)}
	account := new(Account)
	account.calls.Store(maxCalls - 10)
	ours, _ := connected(t)
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var conns []*link
	short := 0
	for i := range 4 {
		a, b := pair(t)
		s := NewServing(b, w, account)
		w.wg.Go(func() { _ = s.Run(t.Context(), func() bool { return false }) })
		l := &link{UnixConn: a}
		conns = append(conns, l)
		for id := range uint64(5) {
			raw.Control(func(fd uintptr) { err = l.send(&message{Op: opAdmit, ID: id + 1}, int(fd)) })
			if err != nil {
				t.Fatal(err)
			}
			if i >= 2 {
				if m, err := l.receive(); err != nil || !errors.Is(m.err(), ErrShort) {
					t.Fatalf("%+v, %v", m, err)
				}
				short++
			}
		}
		await(t, "the calls", func() bool { return account.calls.Load() == min(maxCalls, maxCalls-10+5*int64(i+1)) })
	}
	if short != 10 {
		t.Errorf("%d were refused", short)
	}
	for _, l := range conns {
		l.Close()
	}
	await(t, "the end of the calls", func() bool { return account.calls.Load() == maxCalls-10 })
}

// TestWhatCannotBeClosedIsBounded, also for a program that is connected already.
func TestWhatCannotBeClosedIsBounded(t *testing.T) {
	a, b := pair(t)
	defer a.Close()
	account := new(Account)
	s := NewServing(b, newDaemon(t), account)
	ran := make(chan error, 1)
	go func() { ran <- s.Run(t.Context(), func() bool { return false }) }()
	account.closing.Store(maxTrash)
	for id := 1; ; id++ {
		body := fmt.Sprintf(`{"op":"done","id":%d}`, id)
		if _, err := a.Write(append([]byte{0, 0, 0, byte(len(body))}, body...)); err != nil {
			break
		}
		select {
		case err := <-ran:
			if err == nil || errors.Is(err, net.ErrClosed) {
				t.Errorf("%v", err)
			}
			account.closing.Add(-maxTrash)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := <-ran; err == nil {
		t.Error("it is listened to")
	}
	account.closing.Add(-maxTrash)
}
