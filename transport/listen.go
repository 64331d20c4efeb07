package transport

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/ironwarp/ironwarp/internal/turn"
)

// Listener accepts connections that the Protector has admitted.
type Listener struct {
	ln    net.Listener
	cfg   *Config
	ready chan *Conn // unbuffered: a connection counts as pending until it is accepted

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	closeOnce sync.Once
	closeErr  error

	pending *pending
}

// Listen listens on local; port 0 picks a free one. ctx bounds only the call itself. It
// fails with ErrNoProtector, and with a *FlowError if it can't listen on the address.
func Listen(ctx context.Context, local netip.AddrPort, cfg *Config) (*Listener, error) {
	if cfg == nil || cfg.Protector == nil {
		return nil, ErrNoProtector
	}
	nl, err := openListener(ctx, local, cfg)
	if err != nil {
		return nil, flowError("listen", Flow{Protocol: ProtoTCP, Local: unmap(local)}, err)
	}
	l := &Listener{
		ln:      nl,
		cfg:     cfg,
		ready:   make(chan *Conn),
		pending: newPending(cfg.maxPending()),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.run)
	return l, nil
}

func openListener(ctx context.Context, local netip.AddrPort, cfg *Config) (net.Listener, error) {
	if cfg.Network != nil {
		return cfg.Network.Listen(local)
	}
	lc := net.ListenConfig{Control: cfg.control, KeepAlive: -1}
	// A multipath connection would add subflows that nobody admitted.
	lc.SetMultipathTCP(false)
	network := "tcp"
	switch {
	case cfg.OneFamily && unmap(local).Addr().Is4():
		network = "tcp4"
	case cfg.OneFamily:
		network = "tcp6"
	}
	return lc.Listen(ctx, network, local.String())
}

// Addr returns the listener's address.
func (l *Listener) Addr() netip.AddrPort { return addrPort(l.ln.Addr()) }

// Accept waits for the next admitted connection. After Close it returns
// net.ErrClosed.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.ready:
		l.pending.leave(c.flow.Remote.Addr())
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, flowError("accept", Flow{Protocol: ProtoTCP, Local: l.Addr()}, net.ErrClosed)
	}
}

// Close stops listening, closes the connections that were not accepted, and waits for
// their admissions to end. It is idempotent.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() {
		l.stop()
		l.closeErr = l.ln.Close()
	})
	l.wg.Wait()
	return l.closeErr
}

// run takes connections from the kernel and starts the admission of each.
func (l *Listener) run() {
	var line turn.Line
	for {
		nc, err := l.ln.Accept()
		if l.ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return
		}
		if err != nil {
			l.cfg.refused(Flow{Protocol: ProtoTCP, Local: l.Addr()}, flowError("accept", Flow{Protocol: ProtoTCP, Local: l.Addr()}, err))
			if !wait(l.ctx, acceptBackoff) {
				return
			}
			continue
		}
		f := tcpFlow(nc.LocalAddr(), nc.RemoteAddr())
		if !l.pending.enter(f.Remote.Addr()) {
			if tcp, ok := nc.(*net.TCPConn); ok {
				tcp.SetLinger(0) // nothing was exchanged: a reset leaves no state behind
			}
			nc.Close()
			l.cfg.refused(f, flowError("accept", f, ErrBusy))
			continue
		}
		mine := line.Join()
		l.wg.Go(func() {
			if !l.offer(nc, f, mine) {
				l.pending.leave(f.Remote.Addr())
			}
		})
	}
}

// offer gets a connection admitted and hands it to Accept. It reports whether it did.
func (l *Listener) offer(nc net.Conn, f Flow, mine *turn.Turn) bool {
	defer mine.End()
	c, err := newConn(nc, l.cfg)
	if err != nil {
		nc.Close()
		l.cfg.refused(f, flowError("accept", f, err))
		return false
	}
	if err := c.admit(l.ctx, l.cfg, false); err != nil {
		if l.ctx.Err() == nil {
			l.cfg.refused(f, err)
		}
		return false
	}
	mine.Let()
	select {
	case l.ready <- c:
		return true
	case <-l.ctx.Done():
		c.Close()
		return false
	}
}
