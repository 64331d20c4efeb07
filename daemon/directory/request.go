package directory

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// ErrSilence: a manager has not answered.
var ErrSilence = errors.New("the directory has not answered: it drops in silence what it does not permit; `ironwarp fabric drops` there shows what")

// errStreamEnded: the stream with the manager has ended before its answer came. It matches ErrNoMaster.
var errStreamEnded = fmt.Errorf("the stream with the manager has ended before it answered: %w", ErrNoMaster)

// ErrNoFabric: the host has no part in a fabric.
var ErrNoFabric = errors.New("this host is in no fabric: `fabric: {managers: [IDENTITY]}` in its configuration names the hosts that keep a directory")

// ErrNoMaster: no manager that can be reached is the master.
var ErrNoMaster = errors.New("no manager of the fabric that is the master can be reached; `ironwarp fabric managers` shows why")

// StatusError is an answer that says that the request could not be carried out.
type StatusError struct {
	Method    mad.Method
	Attribute string
	Status    mad.Status
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the directory refuses %v of %s: %v", e.Method, e.Attribute, e.Status)
}

// calls are the requests of a host that wait for their answers.
type calls struct {
	mu   sync.Mutex // guards the fields below it
	open map[uint64]*call
	next uint64
}

// call is one request.
type call struct {
	of     *port // who has to answer
	answer chan mad.MAD
	table  *mad.Receiver // of a GetTable; guarded by calls.mu
	failed error         // the table; guarded by calls.mu
}

// newCalls returns no calls. Their numbers begin at a random one: answers to an earlier daemon belong to none.
func newCalls() *calls {
	var b [8]byte
	rand.Read(b[:])
	return &calls{open: map[uint64]*call{}, next: binary.BigEndian.Uint64(b[:])}
}

// begin numbers a request.
func (c *calls) begin(of *port, table bool) (id uint64, one *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	one = &call{of: of, answer: make(chan mad.MAD, 1)}
	if table {
		one.table = mad.NewReceiver(c.next, maxTable, mad.MaxWindow)
	}
	c.open[c.next] = one
	return c.next, one
}

func (c *calls) end(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
}

// take hands an answer to who waits for it; ok: somebody does. Of a table it returns what its sender has to be told.
func (c *calls) take(from *port, m *mad.MAD) (reply mad.MAD, send, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.open[m.TransactionID()]
	if one == nil || one.of != from {
		return reply, false, false
	}
	if one.table != nil {
		sa, err := mad.ParseSA(m)
		if err != nil || one.table.Done() {
			return reply, false, true
		}
		if reply, send, one.failed = one.table.Receive(&sa); !one.table.Done() {
			return reply, send, true
		}
	}
	select {
	case one.answer <- *m:
	default: // it has been answered
	}
	return reply, send, true
}

// ask makes a request of a host and returns the answer; packet's transaction is set here. It fails with ErrSilence, with ErrNoMaster when
// the stream has ended, and with ctx's error.
func (c *calls) ask(ctx context.Context, of *port, packet mad.Packet) (mad.MAD, error) {
	return c.askTimes(ctx, of, packet, asks)
}

// askTimes is ask that makes the request so often at most.
func (c *calls) askTimes(ctx context.Context, of *port, packet mad.Packet, times int) (mad.MAD, error) {
	id, one := c.begin(of, false)
	defer c.end(id)
	h := packet.MAD.Header()
	h.TransactionID = id
	packet.MAD.SetHeader(h)
	for range times {
		of.send(packet)
		select {
		case m := <-one.answer:
			return m, nil
		case <-time.After(askTime):
		case <-of.ended():
			return mad.MAD{}, errStreamEnded
		case <-ctx.Done():
			return mad.MAD{}, ctx.Err()
		}
	}
	return mad.MAD{}, ErrSilence
}

// askTable is ask for a table. It also fails with mad.ErrTransfer, for a table that is too large.
func (c *calls) askTable(ctx context.Context, of *port, packet mad.Packet) (head mad.SA, table []byte, err error) {
	id, one := c.begin(of, true)
	defer c.end(id)
	h := packet.MAD.Header()
	h.TransactionID = id
	packet.MAD.SetHeader(h)
	of.send(packet)
	ctx, cancel := context.WithTimeoutCause(ctx, tableTime, ErrSilence)
	defer cancel()
	select {
	case <-one.answer:
	case <-of.ended():
		return head, nil, errStreamEnded
	case <-ctx.Done():
		return head, nil, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.failed != nil {
		return head, nil, fmt.Errorf("the directory's table: %w", one.failed)
	}
	head, table = one.table.Answer()
	return head, table, nil
}
