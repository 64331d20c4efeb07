package ksctp_test

import (
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
	start := time.Now()
	long := make([]byte, x.a.MaxMessage())
	send(t, x.a, repeat(one(0, make([]byte, 1000)), 3)...)
	send(t, x.a, repeat(one(0, long), 3)...)
	<-x.a.Done()
	t.Logf("after %v: %v", time.Since(start), x.a.Err())
	if err := x.a.Err(); err == nil || !strings.Contains(err.Error(), "the path has become narrower") {
		t.Errorf("the association ended: %v", err)
	}
	<-x.b.Done()
	x.l.Close()
	y := between(t, ha, hb, 1, c)
	send(t, y.a, repeat(one(0, long[:y.a.MaxMessage()]), 100)...)
	y.rb.waitFor(t, 100)
	if s := y.a.Stats(); s.PathMTU != 1200 || s.LostMTU != 1500 {
		t.Errorf("the path carries %d and loses %d", s.PathMTU, s.LostMTU)
	}
}
