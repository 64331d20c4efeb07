package rdmalib

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	connectTime = 30 * time.Second
	// A refused connection is tried again for so long: perftest connects twice, and listens anew in between.
	refusedTime  = time.Second
	refusedPause = 20 * time.Millisecond
)

// depths are the responder resources and the initiator depth of a struct rdma_ucm_conn_param.
func depths(param []byte) (ird, ord int) {
	return min(int(param[266]), MaxDepth), min(int(param[267]), MaxDepth)
}

// private is the private data of one.
func private(param []byte) []byte {
	return append([]byte(nil), param[8:8+min(int(param[264]), maxPrivate)]...)
}

// connectLocked has an ID dial, and tells the program by an event what comes of it.
func (e *Engine) connectLocked(id *cmID, c *command) syscall.Errno {
	param := c.body[:connParamLen]
	q := e.qps.get(c.u32(0))
	switch {
	case q == nil || !id.dst.IsValid() || id.cancel != nil || id.ln != nil:
		return syscall.EINVAL
	case q.connected.Swap(true):
		return syscall.EISCONN
	}
	id.qp = q
	e.log.Debug("connect", "id", id.handle, "to", id.dst)
	cfg := verbs.DialConfig{Remote: id.dst, Made: q.v, PrivateData: private(param), Setup: e.set, Transport: e.transportAt(id.dst.Port())}
	cfg.QP.IRD, cfg.QP.ORD = depths(param)
	if !id.src.Addr().IsUnspecified() {
		cfg.Transport.Local = id.src.Addr()
	}
	ctx, cancel := context.WithTimeout(e.ctx, connectTime)
	id.cancel = cancel
	mine := &dialling{sent: make(chan struct{})}
	before := e.cm.dialling[id.dst]
	e.cm.dialling[id.dst] = mine
	tells := e.cm.line.Join()
	to := id.dst
	go func() {
		defer cancel()
		if before != nil {
			<-before.sent
		}
		cfg.Requested = mine.isSent
		err := e.dial(ctx, q, &cfg)
		mine.isSent()
		e.cm.forget(to, mine)
		tells.Let()
		e.connected(id, q, err)
		tells.End()
	}()
	return 0
}

// dialling is who dials to an address.
type dialling struct {
	once sync.Once
	sent chan struct{} // closed when the request has been sent
}

func (d *dialling) isSent() { d.once.Do(func() { close(d.sent) }) }

// forget drops one that dialled last to an address.
func (d *cmDevice) forget(to netip.AddrPort, x *dialling) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dialling[to] == x {
		delete(d.dialling, to)
	}
}

// dial connects, if need be some times.
func (e *Engine) dial(ctx context.Context, q *qp, cfg *verbs.DialConfig) error {
	refused, stop := context.WithTimeout(ctx, refusedTime)
	defer stop()
	pause := time.NewTicker(refusedPause)
	defer pause.Stop()
	for {
		_, err := q.pd.Dial(ctx, *cfg)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		select {
		case <-pause.C:
		case <-refused.Done():
			return err
		}
	}
}

