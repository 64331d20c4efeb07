package sctp

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// established is a simulation that has sent something already, so that the RTT is
// known.
func established(t *testing.T, n netConfig, change func(side int, s *settings)) *sim {
	t.Helper()
	s := newSim(1, n, change)
	s.send(0, 100, 1200)
	if !s.run(time.Minute, func() bool { return s.ends[0].t.tx.len() == 0 }) {
		t.Fatal("the first messages do not come")
	}
	return s
}

func never() bool { return false }

// After an outage one kick brings all that was lost across within a few round
// trips, without errors and without a smaller window; without it that takes until
// the timer is due.
func TestKickAfterAnOutage(t *testing.T) {
	for _, kick := range []bool{true, false} {
		s := established(t, netConfig{delay: time.Millisecond}, nil)
		tx := &s.ends[0].t
		all := func() bool { return tx.tx.len() == 0 }
		window := tx.path.cwnd
		s.drop = func(int, packet) bool { return true }
		s.send(0, 10, 1200)
		s.run(tx.path.rto/2, never) // not yet a timeout, but a probe of the tail
		s.drop = nil
		if kick {
			tx.kick(s.now)
			s.flush(0)
		}
		if got := s.run(20*time.Millisecond, all); got != kick {
			t.Errorf("with a kick: %v, all is there after 20 ms: %v, %d are not", kick, got, tx.tx.len())
		}
		if kick && (tx.path.cwnd < window || tx.life.errors != 0 || tx.stats.Timeouts != 0) {
			t.Errorf("a window of %d became %d, %d errors, %+v", window, tx.path.cwnd, tx.life.errors, tx.stats)
		}
		if !s.run(time.Minute, all) {
			t.Error("the rest does not come")
		}
	}
}

// A kick in vain, all being on its way, sends one packet again.
func TestKickInVain(t *testing.T) {
	s := established(t, netConfig{delay: 20 * time.Millisecond}, nil)
	s.send(0, 9, 1200)
	tx := &s.ends[0].t
	before := tx.stats
	tx.kick(s.now)
	s.flush(0)
	if !s.run(time.Minute, func() bool { return tx.tx.len() == 0 }) {
		t.Fatal("they do not come")
	}
	s.run(time.Second, never)
	if n := tx.stats.Retransmits - before.Retransmits; n != 1 || s.ends[1].t.stats.Duplicates != 1 {
		t.Errorf("%d chunks were sent again, %d came twice", n, s.ends[1].t.stats.Duplicates)
	}
}

// A second kick without an answer in between tells that the first was in vain,
// and a kick resets an RTO that has grown.
func TestKickTellsWhetherItIsStuck(t *testing.T) {
	s := established(t, netConfig{delay: time.Millisecond}, nil)
	tx := &s.ends[0].t
	if tx.kick(s.now) {
		t.Error("stuck with nothing to send")
	}
	s.drop = func(int, packet) bool { return true }
	s.send(0, 3, 1200)
	rto := tx.path.rto
	s.run(20*rto, never)
	if tx.path.rto < 8*rto {
		t.Errorf("an RTO of %v after an outage, %v before", tx.path.rto, rto)
	}
	if !tx.kick(s.now) {
		t.Error("not stuck after timeouts")
	}
	if tx.path.rto != rto {
		t.Errorf("an RTO of %v after a kick, want %v", tx.path.rto, rto)
	}
	s.flush(0)
	s.drop = nil
	if !tx.kick(s.now) {
		t.Error("not stuck after a kick without an answer")
	}
	s.flush(0)
	s.run(10*time.Millisecond, never)
	if tx.tx.len() != 0 || tx.kick(s.now) {
		t.Error("stuck though all was acknowledged")
	}
}

