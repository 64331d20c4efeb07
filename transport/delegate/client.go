package delegate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

const (
	// A daemon that has gone is looked for so often, at first and later.
	againMin = 100 * time.Millisecond
	againMax = 2 * time.Second
	// termsTime bounds the daemon's first message.
	termsTime = 30 * time.Second
	// shutTime is how long the daemon's socket may be shut to the user before calls fail: it is while a daemon starts or ends,
	// and systemd's is while none runs.
	shutTime = 3 * time.Second
)

// Client is a program's Protector: the daemon decides, and sees the sockets. Where the daemon is away calls wait for it
// until their context ends, and flows go on under the kernel's guard.
type Client struct {
	dial func(context.Context) (*net.UnixConn, error)
	log  *slog.Logger

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex // guards the fields below it
	link    *link      // nil while there is no daemon
	changed chan struct{}
	terms   Terms
	next    uint64
	waiting map[uint64]chan message
	flows   map[uint64]*protection
	coming  map[uint64]*protection // that are being admitted
	why     error                  // why there is no daemon
	reports bool                   // there is a goroutine that reports

	wake chan struct{} // of that
}

var _ interface {
	transport.Protector
	transport.PortChooser
	transport.Screener
} = (*Client)(nil)

var (
	errLost       = errors.New("delegate: the connection to the daemon was lost")
	errNoTerms    = errors.New("delegate: the daemon did not say what the program may have")
	errNotSockets = errors.New("delegate: the connection has no socket")
)

// New connects to the daemon by dial, which fails with transport.ErrNotProtected where the daemon refuses the user, and with
// fs.ErrPermission where its socket is shut to the user, who may be refused or just early. The log is told of flows that the
// daemon ends.
func New(ctx context.Context, dial func(context.Context) (*net.UnixConn, error), log *slog.Logger) (*Client, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Client{dial: dial, log: log, changed: make(chan struct{}), waiting: map[uint64]chan message{}, flows: map[uint64]*protection{}, coming: map[uint64]*protection{}, wake: make(chan struct{}, 1)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	l, err := c.connect(ctx)
	if err != nil {
		c.stop()
		return nil, err
	}
	c.wg.Go(func() { c.run(l) })
	return c, nil
}

// Close ends the connection, and with it all flows.
func (c *Client) Close() {
	c.stop()
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.Close()
	}
	c.wg.Wait()
}

// Terms are what the daemon has said last.
func (c *Client) Terms() Terms {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms
}

// connect makes a connection and reads the terms.
func (c *Client) connect(ctx context.Context) (*link, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{UnixConn: conn}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err = conn.SetReadDeadline(time.Now().Add(termsTime)); err == nil {
		var m message
		if m, err = l.receive(); err == nil && m.Terms == nil {
			err = errNoTerms
		}
		if err == nil {
			err = conn.SetReadDeadline(time.Time{})
		}
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.link, c.terms, c.why = l, *m.Terms, nil
			c.tellLocked()
			return l, nil
		}
	}
	conn.Close()
	return nil, err
}

// tellLocked wakes those who wait for a daemon.
func (c *Client) tellLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// run receives, and looks for a new daemon when one has gone.
func (c *Client) run(l *link) {
	for c.ctx.Err() == nil {
		err := c.receive(l)
		l.Close()
		l.closeSockets()
		c.lost(err)
		if l = c.again(); l != nil {
			c.redeclare()
		}
	}
	c.lost(net.ErrClosed)
}

func (c *Client) receive(l *link) error {
	for {
		m, err := l.receive()
		if err != nil {
			return err
		}
		switch m.Op {
		case opAnswer:
			c.mu.Lock()
			w := c.waiting[m.ID]
			delete(c.waiting, m.ID)
			c.mu.Unlock()
			if w != nil {
				w <- m
			}
		case opEnded:
			c.mu.Lock()
			p := c.flows[m.ID]
			c.mu.Unlock()
			if p != nil {
				c.log.Warn("the daemon has ended a stream", "flow", p.flow, "reason", m.Reason)
				if p.assoc != nil { // which is shut down if this is not enough
					p.assoc.Abort(m.Reason)
				}
			}
		case opLane:
			c.mu.Lock()
			p := c.flows[m.ID]
			if p == nil {
				p = c.coming[m.ID]
			}
			c.mu.Unlock()
			if p != nil && p.assoc != nil && m.Lane != nil {
				p.direct(m.Lane)
			}
		case opTerms:
			if m.Terms != nil {
				c.mu.Lock()
				c.terms = *m.Terms
				c.mu.Unlock()
			}
		}
	}
}