// connected tells the program what has come of a connection, and later of its end.
func (e *Engine) connected(id *cmID, q *qp, err error) {
	d := &e.cm
	if err != nil {
		e.log.Debug("connect", "to", id.dst, "error", err)
		q.v.Abort(err)
		ev := &event{about: id, kind: cmConnectError, status: -int32(e.errnoOf("connect", err))}
		var rej *verbs.RejectedError
		switch {
		case errors.As(err, &rej):
			ev.kind, ev.status, ev.private = cmRejected, -int32(syscall.ECONNREFUSED), rej.PrivateData
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
			ev.kind = cmRejected
		case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded), errors.Is(err, transport.ErrAway), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
			ev.kind = cmUnreachable
		}
		d.put(ev)
		return
	}
	f := q.v.Flow()
	e.log.Debug("connected", "id", id.handle, "qp", q.num, "flow", f)
	forget := q.lookAfter()
	d.mu.Lock()
	id.src, id.dst = unmap(f.Local), unmap(f.Remote)
	d.putLocked(&event{about: id, kind: cmEstablished, private: q.v.PrivateData(), initiator: q.v.ORD(), responder: q.v.ORD()})
	d.mu.Unlock()
	go func() {
		<-q.v.Done()
		forget()
		e.log.Debug("stream ended", "flow", f, "reason", q.v.Err())
		d.put(&event{about: id, kind: cmDisconnected})
	}()
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// listen has an ID take connections, which come as events. An ID that is on :: takes those over IPv4, too, unless the
// program says otherwise or another has that port.
func (e *Engine) listen(id *cmID, backlog int) syscall.Errno {
	d := &e.cm
	d.mu.Lock()
	switch {
	case id.ln != nil || id.dst.IsValid():
		d.mu.Unlock()
		return syscall.EINVAL
	case !id.bound:
		id.src, id.bound = netip.AddrPortFrom(netip.IPv4Unspecified(), 0), true
	}
	at, only := id.src, id.familyOnly
	d.mu.Unlock()
	ln, err := e.open(at, !only && at.Addr().Is6() && at.Addr().IsUnspecified(), backlog)
	if err != nil {
		return e.errnoOf("listen", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id.gone || id.ln != nil {
		go ln.Close()
		return syscall.EINVAL
	}
	id.ln, id.src = ln, netip.AddrPortFrom(at.Addr(), ln.Addr().Port())
	go e.requests(id, ln)
	return 0
}

// open begins to listen at one of the ports that the program may have, also over IPv4 if both is set and that is possible.
func (e *Engine) open(at netip.AddrPort, both bool, backlog int) (ln *verbs.Listener, err error) {
	ports, err := e.ports(at)
	if e.tc.Kind != transport.TCP && slices.Equal(ports, []uint16{0}) { // the UDP port is to be the same
		ports = anyPorts()
	}
	cfg := verbs.ListenConfig{Setup: e.set, Backlog: max(backlog, maxPending), OnFailed: func(f transport.Flow, err error) { e.log.Debug("incoming connection", "flow", f, "error", err) }}
	for _, port := range ports {
		cfg.Transport = e.transportAt(port)
		cfg.Transport.OneFamily = !both
		at = netip.AddrPortFrom(at.Addr(), port)
		if ln, err = e.dev.Listen(e.ctx, at, cfg); err != nil && both {
			cfg.Transport.OneFamily = true
			ln, err = e.dev.Listen(e.ctx, at, cfg)
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return ln, err
}

// anyPorts are some of the dynamic ports (RFC 6335 section 6), in no order.
func anyPorts() []uint16 {
	const first, some = 49152, 64
	ports := make([]uint16, some)
	for i := range ports {
		ports[i] = first + uint16(rand.IntN(1<<16-first))
	}
	return ports
}

// requests tells the program of those who connect to a listener.
func (e *Engine) requests(id *cmID, ln *verbs.Listener) {
	d := &e.cm
	for {
		req, err := ln.Accept(e.ctx)
		if err != nil {
			return
		}
		f, depths := req.Flow(), req.Depths()
		e.log.Debug("connection request", "flow", f, "depths", depths)
		d.mu.Lock()
		if id.gone {
			d.mu.Unlock()
			refuse(req, nil)
			return
		}
		child := d.newLocked(id.ch)
		child.req, child.src, child.dst, child.bound = req, unmap(f.Local), unmap(f.Remote), true
		d.putLocked(&event{about: id, kind: cmConnectRequest, child: child, private: req.PrivateData(), responder: depthOf(depths.ORD), initiator: depthOf(depths.IRD)})
		d.mu.Unlock()
	}
}

// depthOf is a peer's depth as a program is told; it may have left it open.
func depthOf(n int) int {
	if n < 0 {
		return MaxDepth
	}
	return min(n, MaxDepth)
}

// accept answers a request. The queue pair can send when it returns.
func (e *Engine) accept(id *cmID, c *command) syscall.Errno {
	param := c.body[8 : 8+connParamLen]
	d := &e.cm
	d.mu.Lock()
	req := id.req
	if req == nil { // of a connection of one's own there is nothing to accept
		d.mu.Unlock()
		return 0
	}
	q := e.qps.get(c.u32(8))
	if q == nil || q.connected.Swap(true) {
		d.mu.Unlock()
		return syscall.EINVAL
	}
	id.req, id.qp, id.uid64 = nil, q, c.u64(0)
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.ctx, connectTime)
	defer cancel()
	cfg := verbs.AcceptConfig{Made: q.v, PrivateData: private(param)}
	cfg.QP.IRD, cfg.QP.ORD = depths(param)
	if _, err := req.Accept(ctx, q.pd, cfg); err != nil {
		refuse(req, nil) // where it is still possible
		q.v.Abort(err)
		return e.errnoOf("accept", err)
	}
	e.connected(id, q, nil)
	return 0
}

func (e *Engine) reject(id *cmID, data []byte, n int) syscall.Errno {
	d := &e.cm
	d.mu.Lock()
	req := id.req
	id.req = nil
	d.mu.Unlock()
	if req == nil {
		return syscall.EINVAL
	}
	return e.errnoOf("reject", refuse(req, data[:min(n, maxPrivate)]))
}

func refuse(req *verbs.ConnRequest, data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), refusedTime)
	defer cancel()
	return req.Reject(ctx, data)
}
