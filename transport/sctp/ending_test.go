package sctp

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// slow is a carrier whose packets take their time to be sent: until the test says
// so.
type slow struct {
	carrier
	mu    sync.Mutex
	once  sync.Once
	began chan struct{} // a packet that ends the association is being sent
	let   chan struct{} // and may be
	sent  bool
}

func (s *slow) send(to netip.AddrPort, x *sender) error {
	for i := range x.batch.packets {
		switch chunkType(x.batch.packets[i][headerLen]) {
		case typeShutdownComplete, typeAbort:
			s.once.Do(func() { close(s.began) })
			<-s.let
			s.mu.Lock()
			s.sent = true
			s.mu.Unlock()
		}
	}
	return s.carrier.send(to, x)
}

// The packet that ends an association, SHUTDOWN COMPLETE or ABORT, is with the
// kernel before anybody hears of the end: then they may close the socket.
func TestTheLastPacketLeavesBeforeTheEndIsTold(t *testing.T) {
	for _, abort := range []bool{false, true} {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		sock, err := newSocket(conn, false)
		if err != nil {
			t.Fatal(err)
		}
		s := &slow{carrier: sock, began: make(chan struct{}), let: make(chan struct{})}
		e := newEndpoint(s, Config{Admit: anyone})
		defer e.Close()
		peer := listen(t, "127.0.0.1", Config{Accept: to(assoctest.NewInbox())})
		a, err := e.Dial(patient(t), peer.Addr(), DialConfig{Receiver: to(assoctest.NewInbox())})
		if err != nil {
			t.Fatal(err)
		}
		b, err := peer.Accept(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan bool, 1)
		go func() {
			<-a.Done()
			s.mu.Lock()
			told <- s.sent
			s.mu.Unlock()
		}()
		over := make(chan error, 1)
		go func() {
			if abort {
				a.Abort("enough")
				over <- nil
				return
			}
			over <- a.Shutdown(patient(t))
		}()
		<-s.began
		a.Kick() // others use it meanwhile
		select {
		case <-a.Done():
			t.Error("the end is told, and its packet has not left")
		default:
		}
		close(s.let)
		if err := <-over; err != nil {
			t.Error(err)
		}
		if !<-told {
			t.Error("the end is told before its packet has left")
		}
		<-b.Done()
	}
}

// lateTold is a Receiver that takes its time when it is told of the end.
type lateTold struct {
	*assoctest.Inbox
	began, let chan struct{}
}

func (r lateTold) Event(e assoc.Event) {
	if e.Kind == assoc.EventDown {
		close(r.began)
		<-r.let
	}
}

// An endpoint that is closed calls nobody any more, nor does it call the Receiver of an association
// that has ended just before.
func TestEndpointIsClosedWhenReceiversHaveBeenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		a, b := w.endpoint(addrA, Config{}), w.endpoint(addrB, Config{Accept: to(bubbleInbox())})
		defer b.Close()
		r := lateTold{bubbleInbox(), make(chan struct{}), make(chan struct{})}
		x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return r }})
		if err != nil {
			t.Fatal(err)
		}
		go x.Abort("enough")
		<-r.began
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			a.Close()
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("the endpoint is closed, and a Receiver is being called")
		default:
		}
		close(r.let)
		<-closed
		<-x.Done()
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if n := len(a.ending); n != 0 {
			t.Errorf("the endpoint keeps %d associations that are over", n)
		}
	})
}
