package invite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Listen opens a token's port at each of its addresses. It fails at the first that cannot be
// listened on.
func Listen(ctx context.Context, t Token) ([]net.Listener, error) {
	var all []net.Listener
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	for _, a := range t.Addresses {
		l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(a, t.Port).String())
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, fmt.Errorf("listen for the joiner: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// Invite awaits the joiner with a token at listeners, which it closes, and becomes its peer. It fails
// with ErrExpired if nobody came, and otherwise where this host has nothing of the other in the end.
func Invite(ctx context.Context, t Token, at []net.Listener, s Side) (Result, error) {
	h := &host{side: s, pending: &pending{token: t}, joined: make(chan joined, 1), waiting: map[net.Conn]uint64{}}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, l := range at {
		wg.Go(func() { h.accept(ctx, l, &wg) })
	}
	expired := time.NewTimer(t.Expires.Sub(s.time()))
	defer expired.Stop()
	var r Result
	var err error
	select {
	case j := <-h.joined:
		c := &conn{Conn: j.Conn, role: inviter}
		r, err = h.serve(ctx, c, j.hello)
		c.Close()
	case <-expired.C:
		err = ErrExpired
	case <-ctx.Done():
		err = ctx.Err()
	}
	cancel()
	for _, l := range at {
		l.Close()
	}
	h.closeWaiting()
	wg.Wait()
	close(h.joined)
	for j := range h.joined { // it came as the invitation ended
		j.Close()
	}
	return r, err
}

// host admits one of those who connect.
type host struct {
	side    Side
	pending *pending
	joined  chan joined // who was admitted: one

	mu      sync.Mutex // guards the fields below it
	closed  bool
	arrived uint64
	waiting map[net.Conn]uint64 // those who have not said Hello yet, by when they came
}

// joined is the connection of the one joiner.
type joined struct {
	net.Conn
	hello hello
}

func (h *host) accept(ctx context.Context, l net.Listener, wg *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			// Out of file descriptors, for example: those that wait end soon.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			continue
		}
		if h.await(c) {
			wg.Go(func() { h.admit(c) })
		}
	}
}

// await counts a connection among those that wait, in place of the oldest if they are too many. It
// closes it, and reports false, when the invitation has ended.
func (h *host) await(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		c.Close()
		return false
	}
	if len(h.waiting) >= maxWaiting {
		var oldest net.Conn
		for o, at := range h.waiting {
			if oldest == nil || at < h.waiting[oldest] {
				oldest = o
			}
		}
		oldest.Close()
		delete(h.waiting, oldest)
	}
	h.arrived++
	h.waiting[c] = h.arrived
	return true
}

// leave takes a connection out of those that give way to others. It reports false if it had to already.
func (h *host) leave(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, is := h.waiting[c]
	delete(h.waiting, c)
	return is
}

func (h *host) closeWaiting() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for c := range h.waiting {
		c.Close()
	}
}

// admit reads a Hello, and hands the connection of the one joiner on.
func (h *host) admit(raw net.Conn) {
	_ = raw.SetDeadline(time.Now().Add(helloTime))
	c := &conn{Conn: raw, role: inviter}
	body, err := c.expect(kindHello)
	// Before the invitation is taken: the one joiner gives way to nobody.
	stays := h.leave(raw)
	var m hello
	if err == nil {
		m, err = parseHello(body)
	}
	if err != nil || !stays {
		raw.Close()
		return
	}
	if err = h.pending.take(h.side.time(), m); err == nil {
		h.joined <- joined{raw, m}
		return
	}
	// Whoever it is may go before it has read that.
	_ = c.sendPlain(kindRefusal, codeOfRefusal(err))
	raw.Close()
}

// serve carries out the exchange with the joiner.
func (h *host) serve(ctx context.Context, c *conn, m hello) (Result, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(helloTime))
	a, err := newAnswer(h.pending.token, m)
	if err == nil {
		err = c.sendPlain(kindAnswer, a.answer.append(nil))
	}
	var body []byte
	if err == nil {
		body, err = c.expect(kindOpening)
	}
	var s share
	if err == nil {
		s, err = parseShare(body)
	}
	if err == nil {
		c.keys, err = a.opened(s)
	}
	if err != nil {
		return Result{}, fmt.Errorf("somebody with the token has connected from %s, and did not complete the exchange: %w", c.RemoteAddr(), err)
	}
	own := h.side.Own
	return h.side.settle(ctx, c, func(p Partner) error {
		if p.Profile != own.Profile || p.Transport != own.Transport {
			return fmt.Errorf("%w: the joiner wants another IPsec profile or transport than those of the invitation", ErrTampered)
		}
		return nil
	})
}
