package ipsectest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) != "" {
		os.Exit(helper())
	}
	if os.Getenv(tablelessVar) != "" {
		os.Exit(tableless())
	}
	goleak.VerifyTestMain(m)
}

const port = 7471

// patience bounds waits that normally take a second. An emulated machine beside others
// is slow, and a delete waits for IKE to repeat what it sent while the wire was cut.
const patience = 2 * time.Minute

// canary is in all that these tests send through a link. What they send in clear on
// purpose does not contain it.
var canary = lab.NewCanary()

// host is a lab host with a Manager.
type host struct {
	*lab.Host
	m    *ipsec.Manager
	stop func()
	v6   bool // talk IPv6

	answers time.Duration // how long it waits for strongSwan

	mu      sync.Mutex
	carries []sender // all streams that were opened and accepted here
}

// sender knows how many of its bytes the peer has not acknowledged.
type sender interface{ Outq() (int, error) }

// carry registers a stream.
func (h *host) carry(s sender) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.carries = append(h.carries, s)
}

// acknowledged waits until each end has acknowledged what came from the other: both
// carriers delay that, and an unacknowledged byte counts as traffic that waits.
func (p *pair) acknowledged(t *testing.T) {
	t.Helper()
	eventually(t, "all that was sent is acknowledged", func() bool {
		for _, h := range []*host{p.alpha, p.beta} {
			h.mu.Lock()
			waits := slices.ContainsFunc(h.carries, func(s sender) bool {
				n, err := s.Outq() // which fails when the stream has ended
				return err == nil && n > 0
			})
			h.mu.Unlock()
			if waits {
				return false
			}
		}
		return true
	})
}

// at is the host's address that the link uses.
func (h *host) at() netip.Addr {
	if h.v6 {
		return h.Addr6()
	}
	return h.Addr()
}

// pair is two hosts that have each other as a peer.
type pair struct {
	lab         *lab.Lab
	alpha, beta *host
	key         auth.Secret
	kind        transport.Kind // of the link

	// more, if set, adds what a carrier needs beside its kind.
	more func(h *host, cfg *transport.Config, dials bool)
}

func newPair(t *testing.T, cfg lab.Config) *pair {
	t.Helper()
	cfg.Canary = canary
	l := lab.Start(t, cfg)
	p := &pair{lab: l, alpha: newHost(t, l.Host("alpha")), beta: newHost(t, l.Host("beta")), key: auth.GenerateSecret()}
	return p
}

func newHost(t *testing.T, lh *lab.Host) *host {
	t.Helper()
	return newHostWith(t, lh, patience)
}

// newHostWith makes a host that waits that long for strongSwan's answers.
func newHostWith(t *testing.T, lh *lab.Host, answers time.Duration) *host {
	t.Helper()
	h := &host{Host: lh, answers: answers}
	h.start(t)
	t.Cleanup(func() { h.stop() })
	return h
}

// start runs a Manager; a host whose Manager was closed gets a new one.
func (h *host) start(t *testing.T) {
	t.Helper()
	m, err := ipsec.New(ipsec.Config{Socket: h.ViciSocket(), NetNS: h.NetNS(), CallTimeout: h.answers, Logger: logger(t, h.Name())})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Run(context.Background()) }()
	h.m = m
	h.stop = sync.OnceFunc(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close the manager of %s: %v", h.Name(), err)
		}
		if err := <-ended; err != nil {
			t.Errorf("the manager of %s: %v", h.Name(), err)
		}
	})
}

// peerOf is this host's setting for the other one.
func (p *pair) peerOf(h *host) pad.Peer {
	o := p.other(h)
	c := pad.Peer{Name: o.Name(), Local: h.at(), Remote: o.at(), LocalID: h.Name(), RemoteID: o.Name(), Port: port, PSK: p.key, OnDemand: true}
	if p.kind != transport.TCP {
		c.Links = []pad.Link{linkOf(p.kind)}
	}
	return c
}

func (p *pair) other(h *host) *host {
	if h == p.alpha {
		return p.beta
	}
	return p.alpha
}

func (p *pair) addPeers(t *testing.T) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		if err := h.m.AddPeer(t.Context(), p.peerOf(h)); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitCharon(t)
}

// awaitCharon waits until both Managers have handed their peers to charon.
func (p *pair) awaitCharon(t *testing.T) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		eventually(t, h.Name()+" has handed its peers to charon", func() bool {
			for _, st := range h.m.Peers() {
				if !st.Loaded {
					return false
				}
			}
			return h.m.DaemonStatus().Connected
		})
	}
}

