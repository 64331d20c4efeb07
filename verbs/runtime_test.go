package verbs

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

// What peers may have changes at run time, for those that are named with a quota of
// their own, for those that are named without, and for all others.
func TestQuotasOfPeersChangeAtRunTime(t *testing.T) {
	e := newEnd(t, Config{})
	if err := e.dev.SetPeerQuota(Quota{Streams: 2}); err != nil {
		t.Fatal(err)
	}
	if err := e.dev.SetPeers(map[transport.Identity]Quota{"own": {Streams: 3}, "default": {}}); err != nil {
		t.Fatal(err)
	}
	take := func(peer transport.Identity, want int) {
		t.Helper()
		var err error
		got := 0
		for ; err == nil && got < 100; got++ {
			_, err = newQP(e.pd, e.cfg, fakeConn{peer})
		}
		var q *QuotaError
		if got--; got != want || !errors.As(err, &q) || q.Principal != "peer "+string(peer) {
			t.Errorf("peer %s has %d streams more and then %v, want %d and a QuotaError", peer, got, err, want)
		}
	}
	take("own", 3)
	take("default", 2)
	take("stranger", 2)
	if err := e.dev.SetPeerQuota(Quota{Streams: 5}); err != nil {
		t.Fatal(err)
	}
	take("stranger", 3)
	if err := e.dev.SetPeers(map[transport.Identity]Quota{"default": {}}); err != nil {
		t.Fatal(err)
	}
	take("default", 3)
	take("own", 2) // which is one like the others now
	if err := e.dev.SetPeerQuota(Quota{Streams: -1}); err == nil {
		t.Error("a negative quota is taken")
	}
	for _, u := range e.dev.Resources().Peers {
		if u.Principal != "peer "+u.Name {
			t.Errorf("peer %q is called %q", u.Name, u.Principal)
		}
	}
}

// The trust of a ULP changes at run time, for what it allocates from then on.
func TestTrustOfAULPChangesAtRunTime(t *testing.T) {
	e := newEnd(t, Config{})
	u, err := e.dev.NewULP("guest", ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.AllocPDAs(SLT); !errors.Is(err, ErrTrust) {
		t.Fatalf("a ULP that trusts nobody has a domain of S-LT: %v", err)
	}
	e.dev.SetTrust(u, SLT)
	pd, err := u.AllocPD()
	if err != nil || pd.Trust() != SLT {
		t.Fatalf("under S-LT: %v, %v", pd, err)
	}
	e.dev.SetTrust(u, NSNT)
	if _, err := u.AllocPDAs(SLT); !errors.Is(err, ErrTrust) {
		t.Errorf("after the trust has gone: %v", err)
	}
	if pd.Trust() != SLT {
		t.Errorf("a domain that was there has become %v", pd.Trust())
	}
}
