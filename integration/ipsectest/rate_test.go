package ipsectest

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// rdmaPair is a stream of package verbs from alpha to beta.
func rdmaPair(t *testing.T, p *pair) (a, b conformance.Endpoint) {
	t.Helper()
	// As between two IronWarp hosts: ESP protects the bytes, and FPDUs are large.
	cfg := verbs.Setup{NoCRC: true, LargeFPDU: verbs.MaxLargeFPDU}
	to := netip.AddrPortFrom(p.beta.at(), port)
	theirs, ours := conformance.NewHost(t), conformance.NewHost(t)
	var ln *verbs.Listener
	err := p.beta.Do(func() (err error) {
		ln, err = theirs.Device.Listen(t.Context(), to, verbs.ListenConfig{Transport: &transport.Config{Protector: p.beta.m}, Setup: cfg})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	type end struct {
		e   conformance.Endpoint
		err error
	}
	accepted := make(chan end, 1)
	go func() {
		e, err := theirs.Endpoint(t, 0, func(pd *verbs.PD, qc verbs.QPConfig) (*verbs.QP, error) {
			r, err := ln.Accept(t.Context())
			if err != nil {
				return nil, err
			}
			return r.Accept(t.Context(), pd, verbs.AcceptConfig{QP: qc})
		})
		accepted <- end{e, err}
	}()
	a, err = ours.Endpoint(t, 0, func(pd *verbs.PD, qc verbs.QPConfig) (qp *verbs.QP, err error) {
		err = p.alpha.Do(func() (err error) {
			qp, err = pd.Dial(t.Context(), verbs.DialConfig{QP: qc, Remote: to, Transport: &transport.Config{Protector: p.alpha.m, Local: p.alpha.at()}, Setup: cfg})
			return err
		})
		return qp, err
	})
	if err != nil {
		ln.Close()
	}
	other := <-accepted
	if err := errors.Join(err, other.err); err != nil {
		t.Fatal(err)
	}
	return a, other.e
}

// writer posts RDMA Writes to one place after the other of the peer's region, over and
// over.
type writer struct {
	e            conformance.Endpoint
	own, peer    conformance.Region
	id           uint64
	longest      time.Duration // between two completions
	last         time.Time
	size, depth  int
	posted, done int
}

func newWriter(t *testing.T, e, peer conformance.Endpoint, size, depth int) *writer {
	t.Helper()
	w := &writer{e: e, size: size, depth: depth}
	var err error
	if w.own, err = e.Region(size, conformance.LocalWrite); err != nil {
		t.Fatal(err)
	}
	if w.peer, err = peer.Region(size, conformance.LocalWrite|conformance.RemoteWrite|conformance.RemoteRead); err != nil {
		t.Fatal(err)
	}
	return w
}

// write posts one Write; the queue is kept at depth.
func (w *writer) write(ctx context.Context) error {
	if w.posted-w.done == w.depth {
		if err := w.reap(ctx); err != nil {
			return err
		}
	}
	w.posted++
	return w.post(conformance.OpWrite, w.size)
}

func (w *writer) post(op conformance.Op, n int) error {
	w.id++
	return w.e.PostSend(conformance.WR{ID: w.id, Op: op, Flags: conformance.Signaled, SGL: []conformance.SGE{{Region: w.own, Len: n}}, STag: w.peer.STag, TO: w.peer.TO})
}

func (w *writer) reap(ctx context.Context) error {
	wc, err := w.e.Completion(ctx)
	if err != nil {
		return err
	}
	if wc.Status != conformance.OK {
		end, err := w.e.End(ctx)
		return errors.Join(errors.New("the stream has ended "+end.String()), err)
	}
	now := time.Now()
	if !w.last.IsZero() {
		w.longest = max(w.longest, now.Sub(w.last))
	}
	w.last = now
	w.done++
	return nil
}

// sync returns when the peer has everything: a Read is answered after the Writes (RFC
// 5040 section 5.5).
func (w *writer) sync(ctx context.Context) error {
	w.posted++
	if err := w.post(conformance.OpRead, 1); err != nil {
		return err
	}
	for w.done < w.posted {
		if err := w.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tcpSink is a plain TCP connection from alpha to beta, which answers with a byte
// whenever n bytes have come. Its listener is closed.
func tcpSink(t *testing.T, p *pair, n int) *transport.Conn {
	t.Helper()
	var ln *transport.Listener
	err := p.beta.Do(func() (err error) {
		ln, err = transport.Listen(t.Context(), netip.AddrPortFrom(p.beta.at(), port), &transport.Config{Protector: p.beta.m})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept(t.Context())
		accepted <- err
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 256<<10)
		for {
			for left := n; left > 0; {
				k, err := c.Read(buf[:min(len(buf), left)])
				if err != nil {
					return
				}
				left -= k
			}
			if _, err := c.Write(buf[:1]); err != nil {
				return
			}
		}
	}()
	c, err := p.alpha.dial(t, p.beta)
	if err != nil {
		ln.Close()
	}
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c
}

func TestKernelESPCarriesRDMAAsFastAsTCP(t *testing.T) {
	row(t, "bytes by RDMA Write of 64 KiB against plain TCP, both through the same kernel ESP in turn")
	const size, n, rounds = 64 << 10, 128, 5
	p := kernelPair(t)
	p.addPeers(t)
	tcp := tcpSink(t, p, size*n)
	a, b := rdmaPair(t, p)
	w := newWriter(t, a, b, size, 32)
	buf := make([]byte, size)
	var ratios, rates []float64
	for round := range rounds + 1 {
		begin := time.Now()
		for range n {
			if err := w.write(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		rdma := time.Since(begin)
		begin = time.Now()
		for range n {
			if _, err := tcp.Write(buf); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(tcp, buf[:1]); err != nil {
			t.Fatal(err)
		}
		plain := time.Since(begin)
		if round > 0 { // the first one warms up
			ratios = append(ratios, plain.Seconds()/rdma.Seconds())
			rates = append(rates, size*n/1e6/rdma.Seconds())
		}
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	detail(t, "%.2f of TCP's rate (median of %d rounds, %.2f to %.2f; %.0f MB/s in this emulated machine)", ratios[rounds/2], rounds, ratios[0], ratios[rounds-1], rates[rounds/2])
}

// TestKernelESPUnderAStormOfDeletes keeps a queue of RDMA Writes full while the
// child SA is deleted fifty times, by either host in turn.
func TestKernelESPUnderAStormOfDeletes(t *testing.T) {
	row(t, "RDMA Writes while the child is deleted 50 times by either host in turn")
	const size, deletes, between = 16 << 10, 50, 24
	p := kernelPair(t)
	wire := capture(t, p.beta)
	p.addPeers(t)
	a, b := rdmaPair(t, p)
	w := newWriter(t, a, b, size, 16)
	for i := range deletes {
		for range between {
			if err := w.write(t.Context()); err != nil {
				t.Fatalf("after %d deletes: %v", i, err)
			}
		}
		h := p.alpha
		if i%2 == 1 {
			h = p.beta
		}
		deleteChild(t, h, p.other(h).Name())
	}
	if err := w.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts := counted(t, wire)
	detail(t, "%d Writes, longest stall %d ms; on the wire %d packets in ESP, %d in clear", w.done, w.longest.Milliseconds(), counts.ESP, counts.Clear(port))
	if counts.Clear(port) != 0 || counts.ESP == 0 {
		t.Errorf("on the wire: %v", counts)
	}
}
