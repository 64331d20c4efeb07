package transport

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// SCTPListener accepts associations which the Protector has admitted.
type SCTPListener struct {
	cfg     *Config
	newRecv NewReceiver
	flow    Flow // without a remote address
	addr    netip.AddrPort
	below   listensBelow
	ready   chan *Assoc // unbuffered: an association counts as pending until it is accepted
	pending *pending

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex // no association begins once ctx has ended
	close sync.Once

	strange atomic.Int64 // when a stranger was last reported, in ns since start
	start   time.Time
}

// listensBelow is what a listener has below itself.
type listensBelow interface {
	// stop refuses new associations from now on.
	stop()
	// close gives up the socket when nothing of the listener is left but associations.
	close()
}

// ListenSCTP is Endpoints.ListenSCTP where no listener will follow at the same
// port. It fails as that does.
func ListenSCTP(ctx context.Context, local netip.AddrPort, cfg *Config, recv NewReceiver) (*SCTPListener, error) {
	return new(Endpoints).ListenSCTP(ctx, local, cfg, recv)
}

// ListenSCTP awaits associations at local, an address and an SCTP port, by the
// carrier cfg.Kind. With SCTPUDP that is one UDP socket with the port
// cfg.UDPPort; the SCTP port 0 stands for 9899 there. ctx bounds only the call
// itself. It fails with ErrNoProtector, and with a *FlowError where the address can't
// be listened on.
func (es *Endpoints) ListenSCTP(ctx context.Context, local netip.AddrPort, cfg *Config, recv NewReceiver) (*SCTPListener, error) {
	if cfg == nil || cfg.Protector == nil {
		return nil, ErrNoProtector
	}
	l := &SCTPListener{
		cfg:     cfg,
		newRecv: recv,
		addr:    unmap(local),
		flow:    Flow{Protocol: cfg.Kind.Protocol(), Local: unmap(local)},
		ready:   make(chan *Assoc),
		pending: newPending(cfg.maxPending()),
		start:   time.Now(),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	err := errNotSCTP
	switch cfg.Kind {
	case SCTPUDP:
		err = l.listenUDP(ctx, es)
	case SCTP:
		err = l.listenKernel(ctx, es)
	}
	if err != nil {
		l.stop()
		return nil, flowError("listen", l.flow, err)
	}
	return l, nil
}

// Addr is the address and SCTP port that the listener has.
func (l *SCTPListener) Addr() netip.AddrPort { return l.addr }

// Accept waits for the next admitted association. After Close it returns
// net.ErrClosed.
func (l *SCTPListener) Accept(ctx context.Context) (*Assoc, error) {
	select {
	case a := <-l.ready:
		l.pending.leave(a.Flow().Remote.Addr())
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, flowError("accept", l.flow, net.ErrClosed)
	}
}

// Close stops listening and waits until that is over. Associations that were
// accepted stay, and with SCTPUDP keep the socket until the last of them ends; the
// next listeners at its UDP port have it, too. It is idempotent.
func (l *SCTPListener) Close() error {
	l.mu.Lock()
	first := l.ctx.Err() == nil
	l.stop()
	l.mu.Unlock()
	if first {
		l.below.stop()
	}
	l.wg.Wait()
	l.close.Do(l.below.close)
	return nil
}

// begin counts an association that a peer has set up. The error says why there
// is no room for it; it was reported.
func (l *SCTPListener) begin(f Flow) error {
	if !l.pending.enter(f.Remote.Addr()) {
		l.cfg.refused(f, flowError("accept", f, ErrBusy))
		return ErrBusy
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		l.pending.leave(f.Remote.Addr())
		return net.ErrClosed
	}
	l.wg.Add(1)
	return nil
}

// offer has one association admitted and hands it to Accept, if it can. It is to
// be called after begin. Where it is not admitted, over is called.
func (l *SCTPListener) offer(f Flow, over func(), admitted func(ctx context.Context) (*Assoc, error)) {
	defer l.wg.Done()
	a, err := admitted(l.ctx)
	if err != nil {
		if l.ctx.Err() == nil {
			l.cfg.refused(f, err)
		}
		over()
		l.pending.leave(f.Remote.Addr())
		return
	}
	select {
	case l.ready <- a: // Accept takes it off the pending ones
		return
	case <-a.Done():
	case <-l.ctx.Done():
		a.Close()
	}
	l.pending.leave(f.Remote.Addr())
}

// stranger reports a flow whose packets get no answer, now and then.
func (l *SCTPListener) stranger(f Flow, err error) {
	now, last := int64(time.Since(l.start))+1, l.strange.Load()
	if last == 0 || now-last >= int64(strangerPause) {
		if l.strange.CompareAndSwap(last, now) {
			l.cfg.refused(f, flowError("accept", f, err))
		}
	}
}
