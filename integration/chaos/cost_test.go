package chaos

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/rping"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// counting counts every call of a Protector and of its Protections.
type counting struct {
	transport.Protector
	calls *atomic.Int64
}

func (c counting) Prepare(ctx context.Context, f transport.Flow) error {
	c.calls.Add(1)
	return c.Protector.Prepare(ctx, f)
}

func (c counting) Admit(ctx context.Context, f transport.Flow, outgoing bool, m transport.Monitored) (transport.Protection, error) {
	c.calls.Add(1)
	p, err := c.Protector.Admit(ctx, f, outgoing, m)
	return countingProtection{p, c.calls}, err
}

type countingProtection struct {
	transport.Protection
	calls *atomic.Int64
}

func (c countingProtection) Peer() transport.Identity { c.calls.Add(1); return c.Protection.Peer() }
func (c countingProtection) Paused() bool             { c.calls.Add(1); return c.Protection.Paused() }
func (c countingProtection) Kind() string             { c.calls.Add(1); return c.Protection.Kind() }
func (c countingProtection) Release()                 { c.calls.Add(1); c.Protection.Release() }

// TestProtectorIsNotAskedPerMessage counts the calls over a stream's whole life, both
// ends together: a hundred times as many messages cause not one call more.
func TestProtectorIsNotAskedPerMessage(t *testing.T) {
	few, many := protectorCalls(t, 10), protectorCalls(t, 1000)
	t.Logf("%d calls of the Protector with 10 round trips of Send, Read and Write, %d with 1000", few, many)
	if few == 0 {
		t.Error("the Protector was not asked at all: this counts nothing")
	}
	if many != few {
		t.Errorf("%d calls with 10 round trips, %d with 1000", few, many)
	}
}

// protectorCalls is how many calls a stream of n round trips makes.
func protectorCalls(t *testing.T, n int) int64 {
	t.Helper()
	var calls atomic.Int64
	config := &transport.Config{Protector: counting{transport.LoopbackOnly(), &calls}}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ulp, err := dev.NewULP("cost", verbs.ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := dev.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: config})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		req, err := ln.Accept(context.Background())
		if err == nil {
			_, err = rping.Serve(context.Background(), ulp, req, rping.Config{})
		}
		served <- err
	}()
	done, err := rping.Client(t.Context(), ulp, verbs.DialConfig{Remote: ln.Addr(), Transport: config}, rping.Config{Count: n, Size: 64})
	if err != nil || done != n {
		t.Errorf("%d of %d round trips: %v", done, n, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	ln.Close()
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	return calls.Load()
}
