package conformance

import (
	"context"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

// Host is an RNIC of package verbs, whose queue pairs can be ends of the suite.
type Host struct {
	Device *verbs.Device
	ULP    *verbs.ULP
	pds    [2]*verbs.PD // the streams', and another
	shared sharing
	srq    *verbs.SRQ // of all streams
	called bool       // completions are handed to a handler
	depth  int        // Reads outstanding

	dialIn, listenIn func(func() error) error // of OverCarrier
}

// Option changes what the queue pairs of a Host are like.
type Option func(*Host)

// sharing is whether queue pairs take receives from a shared receive queue.
type sharing uint8

const (
	ownQueue sharing = iota
	ownSRQ
	hostSRQ
)

// WithSRQ gives each queue pair a shared receive queue that no other uses, in
// place of a receive queue.
func WithSRQ(h *Host) { h.shared = ownSRQ }

// WithOneSRQ gives all queue pairs of a host one shared receive queue. It is for
// the cases that need SharedReceives; others would take each other's receives.
func WithOneSRQ(h *Host) { h.shared = hostSRQ }

// WithHandler has completions delivered to a handler, in place of being polled.
func WithHandler(h *Host) { h.called = true }

// WithReadDepth lets at most n Reads and Atomics of a queue pair be outstanding,
// in place of 4.
func WithReadDepth(n int) Option { return func(h *Host) { h.depth = n } }

// Between has OverCarrier dial within one function and listen within the other, which call
// theirs where another network is.
func Between(dial, listen func(func() error) error) Option {
	return func(h *Host) { h.dialIn, h.listenIn = dial, listen }
}

// NewHost opens an RNIC. When the test ends it is closed, and must then have
// nothing left in use.
func NewHost(t testing.TB, options ...Option) *Host {
	t.Helper()
	here := func(f func() error) error { return f() }
	h := &Host{depth: readDepth, dialIn: here, listenIn: here}
	for _, o := range options {
		o(h)
	}
	var err error
	if h.Device, err = verbs.Open(verbs.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.srq != nil {
			if err := h.srq.Destroy(); err != nil {
				t.Errorf("when all streams are over: %v", err)
			}
		}
		for _, pd := range h.pds {
			if err := pd.Dealloc(); err != nil {
				t.Errorf("when all streams are over: %v", err)
			}
		}
		u := h.Device.Usage()
		u.HalfOpen = 0 // associations live on for a while
		if u != (verbs.Limits{}) {
			t.Errorf("in use when all streams are over: %+v", u)
		}
		h.Device.Close()
		if u := h.Device.Usage(); u != (verbs.Limits{}) {
			t.Errorf("in use when the device is closed: %+v", u)
		}
	})
	if h.ULP, err = h.Device.NewULP("conformance", verbs.ULPConfig{Trust: verbs.ST}); err != nil {
		t.Fatal(err)
	}
	for i := range h.pds {
		if h.pds[i], err = h.ULP.AllocPD(); err != nil {
			t.Fatal(err)
		}
	}
	if h.shared == hostSRQ {
		if h.srq, err = h.pds[0].CreateSRQ(verbs.SRQConfig{MaxRecv: queueDepth, MaxSGE: verbs.MaxSGE}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// Start brings up a queue pair of pd by verbs.PD.Adopt, verbs.PD.Dial or
// verbs.ConnRequest.Accept.
type Start func(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error)

// depths of the queue pairs under test: small, so that they are reached.
const (
	queueDepth = 64
	readDepth  = 4
)

// Endpoint makes an end of the suite on the host. mulpdu is what its lower layer
// sends at most in a segment, 0 if that is not known. What it takes is given
// back when the test ends. It fails as start does.
func (h *Host) Endpoint(t testing.TB, mulpdu int, start Start) (Endpoint, error) {
	q := &queuePair{host: h, mulpdu: mulpdu}
	t.Cleanup(func() {
		if err := q.release(); err != nil {
			t.Errorf("give a queue pair's objects back: %v", err)
		}
	})
	var err error
	if h.called {
		in := &inbox{ch: make(chan struct{}, 1)}
		q.cq, err = h.ULP.CreateCQ(4*queueDepth, in)
		q.completions = in
	} else {
		q.cq, err = h.ULP.CreateCQ(4*queueDepth, nil)
		q.completions = q.cq
	}
	if err != nil {
		return nil, err
	}
	cfg := verbs.QPConfig{SendCQ: q.cq, RecvCQ: q.cq, MaxSend: queueDepth, MaxRecv: queueDepth, MaxSendSGE: verbs.MaxSGE, MaxRecvSGE: verbs.MaxSGE, IRD: h.depth, ORD: h.depth}
	switch h.shared {
	case ownSRQ:
		if q.srq, err = h.pds[0].CreateSRQ(verbs.SRQConfig{MaxRecv: queueDepth, MaxSGE: verbs.MaxSGE}); err != nil {
			return nil, err
		}
		cfg.SRQ, cfg.MaxRecv, cfg.MaxRecvSGE = q.srq, 0, 0
	case hostSRQ:
		cfg.SRQ, cfg.MaxRecv, cfg.MaxRecvSGE = h.srq, 0, 0
	}
	if q.qp, err = start(h.pds[0], cfg); err != nil {
		return nil, err
	}
	q.over, q.cancel = context.WithCancel(context.Background())
	go func() {
		<-q.qp.Done()
		q.cancel()
	}()
	return q, nil
}