// lost ends the calls that wait for answers: they ask the next daemon.
func (c *Client) lost(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link, c.why = nil, err
	for id, w := range c.waiting {
		close(w)
		delete(c.waiting, id)
	}
	c.tellLocked()
}

// again waits for a daemon; nil: Close was called. One that refuses the user ends the flows. A socket that is shut does not,
// as nobody can tell whether a daemon has shut it for good.
func (c *Client) again() *link {
	var shut time.Time // since when the socket is; zero: it is not
	for pause := againMin; ; pause = min(2*pause, againMax) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return nil
		}
		l, err := c.connect(c.ctx)
		if err == nil {
			return l
		}
		refused := errors.Is(err, transport.ErrNotProtected)
		switch {
		case !errors.Is(err, fs.ErrPermission):
			shut = time.Time{}
		case shut.IsZero():
			shut = time.Now()
		case time.Since(shut) >= shutTime:
			err = fmt.Errorf("%w: %w", transport.ErrNotProtected, err)
		}
		c.mu.Lock()
		c.why = err
		c.tellLocked()
		c.mu.Unlock()
		if refused {
			c.endAll(err)
		}
	}
}

func (c *Client) endAll(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.flows {
		p.end(why)
	}
}

// redeclare declares the flows that have outlived a daemon to the next one.
func (c *Client) redeclare() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.flows {
		c.wg.Go(func() {
			if p.assoc != nil { // what the last one has said of SAs is over
				p.direct(new(lane))
			}
			ctx, cancel := context.WithTimeout(c.ctx, termsTime)
			defer cancel()
			m, err := c.ask(ctx, p.declaration(), p.sock)
			if err == nil {
				err = m.err()
			}
			if err == nil && !c.reportAnew(p) {
				c.done(p.id) // Release may have said so before the daemon knew of it
			}
			if err != nil && !errors.Is(err, net.ErrClosed) && c.ctx.Err() == nil {
				p.end(err)
			}
		})
	}
}

// ask makes a request, of whatever daemon is there until ctx ends.
func (c *Client) ask(ctx context.Context, m message, sock syscall.RawConn) (message, error) {
	for {
		answer, _, err := c.askOnce(ctx, m, sock)
		if !errors.Is(err, errLost) {
			return answer, err
		}
	}
}

// askOnce returns the connection as well that the answer came by.
func (c *Client) askOnce(ctx context.Context, m message, sock syscall.RawConn) (message, *link, error) {
	l, w, err := c.await(ctx, m.ID)
	if err != nil {
		return message{}, nil, err
	}
	if sock == nil {
		err = l.send(&m, -1)
	} else if cerr := sock.Control(func(fd uintptr) { err = l.send(&m, int(fd)) }); cerr != nil {
		c.forget(m.ID)
		return message{}, nil, cerr
	}
	if err != nil && !isEnd(err) {
		c.forget(m.ID)
		return message{}, nil, fmt.Errorf("delegate: hand the daemon a socket: %w", err)
	}
	select {
	case answer, ok := <-w:
		if !ok {
			return message{}, nil, errLost
		}
		return answer, l, nil
	case <-ctx.Done():
		c.forget(m.ID)
		c.done(m.ID)
		return message{}, nil, ctx.Err()
	}
}

// await waits for a daemon, and enters a request that is about to be made.
func (c *Client) await(ctx context.Context, id uint64) (*link, chan message, error) {
	for {
		c.mu.Lock()
		l, changed, why := c.link, c.changed, c.why
		if c.ctx.Err() != nil {
			c.mu.Unlock()
			return nil, nil, net.ErrClosed
		}
		if l != nil {
			w := make(chan message, 1)
			c.waiting[id] = w
			c.mu.Unlock()
			return l, w, nil
		}
		c.mu.Unlock()
		if errors.Is(why, transport.ErrNotProtected) {
			return nil, nil, why
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%w: there is no daemon: %w", ctx.Err(), why)
		}
	}
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// done tells the daemon that a request, or a flow, is over.
func (c *Client) done(id uint64) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		_ = l.send(&message{Op: opDone, ID: id}, -1) // if it fails the connection ends, and with it all that this is about
	}
}

func (c *Client) id() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	return c.next
}

func about(op string, id uint64, f transport.Flow) message {
	return message{Op: op, ID: id, Protocol: int(f.Protocol), Local: f.Local, Remote: f.Remote}
}

