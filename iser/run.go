package iser

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// Run implements iscsi.Datamover.
func (c *Conn) Run(u iscsi.Upper) error {
	c.mu.Lock()
	c.upper = u
	c.mu.Unlock()
	err := c.start()
	if err == nil {
		err = c.receiveLoop()
		c.Flush()
		if errors.Is(err, iscsi.ErrLogout) {
			c.awaitEnd()
		}
		c.shutDown()
	}
	c.mu.Lock()
	c.dead = true
	if c.age != nil {
		c.age.Stop()
	}
	c.mu.Unlock()
	c.Flush()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// awaitEnd waits for a moment for the initiator to end the connection.
func (c *Conn) awaitEnd() {
	late := time.NewTimer(logoutTime)
	defer late.Stop()
	select {
	case <-c.qp.Done():
	case <-c.ctx.Done():
	case <-late.C:
	}
}

// start brings the stream up, if it is still in streaming mode.
func (c *Conn) start() error {
	if c.req == nil {
		return nil
	}
	if err := c.req.StartMPA(c.ctx); err != nil {
		return err
	}
	return c.accept(c.ctx, c.req, c.postRing)
}

func (c *Conn) receiveLoop() error {
	for {
		over := false
		select {
		case <-c.qp.Done():
			over = true // and all that has come is in arrived
		default:
		}
		worked, err := c.work()
		switch {
		case err != nil:
			return err
		case worked:
			continue
		case over:
			return c.qp.Err()
		}
		c.upper.IdleNotify()
		select {
		case <-c.kick:
		case <-c.qp.Done():
		}
	}
}

// work handles what has come. It returns false if there was nothing.
func (c *Conn) work() (bool, error) {
	c.mu.Lock()
	err := c.err
	c.batch, c.arrived = c.arrived, c.batch[:0]
	c.fetched, c.done = c.done, c.fetched[:0]
	c.mu.Unlock()
	if err != nil {
		return false, err
	}
	for i, g := range c.fetched {
		c.fetched[i] = nil
		c.upper.DataCompletionNotify(g, true)
	}
	for _, a := range c.batch {
		if err := c.take(a); err != nil {
			return false, err
		}
	}
	return len(c.fetched)+len(c.batch) > 0, nil
}

// take handles one message, and posts its receive again.
func (c *Conn) take(a arrival) error {
	if a.slot == loginSlot {
		return fmt.Errorf("iser: a second request of the login at once: %w", iscsi.ErrFormat)
	}
	at := int(a.slot) * c.size
	m, err := ParseMessage(c.ring.Bytes()[at : at+int(a.n)])
	if err != nil {
		return err
	}
	first := !c.begun
	c.begun = true
	switch {
	case m.Op == OpHello && first:
		err = c.answerHello(&m.Header)
	case m.Op != OpControl || first && c.hello:
		err = errHello
	default:
		err = c.control(&m)
	}
	if err != nil {
		return err
	}
	err = c.postSlot(a.slot)
	if errors.Is(err, verbs.ErrClosed) {
		err = nil // there may be more that has come before
	}
	return err
}

// control passes a PDU on.
func (c *Conn) control(m *Message) error {
	o := m.BHS.Opcode()
	if len(m.Data) > c.declared || len(m.AHS) > maxAHS {
		return fmt.Errorf("%v with %d bytes of data, where at most %d may be: %w", o, len(m.Data), c.declared, iscsi.ErrFormat)
	}
	c.in.BHS, c.in.AHS, c.in.Remote, c.data = m.BHS, m.AHS, iscsi.Remote{}, m.Data
	switch o {
	case iscsi.OpCommand:
		c.in.Remote = c.remoteOf(m)
	case iscsi.OpDataOut:
		if d, err := iscsi.ParseDataOut(&m.BHS); err != nil || d.TTT != iscsi.NoTag {
			return fmt.Errorf("data that were not to be sent, but read: %w", iscsi.ErrFormat) // RFC 7145 section 7.3.4
		}
	}
	return c.upper.ControlNotify(&c.in)
}

// remoteOf is where the data of a command are. What its Write STag names begins with the first of them,
// or with the first that is not sent unsolicited (RFC 7145 section 6.9).
func (c *Conn) remoteOf(m *Message) iscsi.Remote {
	r := iscsi.Remote{
		Read: m.Read, ReadTag: m.ReadTag, ReadBase: m.ReadBase,
		Write: m.Write, WriteTag: m.WriteTag, WriteBase: m.WriteBase,
	}
	if c.solicited {
		unsolicited := uint32(len(m.Data))
		if k, err := iscsi.ParseCommand(&m.BHS); err == nil && !k.Final {
			unsolicited = min(c.firstBurst, k.EDTL)
		}
		r.WriteBase -= uint64(unsolicited)
	}
	return r
}

// readData implements Incoming.ReadData.
func (c *Conn) readData(dst []byte) error {
	copy(dst, c.data)
	return nil
}

// answerHello answers a Hello (RFC 7145 section 5.1.3), also one that was not asked for, as an initiator
// of RFC 5046 sends it.
func (c *Conn) answerHello(h *Header) error {
	reply := Header{Op: OpHelloReply, MaxVersion: Version, Version: Version, Depth: min(uint16(c.ord), h.Depth)}
	reply.Reject = h.Version > Version || h.MaxVersion < Version || h.Depth > 0 && c.ord == 0
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.scratch.Bytes()[:HeaderLen]
	reply.Put(b)
	err := c.qp.PostSend(&verbs.SendWR{ID: c.next, Op: verbs.OpSend, Flags: verbs.Signaled | verbs.Inline | verbs.Solicited, SGL: []verbs.SGE{{MR: c.scratch, Len: HeaderLen}}})
	if err != nil {
		return err
	}
	c.enterLocked(posted{})
	if reply.Reject {
		return fmt.Errorf("iser: a Hello of versions %d to %d with an IRD of %d: %w", h.Version, h.MaxVersion, h.Depth, iscsi.ErrFormat)
	}
	c.ord = int(reply.Depth)
	return nil
}
