package iscsitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// segment is the longest data segment in bytes that is taken if a case declares nothing else: during login what
// RFC 7143 section 6.3 has.
const segment = iscsi.LoginDataSegment

// Conn is a connection. What is sent and received on it is noted, and what holds for every PDU is watched.
type Conn struct {
	t    *T
	id   int
	link link

	limit     int // the longest data segment in bytes that was declared
	expStatSN uint32
	counting  bool // expStatSN is known
	full      bool // full feature phase
	v         iscsi.Values
}

// lookup returns the addresses of host:port.
func lookup(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(n)))
	}
	return all, nil
}

// connect connects as the target is reached. The link is of use until ctx is done.
func connect(ctx context.Context, t *Target, o *Options) (link, error) {
	if t.Over != TCP {
		return dialRDMA(ctx, t, o)
	}
	soon, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	nc, err := o.Dial(soon, t.Address)
	if err != nil {
		return nil, err
	}
	return &tcp{nc: nc, wait: o.Timeout, limit: segment}, nil
}

// dial opens a connection. If that is not possible it ends the case.
func (t *T) dial() *Conn {
	l, err := connect(t.ctx, t.target, t.o)
	if err != nil {
		t.end(TargetDown, "%v", err)
	}
	t.links++
	c := &Conn{t: t, id: t.links, link: l, limit: segment, v: iscsi.DefaultValues()}
	t.open = append(t.open, c)
	t.note(Event{Conn: c.id, Note: "connected to " + t.target.Address})
	return c
}

// close ends the connection.
func (c *Conn) close() { c.link.close() }

// send sends a PDU. If the connection has ended it ends the case.
func (c *Conn) send(p *PDU) {
	if err := c.trySend(p); err != nil {
		c.t.lost(c, err)
	}
}

// trySend sends a PDU on a connection that the target may have ended.
func (c *Conn) trySend(p *PDU) error {
	c.t.note(Event{Conn: c.id, Sent: true, PDU: kept(p)})
	return c.link.write(p)
}

// tryReceive returns the next PDU. It fails with errTimeout, and when the connection has ended.
func (c *Conn) tryReceive(until time.Time) (*PDU, error) {
	if d, ok := c.t.ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	p, err := c.link.read(until)
	switch {
	case err != nil && c.t.ctx.Err() != nil:
		c.t.unclear("the case has taken too long")
	case errors.Is(err, errTimeout):
		return nil, err
	case err != nil:
		c.t.note(Event{Conn: c.id, Note: fmt.Sprintf("ended: %v", err)})
		if errors.Is(err, errBroken) {
			c.t.watch.breach(ruleReadable, "%v", err)
		}
		return nil, err
	}
	c.t.note(Event{Conn: c.id, PDU: kept(p)})
	c.watch(p)
	return p, nil
}

// sendRaw sends bytes that are no PDU. Only TCP has that.
func (c *Conn) sendRaw(b []byte) error {
	c.t.note(Event{Conn: c.id, Sent: true, Note: fmt.Sprintf("-> %d bytes: %x", len(b), b[:min(len(b), 64)])})
	return c.link.(*tcp).writeRaw(b)
}

// ends waits until the target has ended the connection, and returns what it has sent before. ended is false if
// it goes on, as far as can be seen in the time of an answer.
func (c *Conn) ends() (sent []*PDU, ended bool) {
	until := c.t.wait()
	for {
		p, err := c.tryReceive(until)
		if errors.Is(err, errTimeout) || errors.Is(err, errBroken) { // it has sent something that is no PDU
			return sent, false
		} else if err != nil {
			return sent, true
		}
		sent = append(sent, p)
	}
}

// kept is a copy of a PDU to be noted, without what helps to guess a secret.
func kept(p *PDU) *PDU {
	q := *p
	q.AHS, q.Data = bytes.Clone(p.AHS), hideSecrets(bytes.Clone(p.Data))
	q.in, q.out = nil, nil
	return &q
}

// hideSecrets replaces the values of CHAP_R in text: with the challenge each is enough to try secrets at.
func hideSecrets(b []byte) []byte {
	const key = "CHAP_R="
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(key))
		if i < 0 {
			return b
		}
		for at += i + len(key); at < len(b) && b[at] != 0; at++ {
			b[at] = '*'
		}
	}
}
