package sctp

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// Accept returns no association that has ended while it waited for Accept.
func TestAcceptLeavesDeadAssociationsOut(t *testing.T) {
	made := make(chan *Assoc, 2)
	e := listen(t, "127.0.0.1", Config{Accept: func(a *Assoc) assoc.Receiver {
		made <- a
		return assoctest.NewInbox()
	}})
	dead := newRawPeer(t, e)
	dead.connect()
	dead.send(dead.peerTag, appendAbort(nil, 0, assoc.Cause{}))
	<-(<-made).Done()
	live := newRawPeer(t, e)
	live.connect()
	a, err := e.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if a.Remote() != live.addr() {
		t.Errorf("Accept returns %s, which is %s", a.Remote(), a.State())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	e.Close()
	if _, err := e.Accept(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
