package ipsectest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// associations are the kinds of carriers beside TCP.
var associations = []struct {
	name string
	kind transport.Kind
}{
	{"SCTP in UDP", transport.SCTPUDP},
	{"kernel SCTP", transport.SCTP},
}

// newPairOf is a pair whose link is of a kind. Where the kernel lacks it the test
// is skipped.
func newPairOf(t *testing.T, kind transport.Kind, cfg lab.Config) *pair {
	t.Helper()
	if kind == transport.SCTP {
		lab.RequireKernelSCTP(t)
	}
	p := newPair(t, cfg)
	p.kind = kind
	return p
}

// linkOf is the link that a kind of carriers has in these tests.
func linkOf(kind transport.Kind) pad.Link {
	if kind == transport.SCTPUDP {
		return pad.Link{Protocol: transport.ProtoUDP, Port: sctp.DefaultPort}
	}
	return pad.Link{Protocol: kind.Protocol(), Port: port}
}

// clear is how many packets of the pair's link crossed the wire outside ESP.
func (p *pair) clear(c lab.Counts) int {
	k := linkOf(p.kind)
	return c.ClearOf(k.Protocol, k.Port)
}

// stream is a TCP connection or an association.
type stream interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	Flow() transport.Flow
	Protection() transport.Protection
}

// open dials the other host by the pair's kind of carrier.
func (p *pair) open(t *testing.T, from *host, cfg transport.Config) (stream, error) {
	t.Helper()
	if p.kind == transport.TCP {
		c, err := from.dialWith(t, p.other(from), cfg)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	cfg.Kind, cfg.Protector, cfg.Local = p.kind, from.m, from.at()
	if p.more != nil {
		p.more(from, &cfg, true)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var a *transport.Assoc
	err := from.Do(func() (err error) {
		a, err = transport.DialSCTP(ctx, netip.AddrPortFrom(p.other(from).at(), port), &cfg, newInbox)
		return err
	})
	if err != nil {
		return nil, err
	}
	from.carry(a)
	c := &association{Assoc: a, in: a.Receiver().(*inbox).in}
	t.Cleanup(func() { c.Close() })
	return c, nil
}

func (p *pair) mustOpen(t *testing.T, from *host) stream {
	t.Helper()
	s, err := p.open(t, from, transport.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve echoes what comes by the pair's kind of carrier, until the returned function is
// called.
func (p *pair) serve(t *testing.T, h *host, refused func(error)) (end func()) {
	t.Helper()
	if p.kind == transport.TCP {
		return h.serve(t, refused)
	}
	var ln *transport.SCTPListener
	err := h.Do(func() (err error) {
		cfg := &transport.Config{Kind: p.kind, Protector: h.m, OnRefused: func(_ transport.Flow, err error) {
			if refused != nil {
				refused(err)
			}
		}}
		if p.more != nil {
			p.more(h, cfg, false)
		}
		ln, err = transport.ListenSCTP(t.Context(), netip.AddrPortFrom(h.at(), port), cfg, func(a assoc.Association) assoc.Receiver {
			h.carry(a) // before the first echo, which does not wait for Accept
			return echoer{a}
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var all []*transport.Assoc
	wg.Go(func() {
		for {
			a, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			all = append(all, a)
		}
	})
	return sync.OnceFunc(func() {
		ln.Close()
		wg.Wait()
		for _, a := range all {
			a.Close()
		}
	})
}

// echo is serve until the test ends.
func (p *pair) echo(t *testing.T, h *host, refused func(error)) {
	t.Helper()
	t.Cleanup(p.serve(t, h, refused))
}

// echoer sends messages back; of long ones, which need not fit the other
// direction's path, their first 4 bytes and the checksum of the others.
type echoer struct{ a assoc.Association }

const longMessage = 512

func (e echoer) Message(m *assoc.Message) bool {
	answer := m.Payload
	if len(answer) > longMessage {
		answer = binary.BigEndian.AppendUint32(slices.Clone(answer[:4]), crc32.ChecksumIEEE(answer[4:]))
	}
	// An association that has ended needs no echo.
	_ = e.a.SendNow(assoc.Outgoing{Stream: m.Stream, PPID: m.PPID, Bufs: [][]byte{answer}})
	return false
}
func (e echoer) Event(assoc.Event) {}
func (e echoer) BatchEnd()         {}

// inbox keeps messages until they are read. Those that nobody awaits are dropped.
type inbox struct{ in chan []byte }

func newInbox(assoc.Association) assoc.Receiver { return &inbox{make(chan []byte, 512)} }

func (b *inbox) Message(m *assoc.Message) bool {
	select {
	case b.in <- append([]byte(nil), m.Payload...):
	default:
	}
	return false
}
func (b *inbox) Event(assoc.Event) {}
func (b *inbox) BatchEnd()         {}

// association is a stream of messages, each Write one of them.
type association struct {
	*transport.Assoc
	in       chan []byte
	rest     []byte
	deadline time.Time
}

func (a *association) SetDeadline(t time.Time) error {
	a.deadline = t
	return nil
}

// Close ends the association gracefully, as TCP's does, if there is still a peer.
func (a *association) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return a.Shutdown(ctx)
}

func (a *association) Write(b []byte) (int, error) {
	ctx, cancel := context.WithDeadline(context.Background(), a.deadline)
	defer cancel()
	for {
		n, err := a.TrySend([]assoc.Outgoing{{Stream: 0, PPID: 16, Bufs: [][]byte{b}}})
		if n == 1 || err != nil {
			return len(b), err
		}
		if err := a.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func (a *association) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		timer := time.NewTimer(time.Until(a.deadline))
		defer timer.Stop()
		select {
		case a.rest = <-a.in:
		case <-a.Done():
			return 0, fmt.Errorf("the association is over: %w", errors.Join(a.Err(), io.EOF))
		case <-timer.C:
			return 0, os.ErrDeadlineExceeded
		}
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}
