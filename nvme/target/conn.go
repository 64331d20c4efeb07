package target

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/fifo"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/verbs"
)

// Origin is where a connection comes from.
type Origin struct {
	Peer          string // as it was authenticated below, "" if nobody knows
	Local, Remote netip.AddrPort
}

// Reasons why a connection ends.
var (
	errDepth     = errors.New("nvme: more commands at once than the queue takes")
	errNoConnect = errors.New("nvme: no Connect within the time for it")
	errReadAge   = errors.New("nvme: the host does not answer an RDMA Read")
	errKeepAlive = errors.New("nvme: the keep alive timer has expired")
	errReplaced  = errors.New("nvme: the host has come again")
	errReset     = errors.New("nvme: the host has reset the controller")
	errGone      = errors.New("nvme: the admin queue is gone")
	errEnded     = errors.New("nvme: the controller is ended")
)

// conn is a connection: a queue of a controller, once it has been connected to one.
//
//	accepted ──Connect──▶ connected ──┐
//	    └────────────end of the stream┴──▶ dead ──nothing at the storage any more──▶ freed
type conn struct {
	srv    *Server
	origin Origin
	asked  nvme.ConnectRequest
	depth  int // receives for commands
	ulp    *verbs.ULP
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP // set before anything comes
	ring   *verbs.MR
	paused func() bool
	age    *time.Timer // of the oldest Read; made before anything comes

	mu      sync.Mutex // guards the fields below it; innermost but for the stream's own
	settled sync.Cond  // a command has ended
	dead    bool       // nothing can be sent any more
	ctrl    *controller
	joining bool   // a Connect is under way
	entries uint16 // of the submission queue
	head    uint16
	noFlow  bool
	pool    pool
	all     []*command // by their indices
	spare   []*command
	busy    int                   // commands that have not ended
	active  int                   // of these those that have not been answered
	waiting fifo.Queue[*command]  // for memory
	fetches fifo.Queue[*command]  // for a Read
	reads   fifo.Queue[time.Time] // when those under way began, in their order
	queues  map[*Namespace]*nexus
}

// accept takes a connection. It fails as verbs.ConnRequest.Accept does, and where the request is none; the peer has been
// told why.
func (s *Server) accept(ctx context.Context, r *verbs.ConnRequest, ulp *verbs.ULP) (*conn, error) {
	q, err := nvme.ParseConnectRequest(r.PrivateData())
	why := nvme.Reject(0)
	switch most := depthOf(q.QID); {
	case err != nil:
		why = nvme.RejectLength
	case q.RecFmt != 0:
		why = nvme.RejectFormat
	case q.QID > maxQueues:
		why = nvme.RejectQID
	case int(q.SendQueue)+1 < leastDepth || int(q.SendQueue)+1 > most:
		why = nvme.RejectHSQSize
	case q.RecvQueue == 0 || q.RecvQueue > maxHostQueue:
		why = nvme.RejectHRQSize
	}
	if why != 0 {
		return nil, errors.Join(fmt.Errorf("nvme: the request of %v is refused, for reason %d", r.Flow().Remote, why), r.Reject(ctx, nvme.AppendConnectReject(nil, why)))
	}
	f := r.Flow()
	c := &conn{srv: s, ulp: ulp, asked: q, depth: int(q.SendQueue) + 1, paused: r.Protection().Paused, queues: map[*Namespace]*nexus{},
		origin: Origin{string(r.Protection().Peer()), unmapped(f.Local), unmapped(f.Remote)}}
	c.settled.L = &c.mu
	if err = c.equip(); err == nil {
		err = c.start(ctx, r)
	}
	if err != nil {
		r.Reject(ctx, nvme.AppendConnectReject(nil, nvme.RejectResources)) // does nothing if the stream is over
		c.free()
		return nil, err
	}
	return c, nil
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func depthOf(qid uint16) int {
	if qid == 0 {
		return adminDepth
	}
	return ioDepth
}

// equip allocates what a connection needs.
func (c *conn) equip() (err error) {
	if c.pd, err = c.ulp.AllocPDAs(c.ulp.Trust().Alone()); err != nil {
		return err
	}
	if c.cq, err = c.ulp.CreateCQ(c.sends()+c.receives(), c); err != nil {
		return err
	}
	if c.ring, err = c.pd.RegisterMR(make([]byte, c.receives()*capsuleLen), verbs.LocalWrite); err == nil {
		c.srv.memory.Add(int64(c.ring.Len()))
	}
	return err
}

// receives is one more than there may be commands: an answer may overtake the report that its receive is posted again.
func (c *conn) receives() int { return c.depth + 1 }

// sends is how many operations may be under way: a Write and a Send for each command that is answered, while as many
// are on their way in and have a Read.
func (c *conn) sends() int { return 2*2*c.receives() + maxReads }

func (c *conn) start(ctx context.Context, r *verbs.ConnRequest) error {
	c.age = time.AfterFunc(time.Hour, c.checkAge)
	c.age.Stop()
	ctx, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	_, err := r.Accept(ctx, c.pd, verbs.AcceptConfig{
		QP:          verbs.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSend: c.sends(), MaxRecv: c.receives(), ORD: maxReads},
		PrivateData: nvme.AppendConnectAccept(nil, uint16(c.depth)),
		Prepare: func(qp *verbs.QP) error {
			c.qp = qp
			for slot := range c.receives() {
				if err := postSlot(qp, c.ring, slot); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return err
}

func postSlot(qp *verbs.QP, ring *verbs.MR, slot int) error {
	return qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{{MR: ring, Off: uint32(slot * capsuleLen), Len: capsuleLen}}})
}

// run waits for the end of the connection, and frees what it has.
func (c *conn) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { c.abort(errEnded) })
	defer stop()
	c.awaitEnd()
	c.age.Stop()
	ctrl := c.die()
	c.srv.log.Debug("nvme: connection ended", "address", c.origin.Remote, "peer", c.origin.Peer, "queue", c.asked.QID, "error", c.qp.Err())
	if ctrl != nil {
		ctrl.left(c)
	} else {
		c.srv.pendingEnded(c.origin)
	}
	c.mu.Lock()
	for c.busy > 0 {
		c.settled.Wait()
	}
	queues := c.queues
	c.queues = nil
	c.mu.Unlock()
	for ns, q := range queues {
		q.Close()
		ns.forget(q)
	}
	if ctrl != nil {
		ctrl.freed(c)
	}
	c.free()
}

