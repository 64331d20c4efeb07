package rtrs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// smallServer is a server whose device has memory for a few sessions only. Each of its
// peers has an address of its own.
type smallServer struct {
	*testServer
	t     *testing.T
	other *verbs.ULP // beside the server's
	one   int64      // bytes of a session
	asked int        // sessions of hoarders
}

const smallDepth = 4

func newSmallServer(t *testing.T, sessions int, cfg ServerConfig) *smallServer {
	t.Helper()
	var peers []netip.Addr
	for i := range 8 {
		peers = append(peers, peerAddr(i))
	}
	cfg.QueueDepth, cfg.MaxIO = smallDepth, MinMaxIO
	if cfg.NewSession == nil {
		cfg.NewSession = func(SessionInfo) (ServerHandler, error) { return newMemory(4096), nil }
	}
	srv := startServerOn(t, &transport.Config{Protector: transport.Plaintext(testLogger(t), peers...)}, netip.MustParseAddrPort("127.0.0.1:0"), cfg)
	h := &smallServer{testServer: srv, t: t, one: SessionMemory(smallDepth, MinMaxIO)}
	var err error
	if h.other, err = srv.dev.NewULP("other", verbs.ULPConfig{}); err != nil {
		t.Fatal(err)
	}
	h.limit(sessions)
	return h
}

// limit lets the device have memory for so many sessions, of which those of the other ULP and
// of one more leave two thirds.
func (h *smallServer) limit(sessions int) {
	h.t.Helper()
	if err := h.dev.SetLimits(verbs.Limits{Bytes: int64(sessions) * h.one}); err != nil {
		h.t.Fatal(err)
	}
}

func peerAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)}) }

func peerIdentity(i int) transport.Identity {
	return transport.Identity("plaintext:" + peerAddr(i).String())
}

func (h *smallServer) keep(n int) error {
	var ids []transport.Identity
	for i := range n {
		ids = append(ids, peerIdentity(i))
	}
	return h.KeepRoom(ids)
}

// enter opens a session of peer i.
func (h *smallServer) enter(i int, name string) (*Client, error) {
	h.t.Helper()
	cfg := clientConfig(newHost(h.t), h.addr, name)
	tc := loopback()
	tc.Local = peerAddr(i)
	cfg.Paths[0].Transport, cfg.Conns, cfg.QueueDepth, cfg.Logger = tc, 1, 1, testLogger(h.t)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	cl, err := Connect(ctx, cfg)
	if err == nil {
		h.t.Cleanup(func() { cl.Close() })
	}
	return cl, err
}

// hoard opens sessions of peer i until no more are let in.
func (h *smallServer) hoard(i int) (all []*Client) {
	h.t.Helper()
	for {
		h.asked++
		cl, err := h.enter(i, fmt.Sprint(h.asked))
		if err != nil {
			if !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EUSERS) {
				h.t.Fatalf("session %d of peer %d: %v", len(all), i, err)
			}
			return all
		}
		all = append(all, cl)
	}
}

// kept is what of the memory is the server's, in sessions.
func (h *smallServer) kept() int64 {
	h.t.Helper()
	for _, u := range h.dev.Resources().ULPs {
		if u.Name == h.ulp.Name() {
			return u.Share.Bytes / h.one
		}
	}
	h.t.Fatal("the server's ULP is gone")
	return 0
}

// takeAll has the other ULP register all the memory that it gets.
func (h *smallServer) takeAll() {
	h.t.Helper()
	pd, err := h.other.AllocPD()
	if err != nil {
		h.t.Fatal(err)
	}
	for n := 1 << 20; n > 0; {
		mr, err := pd.RegisterMR(make([]byte, n), verbs.LocalWrite)
		if err != nil {
			n /= 2
			continue
		}
		h.t.Cleanup(func() { mr.Deregister() })
	}
}

// A few peers that open as many sessions as they get, and other ULPs that register as much
// memory as they get, keep none of the peers out for which a place is kept.
func TestHoardersLeaveAPlaceInMemoryForEachPeer(t *testing.T) {
	for _, first := range []string{"hoarders", "other ULPs"} {
		t.Run(first+" come first", func(t *testing.T) {
			h := newSmallServer(t, 12, ServerConfig{}) // 8 of which are not for others
			if err := h.keep(6); err != nil {
				t.Fatal(err)
			}
			if first == "other ULPs" {
				h.takeAll()
			}
			n := len(h.hoard(0)) + len(h.hoard(1))
			h.takeAll()
			if n < 2 || first == "hoarders" && n != 4 {
				t.Errorf("two hoarders have %d sessions", n)
			}
			for i := 2; i < 6; i++ {
				if _, err := h.enter(i, "newcomer"); err != nil {
					t.Errorf("peer %d, which has no session, is kept out: %v", i, err)
				}
			}
			if _, err := h.enter(6, "stranger"); !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("a peer for which nothing is kept: %v, want ENOMEM", err)
			}
		})
	}
}

