package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// SCTP in UDP by itself, without DDP: messages on an association.

const roleSCTP = "sctp"

// What the streams of an association are for.
const (
	sctpSink = iota // messages are counted
	sctpEcho        // messages come back
)

// wireMTU is that of Ethernet in bytes, which the rows of SCTP keep to on
// loopback as well.
const wireMTU = 1500

// sctpMessage is the size in bytes of the messages that are compared: with it the
// SCTP stacks all fill the packets of a wire with wireMTU, or nearly.
const sctpMessage = 1400

// listenSCTP opens an endpoint at a UDP address. accept may be nil.
func listenSCTP(at netip.AddrPort, accept func(*sctp.Assoc) assoc.Receiver) (*sctp.Endpoint, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	return sctp.Listen(c, sctp.Config{Params: assoc.Params{Backlog: 1024}, MTU: wireMTU, Accept: accept,
		Admit: func(_, _ netip.AddrPort, _ bool) error { return nil }})
}

func serveSCTP(ctx context.Context, listen string) (string, error) {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return "", err
	}
	e, err := listenSCTP(at, func(a *sctp.Assoc) assoc.Receiver { return &sctpServer{a: a} })
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { e.Close() })
	go func() {
		for { // their Receivers do the work
			if _, err := e.Accept(ctx); err != nil {
				return
			}
		}
	}()
	return e.Addr().String(), nil
}

// sctpServer takes what comes for one association.
type sctpServer struct {
	a    *sctp.Assoc
	bufs [1][]byte
	out  [1]assoc.Outgoing
}

func (s *sctpServer) Message(m *assoc.Message) bool {
	if m.Stream == sctpEcho {
		s.bufs[0] = m.Payload
		s.out[0] = assoc.Outgoing{Stream: sctpEcho, PPID: m.PPID, Bufs: s.bufs[:]}
		if n, err := s.a.TrySend(s.out[:]); n == 0 && err == nil {
			s.a.Abort("there is no room for an answer")
		}
	}
	return false
}

func (s *sctpServer) Event(assoc.Event) {}
func (s *sctpServer) BatchEnd()         {}

// sctpClient is the measuring end.
type sctpClient struct {
	e    *sctp.Endpoint
	a    *sctp.Assoc
	back chan struct{} // an answer
}

func (c *sctpClient) Message(*assoc.Message) bool {
	c.back <- struct{}{}
	return false
}

func (c *sctpClient) Event(assoc.Event) {}
func (c *sctpClient) BatchEnd()         {}

func dialSCTP(ctx context.Context, addr string) (*sctpClient, error) {
	remote, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	local := netip.AddrPortFrom(any4, 0)
	if remote.Addr().Is6() {
		local = netip.AddrPortFrom(any6, 0)
	}
	c := &sctpClient{back: make(chan struct{}, 1)}
	if c.e, err = listenSCTP(local, nil); err != nil {
		return nil, err
	}
	c.a, err = c.e.Dial(ctx, remote, sctp.DialConfig{Receiver: func(*sctp.Assoc) assoc.Receiver { return c }})
	if err != nil {
		c.e.Close()
		return nil, err
	}
	return c, nil
}

func (c *sctpClient) Close() error { return c.e.Close() }

// sctpList is how many messages are sent by one call.
const sctpList = 64

// messages sends messages of size bytes while more says so, and then one that
// follows them all and is answered. They are shorter while the path is not known
// to carry such packets.
func (c *sctpClient) messages(ctx context.Context, size int, more func(n int) bool) (n, bytes int, err error) {
	p, ms := make([]byte, size), make([]assoc.Outgoing, sctpList)
	for more(n) {
		fit := min(size, c.a.MaxMessage())
		for i := range ms {
			ms[i] = assoc.Outgoing{Stream: sctpSink, Bufs: append(ms[i].Bufs[:0], p[:fit])}
		}
		k, err := c.a.Send(ctx, ms)
		n += k
		bytes += k * fit
		if err != nil && !errors.Is(err, assoc.ErrTooLong) {
			return n, bytes, err
		}
	}
	return n, bytes, c.echo(ctx, []byte("all"), true)
}

// echo sends a message and waits until it is back; with barrier it follows
// everything before it.
func (c *sctpClient) echo(ctx context.Context, p []byte, barrier bool) error {
	if _, err := c.a.Send(ctx, []assoc.Outgoing{{Stream: sctpEcho, Bufs: [][]byte{p}, Barrier: barrier}}); err != nil {
		return err
	}
	select {
	case <-c.back:
		return nil
	case <-c.a.Done():
		return errors.Join(errors.New("the association is over"), c.a.Err())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sctpMessages measures messages of size bytes on one association.
func sctpMessages(p *peer, size int) func(context.Context) (metrics, error) {
	return perMessage(size, func(ctx context.Context) (metrics, error) {
		c, err := dialSCTP(ctx, p.addr)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", p.addr, err)
		}
		defer c.Close()
		return measureStream(p, func(until time.Time) (float64, error) {
			_, bytes, err := c.messages(ctx, size, func(int) bool { return time.Now().Before(until) })
			return float64(bytes), err
		})
	})
}

// sctpPingPong measures round trips of messages of size bytes.
func sctpPingPong(p *peer, size int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialSCTP(ctx, p.addr)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", p.addr, err)
		}
		defer c.Close()
		b := make([]byte, size)
		return measureRoundTrips(p.time, func() error { return c.echo(ctx, b, false) })
	}
}