// awaitEnd waits for the end of the stream, and ends it if it has no controller after a time. One whose Connect is under way then has
// as much time again.
func (c *conn) awaitEnd() {
	late := time.NewTimer(c.srv.cfg.ConnectTime)
	defer late.Stop()
	for {
		select {
		case <-c.qp.Done():
			return
		case <-late.C:
		}
		c.mu.Lock()
		connected, joining := c.ctrl != nil, c.joining
		c.mu.Unlock()
		switch {
		case connected:
			<-c.qp.Done()
			return
		case joining:
			late.Reset(c.srv.cfg.ConnectTime)
		default:
			c.abort(errNoConnect)
		}
	}
}

// die has commands that wait for something end, and those that are at the storage when they come back.
func (c *conn) die() *controller {
	c.mu.Lock()
	c.dead = true
	var ended []*command
	for c.waiting.Len() > 0 {
		ended = append(ended, c.waiting.Pop())
	}
	for c.fetches.Len() > 0 {
		ended = append(ended, c.fetches.Pop())
	}
	ctrl := c.ctrl
	c.mu.Unlock()
	for _, k := range ended {
		k.fail(nvme.AbortedByRequest)
	}
	return ctrl
}

// abort ends the stream, and so the connection.
func (c *conn) abort(why error) { c.qp.Abort(why) }

// free frees what the connection has, once its stream is over.
func (c *conn) free() {
	if c.age != nil {
		c.age.Stop()
	}
	c.mu.Lock()
	c.emptyLocked()
	c.mu.Unlock()
	if c.ring != nil {
		c.srv.memory.Add(-int64(c.ring.Len()))
		c.ring.Deregister()
	}
	if c.cq != nil {
		c.cq.Destroy()
	}
	if c.pd != nil {
		c.pd.Dealloc()
	}
}

// checkAge ends the connection if its oldest Read is too old.
func (c *conn) checkAge() {
	c.mu.Lock()
	if c.reads.Len() == 0 {
		c.mu.Unlock()
		return
	}
	left := c.srv.cfg.ReadAge - time.Since(*c.reads.At(0))
	c.mu.Unlock()
	switch {
	case c.paused():
		c.age.Reset(c.srv.cfg.ReadAge)
	case left > 0:
		c.age.Reset(left)
	default:
		c.abort(errReadAge)
	}
}

// queue is the connection's queue to a namespace.
func (c *conn) queue(ns *Namespace) *nexus {
	c.mu.Lock()
	q := c.queues[ns]
	c.mu.Unlock()
	if q != nil {
		return q
	}
	made := ns.newQueue(c.qp.Flush)
	c.mu.Lock()
	if q = c.queues[ns]; q == nil {
		q, c.queues[ns] = made, made
	}
	c.mu.Unlock()
	if q != made { // somebody else was faster
		made.Close()
		ns.forget(made)
	}
	return q
}
