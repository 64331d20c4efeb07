package sctp

import (
	"bytes"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// lingering is a carrier that takes its time with the first packets with DATA, until the
// test lets it go on. Then it compares them with what they were.
type lingering struct {
	carrier
	met     atomic.Bool
	began   chan struct{} // they have been sent, and may be sent again
	let     chan struct{}
	changed chan bool
}

func (l *lingering) send(to netip.AddrPort, s *sender) error {
	var was [][]byte
	for _, p := range s.batch.packets {
		if chunkType(p[headerLen]) == typeData && !l.met.Load() {
			was = append(was, bytes.Clone(p))
		}
	}
	if was == nil || l.met.Swap(true) { // a timer may send something else meanwhile
		return l.carrier.send(to, s)
	}
	err := l.carrier.send(to, s)
	close(l.began)
	<-l.let
	changed := false
	for i, p := range was {
		changed = changed || !bytes.Equal(p, s.batch.packets[i])
	}
	l.changed <- changed
	return err
}

// What is being sent stays as it is, although it is acknowledged or the association ends
// meanwhile, and other associations need memory.
func TestPacketsStayWhileTheyAreSent(t *testing.T) {
	for _, abort := range []bool{false, true} {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		sock, err := newSocket(conn, false)
		if err != nil {
			t.Fatal(err)
		}
		l := &lingering{carrier: sock, began: make(chan struct{}), let: make(chan struct{}), changed: make(chan bool, 1)}
		e := newEndpoint(l, Config{Admit: anyone})
		defer e.Close()
		peer := listen(t, "127.0.0.1", Config{Accept: to(assoctest.NewInbox())})
		dial := func() *Assoc {
			a, err := e.Dial(patient(t), peer.Addr(), DialConfig{Receiver: to(assoctest.NewInbox())})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		a, b := dial(), dial()
		send := func(a *Assoc, with byte) {
			m := assoc.Outgoing{Bufs: [][]byte{bytes.Repeat([]byte{with}, a.MaxMessage())}}
			if n, err := a.TrySend([]assoc.Outgoing{m, m}); n < 2 {
				t.Errorf("%d of 2 queued: %v", n, err)
			}
		}
		go send(a, 1)
		<-l.began
		if abort {
			go a.Abort("enough")
		}
		for ctx := patient(t); ctx.Err() == nil; runtime.Gosched() {
			a.mu.Lock()
			freed := len(a.t.tx.later) == 1
			a.mu.Unlock()
			if freed {
				break
			}
		}
		for range 100 {
			send(b, 2)
		}
		close(l.let)
		if <-l.changed {
			t.Errorf("packets changed while they were sent, abort %v", abort)
		}
	}
}

// A message that has a packet of its own leaves from the queue, without a copy, and those
// that follow each other there are one piece of memory for the kernel. Where several share
// a packet they are gathered.
func TestMessagesLeaveFromTheQueue(t *testing.T) {
	s := newSim(1, netConfig{}, nil)
	tx := &s.ends[0].t
	tx.path.cwnd = 1 << 20
	var rooms [][]byte
	push := func(n int) {
		tx.tx.push(&assoc.Outgoing{Bufs: [][]byte{make([]byte, n)}}, n)
		rooms = append(rooms, tx.tx.at(tx.tx.next-1).room)
	}
	for _, n := range []int{1400, 1400, 1399, 100, 100, 1400} {
		push(n)
	}
	b := newBatch()
	tx.transmit(time.Second, b)
	var own []bool
	for _, p := range b.packets {
		if !packet(p).intact() {
			t.Errorf("a packet of %d bytes has a wrong checksum", len(p))
		}
		mine := false
		for _, r := range rooms {
			mine = mine || &r[0] == &p[0]
		}
		own = append(own, mine)
	}
	if len(own) != 5 || !own[0] || !own[1] || !own[2] || own[3] || !own[4] {
		t.Errorf("packets of the queue: %v", own)
	}
	var iovs [batchPackets]unix.Iovec
	if v := gather(iovs[:], b.packets[:3]); len(v) != 1 || int(v[0].Len) != 3*len(b.packets[0]) {
		t.Errorf("three packets in a row are the vector %v", v)
	}
	if v := gather(iovs[:], b.packets); len(v) != 3 {
		t.Errorf("packets in three places are the vector %v", v)
	}
}

// What lies behind an allocation is compared as a number: the race detector's build ends the
// program for a pointer there.
func TestNothingPointsBehindPackets(t *testing.T) {
	arena := make([]byte, 100)
	packets := [][]byte{arena[:40], arena[40:80], arena[80:90], arena[95:]}
	for range 100 { // some of them are neighbours
		packets = append(packets, make([]byte, 64))
	}
	iovs := gather(make([]unix.Iovec, len(packets)), packets)
	if iovs[0].Len != 90 || iovs[1].Base != &arena[95] {
		t.Errorf("vectors of %v, want 90 bytes and what begins at 95", iovs[:2])
	}
	var total uint64
	for _, v := range iovs {
		total += uint64(v.Len)
	}
	if total != 95+100*64 {
		t.Errorf("%d bytes in all, want %d", total, 95+100*64)
	}
}
