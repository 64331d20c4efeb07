package ksctp_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

func TestMessagesThatMayNotBeSent(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{Params: assoc.Params{Streams: 4}}, ksctp.Config{Params: assoc.Params{Streams: 8}})
	if out, in := x.a.Streams(); out != 4 || in != 4 {
		t.Errorf("streams %d, %d, want 4 each way", out, in)
	}
	if out, in := x.b.Streams(); out != 4 || in != 4 {
		t.Errorf("the peer's streams %d, %d, want 4 each way", out, in)
	}
	good := one(3, []byte("good"))
	for _, c := range []struct {
		m    assoc.Outgoing
		want error
	}{
		{one(4, []byte("no such stream")), assoc.ErrStream},
		{one(0), assoc.ErrEmpty},
		{one(0, nil, []byte{}), assoc.ErrEmpty},
		{one(0, make([]byte, x.a.MaxMessage()), []byte("!")), assoc.ErrTooLong},
	} {
		if n, err := x.a.TrySend([]assoc.Outgoing{good, c.m, good}); n != 1 || !errors.Is(err, c.want) {
			t.Errorf("%d sent, %v; want 1, %v", n, err, c.want)
		}
		if err := x.a.SendNow(c.m); !errors.Is(err, c.want) {
			t.Errorf("send now: %v, want %v", err, c.want)
		}
	}
	longest := one(1, make([]byte, x.a.MaxMessage()))
	send(t, x.a, longest)
	many := one(2) // more pieces than one system call takes
	for range 2000 {
		many.Bufs = append(many.Bufs, []byte{1, 2, 3})
	}
	send(t, x.a, good, many, good)
	x.rb.WaitFor(t, 8)
	sizes := make(map[int]int)
	for _, m := range x.rb.Got {
		if !m.Flags.Whole() {
			t.Errorf("a message came as a fragment: %v", m.Flags)
		}
		sizes[len(m.Payload)]++
	}
	if sizes[4] != 6 || sizes[x.a.MaxMessage()] != 1 || sizes[6000] != 1 {
		t.Errorf("sizes and their counts: %v", sizes)
	}
}

// A user who holds what comes and does not release it stops the sender, which loses
// nothing by that.
func TestHeldMessagesPushBack(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{SendBuffer: 128 << 10}, ksctp.Config{RecvBuffer: 128 << 10})
	// The peer's user has all that it may hold.
	full, filled := context.WithCancel(patient(t))
	defer filled()
	const window = 128 << 10
	x.rb.Set(func() {
		x.rb.Hold, x.rb.Quiet = true, true
		x.rb.On = func(m *assoc.Message) {
			if x.rb.Held+len(m.Payload) >= window {
				filled()
			}
		}
	})
	const size, all = 1000, 5000
	ms := repeat(one(0, make([]byte, size)), all)
	sent := 0
	for sent < all && full.Err() == nil {
		n, err := x.a.TrySend(ms[sent:])
		if err != nil {
			t.Fatal(err)
		}
		if sent += n; n > 0 {
			continue
		}
		if err := x.a.Wait(full); err != nil && !errors.Is(full.Err(), context.Canceled) {
			t.Fatal(err)
		}
	}
	if sent == all {
		t.Fatal("a sender of 5 MB was not stopped by 128 KiB buffers")
	}
	var err error
	for n := 0; err == nil; n++ { // 1 MiB of them beside what the kernels take, and no more
		if err = x.a.SendNow(one(1, make([]byte, size))); n > 1500 {
			t.Fatal("the queue of SendNow has no end")
		}
		sent++
	}
	if !errors.Is(err, assoc.ErrNoRoom) {
		t.Errorf("send now, too often: %v", err)
	}
	if n, err := x.a.TrySend(ms[:1]); n != 0 || err != nil {
		t.Errorf("%d sent past those that wait, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.a.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	if n, err := x.a.Outq(); err != nil || n < size {
		t.Errorf("%d bytes are not acknowledged, %v", n, err)
	}
	// The last to be sent was refused. What is held is counted after it has come.
	x.rb.WaitReleasing(t, "what was queued, and is not held", x.b, func() bool { return x.rb.Total >= sent-1 && x.b.Stats().HeldHere == 0 })
}

// A Barrier, and what is behind it, arrives after everything before it, and it
// does arrive.
func TestBarrier(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{}, ksctp.Config{})
	var order []uint16
	x.rb.Set(func() {
		x.rb.On = func(m *assoc.Message) { order = append(order, m.Stream) }
		x.rb.Quiet = true
	})
	barrier := one(1, []byte("barrier"))
	barrier.Barrier = true
	var want []uint16
	for range 50 {
		ms := append(repeat(one(0, make([]byte, 1000)), 20), barrier, one(2, []byte("behind")))
		for _, m := range ms {
			want = append(want, m.Stream)
		}
		send(t, x.a, ms...)
	}
	if err := x.a.SendNow(barrier); err != nil {
		t.Fatal(err)
	}
	x.rb.WaitFor(t, len(want)+1)
	for i, s := range want {
		if order[i] == 1 && s != 1 || order[i] != 1 && s == 1 {
			t.Fatalf("message %d is of stream %d, want %d", i, order[i], s)
		}
	}
}

// Outstanding and Outq are exact when nothing is outstanding, and never too low.
func TestOutstanding(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{}, ksctp.Config{RecvBuffer: 128 << 10})
	x.rb.Set(func() { x.rb.Hold, x.rb.Quiet = true, true })
	n, err := x.a.TrySend(append(repeat(one(1, make([]byte, 900)), 20), repeat(one(2, make([]byte, 900)), 1500)...))
	if err != nil || n != 1520 {
		t.Fatalf("%d sent, %v", n, err)
	}
	x.rb.Wait(t, "all that may be held", func() bool { return x.rb.Held >= 128<<10 })
	unread := n
	x.rb.Set(func() { unread -= x.rb.Total }) // some of them are in the peer's buffer, acknowledged
	if got := x.a.Outstanding(2); got > 1500 || got < unread-1000 {
		t.Errorf("%d messages are outstanding, %d were not read", got, unread)
	}
	if q, err := x.a.Outq(); err != nil || q < x.a.Outstanding(2)*900 {
		t.Errorf("%d bytes are outstanding, %v", q, err)
	}
	if x.a.Outstanding(3) != 0 {
		t.Error("a stream that was not used has something outstanding")
	}
	x.rb.WaitReleasing(t, "the rest", x.b, func() bool { return x.rb.Total == n })
	// A Barrier is there when all before it is acknowledged.
	last := one(3, []byte("last"))
	last.Barrier = true
	send(t, x.a, last)
	x.rb.WaitFor(t, n+1)
	if a, b := x.a.Outstanding(1), x.a.Outstanding(2); a != 0 || b != 0 {
		t.Errorf("%d and %d messages are outstanding after all were acknowledged", a, b)
	}
	if got := x.a.Bytes(); got != uint64(n*900+4) {
		t.Errorf("%d bytes were sent, want %d", got, n*900+4)
	}
	s := x.a.Stats()
	if s.MessagesOut != uint64(n+1) || s.BytesOut != uint64(n*900+4) || s.PacketsOut == 0 || s.RTO <= 0 || s.Window <= 0 {
		t.Errorf("%+v", s)
	}
}
