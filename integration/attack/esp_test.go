package attack

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const espPort = 7471

// esp is hosts in network namespaces. The first is the target's; the others are its
// peers, with an SA each, and have no other credentials.
type esp struct {
	lab   *lab.Lab
	hosts map[string]*espHost
	ln    *transport.Listener // of the connections of reroute, on the target's host
}

// espHost is a host with strongSwan and the peers that it has.
type espHost struct {
	*lab.Host
	ipsec *ipsec.Manager
}

func newESP(t *testing.T, target string, peers ...string) *esp {
	t.Helper()
	e := &esp{lab: lab.Start(t, lab.Config{Hosts: append([]string{target}, peers...), Canary: canary}), hosts: map[string]*espHost{}}
	for _, h := range e.lab.Hosts() {
		m := must(ipsec.New(ipsec.Config{Socket: h.ViciSocket(), NetNS: h.NetNS()}))(t)
		ended := make(chan error, 1)
		go func() { ended <- m.Run(context.Background()) }()
		t.Cleanup(func() {
			m.Close()
			if err := <-ended; err != nil {
				t.Errorf("the IPsec manager of %s: %v", h.Name(), err)
			}
		})
		e.hosts[h.Name()] = &espHost{h, m}
	}
	key := auth.GenerateSecret()
	v := e.hosts[target]
	for _, name := range peers {
		p := e.hosts[name]
		v.know(t, p, key)
		p.know(t, v, key)
	}
	for _, h := range e.hosts {
		h.await(t)
	}
	return e
}

// await waits until strongSwan knows the host's peers.
func (h *espHost) await(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for {
		loaded := h.ipsec.DaemonStatus().Connected
		for _, p := range h.ipsec.Peers() {
			loaded = loaded && p.Loaded
		}
		if loaded {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("strongSwan of %s does not know its peers", h.Name())
		}
	}
}

func (h *espHost) know(t *testing.T, o *espHost, key auth.Secret) {
	t.Helper()
	err := h.ipsec.AddPeer(t.Context(), pad.Peer{Name: o.Name(), Local: h.Addr(), Remote: o.Addr(), LocalID: h.Name(), RemoteID: o.Name(), Port: espPort, PSK: key, OnDemand: true})
	if err != nil {
		t.Fatal(err)
	}
}

func (h *espHost) transport() *transport.Config {
	return &transport.Config{Protector: h.ipsec, Local: h.Addr()}
}

// dial opens a TCP connection that the SA with the other host protects.
func (h *espHost) dial(ctx context.Context, to *espHost) (c *transport.Conn, err error) {
	err = h.Do(func() error {
		c, err = transport.Dial(ctx, netip.AddrPortFrom(to.Addr(), espPort), h.transport())
		return err
	})
	return c, err
}

// serve has the target take streams on a host.
func (e *esp) serve(v *target, on string) {
	v.Helper()
	h := e.hosts[on]
	var ln *verbs.Listener
	err := h.Do(func() (err error) {
		ln, err = v.dev.Listen(v.Context(), netip.AddrPortFrom(h.Addr(), espPort), verbs.ListenConfig{Transport: h.transport()})
		return err
	})
	if err != nil {
		v.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			// Whose stream fails hears of it.
			_, _ = r.Accept(context.Background(), v.pd, verbs.AcceptConfig{QP: verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, MaxRecv: 4}})
		}
	}()
	v.Cleanup(func() {
		ln.Close()
		<-done
	})
}

// open opens a connection from one host to another, within that time, and sends nothing
// on it.
func (e *esp) open(v *target, from, to string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(v.Context(), within)
	defer cancel()
	c, err := e.hosts[from].dial(ctx, e.hosts[to])
	if err == nil {
		v.Cleanup(func() { c.Close() })
	}
	return err
}

// start is open, and MPA's start-up.
func (e *esp) start(v *target, from, to string) error {
	ctx, cancel := context.WithTimeout(v.Context(), time.Minute)
	defer cancel()
	c, err := e.hosts[from].dial(ctx, e.hosts[to])
	if err != nil {
		return err
	}
	v.Cleanup(func() { c.Close() })
	_, err = mpa.Client(ctx, c, &mpa.Config{})
	return err
}

// ways returns a reroute that uses connections from one host to another.
func (e *esp) ways(t *testing.T, from, to string) func(t *testing.T, attacker ddp.LLP) ddp.LLP {
	t.Helper()
	src, dst := e.hosts[from], e.hosts[to]
	err := dst.Do(func() (err error) {
		e.ln, err = transport.Listen(t.Context(), netip.AddrPortFrom(dst.Addr(), espPort), dst.transport())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.ln.Close() })
	return func(t *testing.T, attacker ddp.LLP) ddp.LLP {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		near := must(src.dial(ctx, dst))(t)
		far := must(e.ln.Accept(ctx))(t)
		answered := make(chan *mpa.Conn, 1)
		go func() {
			defer close(answered)
			r, err := mpa.Server(ctx, far, nil)
			if err != nil {
				return
			}
			if m, err := r.Accept(ctx, mpa.AcceptOptions{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}); err == nil {
				answered <- m
			}
		}()
		attackersEnd := must(mpa.Client(ctx, near, &mpa.Config{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}))(t)
		targetsEnd := <-answered
		if targetsEnd == nil {
			t.Fatal("MPA's start-up failed on the target's side")
		}
		pump(t, attacker, attackersEnd)
		return targetsEnd
	}
}

// pump forwards segments between two LLPs, both ways, until both are over.
func pump(t *testing.T, attacker, m ddp.LLP) {
	// Before it the target, as responder, says nothing (RFC 5044 section 7.1.2).
	first := iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite}.Append(nil)
	if err := errors.Join(m.Append(first, nil), m.Flush()); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for _, way := range [][2]ddp.LLP{{attacker, m}, {m, attacker}} {
		both.Go(func() {
			if err := way[0].Receive(onto{way[1]}); errors.Is(err, io.EOF) {
				way[1].CloseWrite()
				return
			}
			way[1].Close()
		})
	}
	t.Cleanup(func() {
		attacker.Close()
		m.Close()
		both.Wait()
	})
}

// onto puts segments on an LLP.
type onto struct{ ddp.LLP }

func (o onto) Segment(seg []byte) error {
	n := ddp.HeaderLen(seg)
	if n == 0 {
		n = len(seg)
	}
	if err := o.Append(seg[:n], [][]byte{seg[n:]}); err != nil {
		return err
	}
	return o.Flush() // which is done with the segment
}

func (o onto) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (o onto) DirectBuffer() ([]byte, error)         { panic("nothing is placed") }
func (o onto) DirectDone(int) error                  { panic("nothing is placed") }
func (o onto) BatchEnd()                             {}
