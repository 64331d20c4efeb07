package sctp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// halting is a Receiver that waits with each error of the peer's, and with each message.
type halting struct {
	*assoctest.Inbox
	event, message chan struct{}
}

func (h halting) Event(e assoc.Event) {
	if e.Kind == assoc.EventPeerError {
		<-h.event
	}
}

func (h halting) Message(*assoc.Message) bool {
	<-h.message
	return false
}

// Who reads goes on when what it has read has been delivered, also if that is done by another
// goroutine, which was delivering something else before: the messages are in the reader's buffer.
func TestReaderWaitsForWhoDeliversItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		h := halting{bubbleInbox(), make(chan struct{}), make(chan struct{})}
		a := w.endpoint(addrA, Config{})
		b := w.endpoint(addrB, Config{Accept: func(*Assoc) assoc.Receiver { return h }})
		defer b.Close()
		defer a.Close()
		x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(bubbleInbox())})
		if err != nil {
			t.Fatal(err)
		}
		y, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer close(h.message)
		waits := func() int {
			pass(10 * time.Millisecond)
			synctest.Wait()
			y.mu.Lock()
			defer y.mu.Unlock()
			return len(y.t.deliver)
		}
		send := func(text string) {
			if n, err := x.TrySend([]assoc.Outgoing{{PPID: 16, Bufs: [][]byte{[]byte(text)}}}); n != 1 || err != nil {
				t.Error(n, err)
			}
		}
		go func() { // as a timer does
			y.mu.Lock()
			y.t.event(assoc.Event{Kind: assoc.EventPeerError})
			y.deliverAndUnlock(false)
		}()
		synctest.Wait()
		send("one")
		if n := waits(); n != 1 {
			t.Errorf("%d messages wait for who delivers", n)
		}
		h.event <- struct{}{}
		send("two")
		if n := waits(); n != 0 {
			t.Error("the reader has read on while what it had read is being delivered")
		}
	})
}

// So it does where another goroutine has taken its messages while the reader was sending the last
// packet of the association.
func TestReaderWaitsForItsMessagesAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		h := halting{bubbleInbox(), make(chan struct{}), make(chan struct{})}
		a := w.endpoint(addrA, Config{})
		b := w.endpoint(addrB, Config{Accept: func(*Assoc) assoc.Receiver { return h }})
		defer b.Close()
		defer a.Close()
		if _, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(bubbleInbox())}); err != nil {
			t.Fatal(err)
		}
		y, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		s := &slow{carrier: b.sock, began: make(chan struct{}), let: make(chan struct{})}
		read := make(chan struct{})
		go func() {
			defer close(read)
			y.mu.Lock()
			b.sock = s
			chunks := dataWith(y.t.rx.cum+1, 0, flagB|flagE|flagU, "one!")
			y.t.input(b.now(), appendChunk(chunks, typeSack, 0, nil), false) // one that is too short
			y.deliverAndUnlock(true)
		}()
		<-s.began
		go y.Abort("")
		synctest.Wait()
		close(s.let)
		synctest.Wait()
		select {
		case <-read:
			t.Error("the reader reads on while what it had read is being delivered")
		default:
		}
		close(h.message)
		<-read
	})
}
