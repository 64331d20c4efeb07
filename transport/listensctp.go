package transport

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// SCTPListener accepts associations that the Protector has admitted.
type SCTPListener struct {
	cfg     *Config
	newRecv NewReceiver
	flow    Flow // without a remote address
	addr    netip.AddrPort
	socket  listenSocket
	ready   chan *Assoc // unbuffered: an association counts as pending until it is accepted
	pending *pending

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	beginning sync.Mutex // held while an association begins, and while ctx ends: none begins later
	close     sync.Once

	lastUnknown atomic.Int64 // when an unknown host was last reported, in ns since start
	start       time.Time
}

// listenSocket is the socket of a listener.
type listenSocket interface {
	// stop refuses new associations from now on.
	stop()
	// close releases the socket once only associations of the listener are left.
	close()
}

// ListenSCTP is Endpoints.ListenSCTP for a port that no later listener will use. It fails
// as that does.
func ListenSCTP(ctx context.Context, local netip.AddrPort, cfg *Config, recv NewReceiver) (*SCTPListener, error) {
	return new(Endpoints).ListenSCTP(ctx, local, cfg, recv)
}

// ListenSCTP listens for associations at local, an address and an SCTP port, over the
// carrier cfg.Kind. With SCTPUDP it uses one UDP socket at port cfg.UDPPort, and SCTP
// port 0 stands for 9899. ctx bounds only the call itself. It fails with ErrNoProtector,
// and with a *FlowError if it can't listen on the address.
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

// Addr returns the address and SCTP port of the listener.
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

// Close stops listening and waits for pending admissions to end. Accepted associations
// stay, and with SCTPUDP keep the socket until the last of them ends; a new listener at
// the same UDP port shares it. It is idempotent.
func (l *SCTPListener) Close() error {
	l.beginning.Lock()
	first := l.ctx.Err() == nil
	l.stop()
	l.beginning.Unlock()
	if first {
		l.socket.stop()
	}
	l.wg.Wait()
	l.close.Do(l.socket.close)
	return nil
}

// begin counts an association that a peer has set up. It fails with ErrBusy, which it has
// reported, and with net.ErrClosed.
func (l *SCTPListener) begin(f Flow) error {
	if !l.pending.enter(f.Remote.Addr()) {
		l.cfg.refused(f, flowError("accept", f, ErrBusy))
		return ErrBusy
	}
	l.beginning.Lock()
	defer l.beginning.Unlock()
	if l.ctx.Err() != nil {
		l.pending.leave(f.Remote.Addr())
		return net.ErrClosed
	}
	l.wg.Add(1)
	return nil
}

// offer gets an association admitted and hands it to Accept. begin must have been called
// before. over is called if it is not admitted.
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
	case l.ready <- a: // Accept no longer counts it as pending
		return
	case <-a.Done():
	case <-l.ctx.Done():
		a.Close()
	}
	l.pending.leave(f.Remote.Addr())
}

// refusedUnknown reports an unknown host whose packets are ignored, once in a while.
func (l *SCTPListener) refusedUnknown(f Flow, err error) {
	now, last := int64(time.Since(l.start))+1, l.lastUnknown.Load()
	if last == 0 || now-last >= int64(unknownPause) {
		if l.lastUnknown.CompareAndSwap(last, now) {
			l.cfg.refused(f, flowError("accept", f, err))
		}
	}
}