// LocalPorts implements transport.PortChooser. It waits for the daemon's answer.
func (c *Client) LocalPorts(ctx context.Context, f transport.Flow) (lo, hi uint16, err error) {
	id := c.id()
	m, err := c.ask(ctx, about(opPorts, id, f), nil)
	if err != nil {
		return 0, 0, err
	}
	return m.Low, m.High, m.err()
}

// Prepare implements transport.Protector.
func (c *Client) Prepare(ctx context.Context, f transport.Flow) error {
	id := c.id()
	m, err := c.ask(ctx, about(opPrepare, id, f), nil)
	if err != nil {
		return err
	}
	if err := m.err(); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { c.done(id) })
	return nil
}

// Admit implements transport.Protector. mon has to be a syscall.Conn.
func (c *Client) Admit(ctx context.Context, f transport.Flow, outgoing bool, mon transport.Monitored) (transport.Protection, error) {
	sc, ok := mon.(syscall.Conn)
	if !ok {
		return nil, errNotSockets
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &protection{c: c, id: c.id(), flow: f, outgoing: outgoing, sock: raw}
	if f.Protocol == transport.ProtoUDP {
		if p.assoc, ok = mon.(association); !ok {
			return nil, errNotSockets
		}
	}
	c.mu.Lock()
	c.coming[p.id] = p
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.coming, p.id)
		c.mu.Unlock()
	}()
	for {
		m, l, err := c.askOnce(ctx, p.declaration(), raw)
		if errors.Is(err, errLost) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := m.err(); err != nil {
			return nil, err
		}
		p.peer, p.kind = transport.Identity(m.Peer), m.Kind
		if c.enter(p, l) {
			return p, nil
		}
	}
}

// enter adds a flow, unless the connection by which it was admitted has gone meanwhile.
func (c *Client) enter(p *protection, l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return false
	}
	c.flows[p.id] = p
	if p.assoc != nil {
		if !c.reports {
			c.reports = true
			c.wg.Go(c.report)
		}
		c.lookNow()
	}
	return true
}

// reportAnew has a daemon that knows nothing of an association told everything. It reports whether the flow is still there.
func (c *Client) reportAnew(p *protection) bool {
	c.mu.Lock()
	_, held := c.flows[p.id]
	p.reporter = reporter{}
	c.mu.Unlock()
	if held && p.assoc != nil {
		c.lookNow()
	}
	return held
}

// Screen implements transport.Screener, by the daemon's last terms: a host that is no peer of the program's gets no answer.
func (c *Client) Screen(f transport.Flow) error {
	t := c.Terms()
	if t.Peers != nil && !slices.Contains(t.Peers, f.Remote.Addr().Unmap()) {
		return fmt.Errorf("%w: %s is not the address of a peer that this program may use", transport.ErrNotProtected, f.Remote.Addr())
	}
	if !t.Has(f.Protocol, f.Local.Port()) {
		return fmt.Errorf("%w: port %d is none of this program's", transport.ErrNotProtected, f.Local.Port())
	}
	return nil
}

// protection is that of a flow.
type protection struct {
	c        *Client
	id       uint64
	flow     transport.Flow
	outgoing bool
	sock     syscall.RawConn
	peer     transport.Identity
	kind     string
	assoc    association // nil: a TCP connection

	limit    atomic.Int64 // of the retransmission timeout, while there is no SA
	reporter reporter     // guarded by Client.mu
}

func (p *protection) Peer() transport.Identity { return p.peer }
func (p *protection) Kind() string             { return p.kind }

// Paused is what the daemon has said of an association, and knows alone of a TCP connection.
func (p *protection) Paused() bool { return p.limit.Load() > 0 }

func (p *protection) Release() {
	c := p.c
	c.mu.Lock()
	_, held := c.flows[p.id]
	delete(c.flows, p.id)
	c.mu.Unlock()
	if held {
		c.done(p.id)
	}
}

// end shuts the flow down, which nobody vouches for any more.
func (p *protection) end(why error) {
	p.c.log.Warn("a stream is ended, since the daemon does not protect it", "flow", p.flow, "reason", why)
	p.c.wg.Go(func() { // an association reports its end, which takes Client.mu
		if p.assoc != nil {
			p.assoc.Abort(why.Error())
		}
		_ = p.sock.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	})
}

// declaration is the message that has the flow admitted.
func (p *protection) declaration() message {
	m := message{Op: opAdmit, ID: p.id, Outgoing: p.outgoing}
	if p.assoc != nil {
		m.Will = p.assoc.AbortPacket()
	}
	return m
}