// A kick goes for the handshake and the shutdown, too.
func TestKickOfHandshakeAndShutdown(t *testing.T) {
	sent := func(tx *tcb, now time.Duration) chunkType {
		b := newBatch()
		tx.transmit(now, b)
		if b.empty() {
			return 0xff
		}
		return chunkType(b.packets[0][headerLen])
	}
	s := newSim(1, netConfig{}, nil)
	var a tcb
	a.init(s.ends[0].t.settings)
	a.associate(s.now)
	if c := sent(&a, s.now); c != typeInit {
		t.Fatalf("chunk %d", c)
	}
	if a.kick(s.now); sent(&a, s.now) != typeInit {
		t.Error("a kick sends no INIT again")
	}
	a.state, a.exchange.cookie = stateCookieEchoed, make([]byte, 8)
	if a.kick(s.now); sent(&a, s.now) != typeCookieEcho {
		t.Error("a kick sends no COOKIE ECHO again")
	}
	z := &s.ends[0].t
	z.shutdown(s.now)
	if c := sent(z, s.now); c != typeShutdown {
		t.Fatalf("chunk %d", c)
	}
	if z.kick(s.now); sent(z, s.now) != typeShutdown {
		t.Error("a kick sends no SHUTDOWN again")
	}
	y := &s.ends[1].t
	y.shutdownChunk(s.now, chunk(appendShutdown(nil, y.tx.acked)))
	if c := sent(y, s.now); c != typeShutdownAck {
		t.Fatalf("chunk %d", c)
	}
	if y.kick(s.now); sent(y, s.now) != typeShutdownAck {
		t.Error("a kick sends no SHUTDOWN ACK again")
	}
}

// LimitRTO bounds the RTO at once and from then on, until it is over.
func TestHurry(t *testing.T) {
	s := established(t, netConfig{delay: time.Millisecond}, func(_ int, s *settings) { s.AssocMaxRetrans = 1000 })
	tx := &s.ends[0].t
	s.drop = func(int, packet) bool { return true }
	s.send(0, 3, 1200)
	s.run(5*time.Second, never)
	if tx.path.rto <= time.Second {
		t.Fatalf("an RTO of %v after 5 s", tx.path.rto)
	}
	n := tx.stats.Timeouts
	tx.limitRTO(s.now, time.Second)
	s.run(10*time.Second, never)
	if k := tx.stats.Timeouts - n; k < 9 || tx.path.rto != time.Second {
		t.Errorf("in a hurry: %d timeouts within 10 s, RTO %v", k, tx.path.rto)
	}
	tx.limitRTO(s.now, 0)
	s.run(10*time.Second, never)
	if tx.path.rto <= time.Second {
		t.Errorf("an RTO of %v, and the hurry is over", tx.path.rto)
	}
}

// Outq, Bytes and the gauges tell what those who watch an association need.
func TestWhatWatchersSee(t *testing.T) {
	x := connect(t, "127.0.0.1", Config{}, Config{})
	m := assoc.Outgoing{Bufs: [][]byte{make([]byte, 1000)}}
	if _, err := x.a.Send(patient(t), []assoc.Outgoing{m, m, m}); err != nil {
		t.Fatal(err)
	}
	x.rb.WaitFor(t, 3)
	if n := x.b.Bytes(); n != 3000 {
		t.Errorf("%d bytes came", n)
	}
	x.ra.Wait(t, "the acknowledgement", func() bool {
		go x.ra.BatchEnd() // look again
		n, err := x.a.Outq()
		return err == nil && n == 0
	})
	if n := x.a.Bytes(); n != 3000 {
		t.Errorf("%d bytes were acknowledged", n)
	}
	if s := x.a.Stats(); s.Unanswered != 0 || s.Idle <= 0 || s.Silent <= 0 || s.Idle > patience {
		t.Errorf("%+v", s)
	}
	x.a.Close()
	if _, err := x.a.Outq(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if x.a.Kick() {
		t.Error("an association that is over is stuck")
	}
	x.a.LimitRTO(time.Second)
}