// echo serves echoes on a host's port, of connections that its Manager admits.
func (h *host) echo(t *testing.T, refused func(error)) {
	t.Helper()
	t.Cleanup(h.serve(t, refused))
}

// serve is echo until the returned function is called.
func (h *host) serve(t *testing.T, refused func(error)) (end func()) {
	t.Helper()
	return h.serveAt(t, port, refused)
}

func (h *host) serveAt(t *testing.T, port uint16, refused func(error)) (end func()) {
	t.Helper()
	var ln *transport.Listener
	err := h.Do(func() (err error) {
		ln, err = transport.Listen(t.Context(), netip.AddrPortFrom(h.at(), port), &transport.Config{Protector: h.m,
			OnRefused: func(_ transport.Flow, err error) {
				if refused != nil {
					refused(err)
				}
			}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []*transport.Conn
	wg.Go(func() {
		for {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			h.carry(c)
			wg.Go(func() { _, _ = io.Copy(c, c) })
		}
	})
	return sync.OnceFunc(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

func (h *host) dial(t *testing.T, to *host) (*transport.Conn, error) {
	t.Helper()
	return h.dialWith(t, to, transport.Config{})
}

func (h *host) mustDialWith(t *testing.T, to *host, cfg transport.Config) *transport.Conn {
	t.Helper()
	c, err := h.dialWith(t, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (h *host) dialWith(t *testing.T, to *host, cfg transport.Config) (*transport.Conn, error) {
	t.Helper()
	cfg.Protector, cfg.Local = h.m, h.at()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var c *transport.Conn
	err := h.Do(func() (err error) {
		c, err = transport.Dial(ctx, netip.AddrPortFrom(to.at(), port), &cfg)
		return err
	})
	if err == nil {
		h.carry(c)
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func (h *host) mustDial(t *testing.T, to *host) *transport.Conn {
	t.Helper()
	return h.mustDialWith(t, to, transport.Config{})
}

// pingSize is the length to which the canary extends a short ping.
const pingSize = 64

// ping sends a text over the connection, filled up with the canary, and waits for
// its echo.
func ping(c stream, text string) error { return pingWithin(c, text, time.Minute) }

func pingWithin(c stream, text string, d time.Duration) error {
	text += string(canary.Bytes(max(0, pingSize-len(text))))
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != text {
		return fmt.Errorf("sent %q, the echo is %q", text, b)
	}
	return nil
}

// talker sends echoes without pause until stopped.
type talker struct {
	stopped chan struct{}
	done    chan struct{}
	mu      sync.Mutex
	pings   int
	gap     time.Duration
	err     error
}

func talk(c stream) *talker {
	k := &talker{stopped: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		for {
			select {
			case <-k.stopped:
				return
			default:
			}
			t := time.Now()
			err := ping(c, "")
			k.mu.Lock()
			k.pings++
			k.gap, k.err = max(k.gap, time.Since(t)), err
			k.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return k
}

func (k *talker) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pings
}

// longest returns the longest gap since the last call.
func (k *talker) longest() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.gap
	k.gap = 0
	return g
}

// moves waits until n more echoes have come.
func (k *talker) moves(t *testing.T, n int) {
	t.Helper()
	from := k.count()
	eventually(t, "echoes go on", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.err != nil || k.pings >= from+n
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		t.Fatalf("the stream broke: %v", k.err)
	}
}

func (k *talker) end(t *testing.T) {
	t.Helper()
	close(k.stopped)
	<-k.done
	if k.err != nil {
		t.Errorf("the stream broke: %v", k.err)
	}
}

// capture watches the wire of a host; allow are the kinds of packets that the test
// sends in clear itself.
func capture(t *testing.T, h *host, allow ...string) *lab.Capture {
	t.Helper()
	return captureWith(t, h, lab.CaptureOptions{Allow: allow})
}

func captureWith(t *testing.T, h *host, o lab.CaptureOptions) *lab.Capture {
	t.Helper()
	c, err := h.Capture(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func counted(t *testing.T, c *lab.Capture) lab.Counts {
	t.Helper()
	counts, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range c.Faults() {
		t.Error(fault)
	}
	return counts
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

func installed(t *testing.T, h *host, child string) int {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		return 0
	}
	n := 0
	for _, sa := range sas {
		for _, c := range sa.Children {
			if c.Name == child && c.IsInstalled() {
				n++
			}
		}
	}
	return n
}

// logger writes to the test's log until the test ends.
func logger(t *testing.T, name string) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})).With("host", name)
}

type testWriter struct {
	mu    sync.Mutex
	t     *testing.T
	ended bool
}

func (w *testWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

func (w *testWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}