// A place is kept again once its peer has left, not more and not less, however the
// sessions end or fail to begin.
func TestMemoryThatIsKeptForPeersIsNeitherLostNorKeptTwice(t *testing.T) {
	h := newSmallServer(t, 18, ServerConfig{NewSession: func(i SessionInfo) (ServerHandler, error) { // 12 of which are not for others
		if i.Name == "unwanted" {
			return nil, errors.New("not you")
		}
		return newMemory(4096), nil
	}})
	if err := h.keep(6); err != nil {
		t.Fatal(err)
	}
	paths := func() int {
		by, _ := h.Rooms()
		return len(by)
	}
	for round := range 5 {
		for _, cl := range h.hoard(0) {
			cl.Close()
		}
		eventually(t, "the hoarder's paths have gone", func() bool { return paths() == 0 })
		for i := range 6 {
			if _, err := h.enter(i, "unwanted"); !errors.Is(err, syscall.EACCES) {
				t.Fatalf("round %d: peer %d: %v, want EACCES", round, i, err)
			}
		}
		eventually(t, "all paths have gone", func() bool { return paths() == 0 })
		if got := h.kept(); got != 6 {
			t.Fatalf("round %d: memory is kept for %d sessions, want 6", round, got)
		}
		if u := h.ulp.Usage(); u != (verbs.Limits{}) {
			t.Fatalf("round %d: left over: %+v", round, u)
		}
	}
	var one *Client
	for i := range 6 {
		cl, err := h.enter(i, "one")
		if err != nil {
			t.Fatal(err)
		}
		one = cl
	}
	if got := h.kept(); got != 6 {
		t.Errorf("with 6 sessions memory is kept for %d", got)
	}
	one.Close()
	eventually(t, "the session has gone", func() bool { return len(h.Sessions()) == 5 })
	h.hoard(0)
	if _, err := h.enter(5, "again"); err != nil {
		t.Errorf("a peer that has left and comes back: %v", err)
	}
	if err := h.keep(0); err != nil {
		t.Fatal(err)
	}
	if got, want := h.kept(), int64(len(h.Sessions())); got != want {
		t.Errorf("nobody has a place: memory is kept for %d sessions, and there are %d", got, want)
	}
}

// Where there is too little memory for all, nobody gets a second session before each has
// had a chance of one, and with more memory all is as it should be.
func TestNobodyGetsASecondSessionWhileMemoryIsTooShortForAll(t *testing.T) {
	h := newSmallServer(t, 6, ServerConfig{}) // 4 of which are not for others
	var q *verbs.QuotaError
	if err := h.keep(6); !errors.As(err, &q) {
		t.Fatalf("memory is kept for 6 sessions, and there is some for 4: %v", err)
	}
	if n := len(h.hoard(0)); n != 1 {
		t.Errorf("a hoarder has %d sessions", n)
	}
	h.takeAll()
	for i := 1; i < 4; i++ {
		if _, err := h.enter(i, "first"); err != nil {
			t.Errorf("peer %d: %v", i, err)
		}
	}
	if _, err := h.enter(4, "first"); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("the fifth: %v, want ENOMEM", err)
	}
	h.limit(40)
	if err := h.keep(6); err != nil {
		t.Fatal(err)
	}
	if n := len(h.hoard(0)); n == 0 {
		t.Error("there is memory, and no second session")
	}
	for i := 4; i < 6; i++ {
		if _, err := h.enter(i, "first"); err != nil {
			t.Errorf("peer %d: %v", i, err)
		}
	}
}

// Peers whose connection requests take long leave the first one of any other alone.
func TestPeersThatKeepTheServerBusyHoldUpNoFirstRequest(t *testing.T) {
	release := make(chan struct{})
	h := newSmallServer(t, 400, ServerConfig{TrustOf: func(id transport.Identity) verbs.TrustModel {
		if id == peerIdentity(0) || id == peerIdentity(1) {
			<-release
		}
		return verbs.NSNT
	}})
	var busy sync.WaitGroup
	dial := func(i int, path byte) error {
		local := newHost(t)
		pd, err := local.ulp.AllocPD()
		if err != nil {
			return err
		}
		cq, err := local.ulp.CreateCQ(64, nil)
		if err != nil {
			return err
		}
		tc := loopback()
		tc.Local = peerAddr(i)
		req := pathReq(path)
		qp, err := pd.Dial(testContext(t), verbs.DialConfig{Remote: h.addr, Transport: tc, PrivateData: req.Append(nil),
			QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 16, MaxRecv: 16}, Setup: verbs.Setup{Timeout: testTimeout}})
		if err == nil {
			qp.Abort(nil)
			<-qp.Done()
		}
		return err
	}
	for i := range 2 {
		for path := range byte(maxPendingPeer) {
			busy.Go(func() { _ = dial(i, path) })
		}
	}
	eventually(t, "the server is busy with two peers", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.pending == maxPending
	})
	if err := dial(2, 0); err != nil {
		t.Errorf("the first connection of another peer: %v", err)
	}
	close(release)
	busy.Wait()
}
