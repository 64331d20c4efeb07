package ksctp_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// RFC 8899 section 4.3: a path that drops long packets and tells nobody, from some time
// on, ends the association, and the next ones with that peer, from either end, get
// through and say which packets are lost.
func TestPathThatDropsLongPackets(t *testing.T) {
	row(t, "the kernel's SCTP: the path drops long packets and tells nobody")
	ha, hb := hosts(t, 1)
	c := quick
	c.Heartbeat, c.Narrow = time.Second, new(ksctp.Narrow)
	x := between(t, ha, hb, 1, c)
	if err := hb.Narrow(t.Context(), 0, 1300); err != nil {
		t.Fatal(err)
	}
	long := make([]byte, x.a.MaxMessage())
	send(t, x.a, repeat(one(0, make([]byte, 1000)), 3)...)
	send(t, x.a, repeat(one(0, long), 3)...)
	<-x.a.Done()
	if err := x.a.Err(); err == nil || !strings.Contains(err.Error(), "the path has become narrower") {
		t.Errorf("the association ended: %v", err)
	}
	<-x.b.Done()
	x.l.Close()
	y := between(t, ha, hb, 1, c)
	send(t, y.a, repeat(one(0, long[:y.a.MaxMessage()]), 100)...)
	y.rb.WaitFor(t, 100)
	if s := y.a.Stats(); s.PathMTU != 1200 || s.LostMTU != 1500 {
		t.Errorf("the path carries %d and loses %d", s.PathMTU, s.LostMTU)
	}
}

// Neither an outage nor a peer that takes nothing is such a path, however long it lasts.
func TestOutageAndClosedWindowEndNothing(t *testing.T) {
	ha, hb := hosts(t, 1)
	for what, tc := range map[string]struct {
		stop func(x *ends) error
		on   func(x *ends) error
	}{
		"an outage": {
			func(*ends) error { return ha.Sever(t.Context(), 0, true) },
			func(*ends) error { return ha.Sever(t.Context(), 0, false) },
		},
		"a closed window": {
			func(x *ends) error { x.rb.Set(func() { x.rb.Hold, x.rb.Quiet = true, true }); return nil },
			func(x *ends) error {
				var n int
				x.rb.Set(func() { x.rb.Hold, n, x.rb.Held = false, x.rb.Held, 0 })
				x.b.Release(n)
				return nil
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := quick
			c.Heartbeat, c.Narrow, c.SendBuffer, c.RecvBuffer = time.Second, new(ksctp.Narrow), 128<<10, 128<<10
			x := between(t, ha, hb, 1, c)
			defer x.l.Close()
			if err := tc.stop(x); err != nil {
				t.Fatal(err)
			}
			sent, full := 0, false
			for !full || x.a.Looks() < 6 {
				n, err := x.a.TrySend(repeat(one(0, make([]byte, x.a.MaxMessage())), 16))
				if err != nil {
					t.Fatalf("after %d messages: %v", sent, err)
				}
				sent += n
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				full = errors.Is(x.a.Wait(ctx), context.DeadlineExceeded)
				cancel()
			}
			if err := tc.on(x); err != nil {
				t.Fatal(err)
			}
			x.rb.WaitFor(t, sent)
			if s := x.a.Stats(); s.LostMTU != 0 {
				t.Errorf("packets of %d bytes get lost", s.LostMTU)
			}
		})
	}
}
