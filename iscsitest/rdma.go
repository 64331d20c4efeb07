package iscsitest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// rdma is a link over iSER. It needs a target that keeps to what it may send: receives are there for that.
type rdma struct {
	ctx    context.Context
	i      *isertest.Initiator
	memory map[uint32][2]*verbs.MR // by task tag, what is read and what is written
	stream *transport.Conn         // of streaming mode, during login
	login  *tcp
	// solicitedOnly says that bases are those of solicited data alone (RFC 7145 section 6.9), as all have it who start
	// in RDMA mode.
	solicitedOnly bool
}

// receives is how many PDUs a target may send at once.
const receives = 300

// dialRDMA connects. It fails as isertest.Initiator.Dial and DialStream do.
func dialRDMA(ctx context.Context, t *Target, o *Options) (link, error) {
	soon, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	to, err := resolve(soon, t.Address)
	if err != nil {
		return nil, err
	}
	i, err := isertest.New(isertest.Options{IRD: 8, Invalidates: true, Receives: receives, Transport: o.Transport})
	if err != nil {
		return nil, err
	}
	l := &rdma{ctx: ctx, i: i, memory: map[uint32][2]*verbs.MR{}, solicitedOnly: t.Over == ISER}
	if t.Over == ISERStreaming {
		if l.stream, err = i.DialStream(soon, to); err == nil {
			l.login = &tcp{nc: l.stream, wait: o.Timeout, limit: segment}
		}
	} else {
		err = i.Dial(soon, to)
	}
	if err != nil {
		i.Close()
		return nil, err
	}
	return l, nil
}

// resolve returns the first address of a host.
func resolve(ctx context.Context, address string) (netip.AddrPort, error) {
	a, err := lookup(ctx, address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return a[0], nil
}

func (l *rdma) close() {
	if l.login != nil {
		l.login.close()
	}
	l.i.Close()
}

func (l *rdma) negotiated(v *iscsi.Values) error {
	if l.login == nil || !v.Bool(iscsi.KeyRDMAExtensions) { // which a discovery session does without
		return nil
	}
	l.login = nil
	l.solicitedOnly = v.Bool(iscsi.KeyTaggedBufferForSolicitedDataOnly)
	return l.i.StartMPA(l.ctx, l.stream)
}

func (l *rdma) write(p *PDU) error {
	if l.login != nil {
		return l.login.write(p)
	}
	var head iser.Header
	var mr [2]*verbs.MR
	var err error
	if len(p.in) > 0 {
		if mr[0], err = l.i.Memory(p.in, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
			return err
		}
		head.Read, head.ReadTag = true, mr[0].STag()
	}
	if len(p.out) > len(p.Data) {
		if mr[1], err = l.i.Memory(p.out, verbs.RemoteRead); err != nil {
			return err
		}
		head.Write, head.WriteTag = true, mr[1].STag()
		if l.solicitedOnly {
			head.WriteBase = uint64(len(p.Data))
		}
	}
	if mr != [2]*verbs.MR{} {
		l.memory[p.BHS.ITT()] = mr
	}
	if p.bare {
		head = iser.Header{}
	}
	h := p.BHS
	return l.i.Send(head, &h, p.Data)
}

// hello sends a Hello, and returns the answer (RFC 7145 sections 9.3 and 9.4).
func (l *rdma) hello(h iser.Header, until time.Time) (iser.Header, error) {
	ctx, cancel := context.WithDeadline(l.ctx, until)
	defer cancel()
	var b [iser.HeaderLen]byte
	h.Op = iser.OpHello
	h.Put(b[:])
	if err := l.i.SendRaw(b[:]); err != nil {
		return iser.Header{}, err
	}
	m, _, err := l.i.Receive(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errTimeout
	}
	return m.Header, err
}

func (l *rdma) read(until time.Time) (*PDU, error) {
	if l.login != nil {
		return l.login.read(until)
	}
	ctx, cancel := context.WithDeadline(l.ctx, until)
	defer cancel()
	m, invalidated, err := l.i.Receive(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errTimeout
	case err != nil:
		return nil, err
	case m.Op != iser.OpControl:
		return nil, fmt.Errorf("an iSER message of type %d: %w", m.Op, errBroken)
	}
	p := &PDU{BHS: m.BHS, Data: append([]byte(nil), m.Data...), invalidated: invalidated, header: l.i.RawHeader()}
	itt := p.BHS.ITT()
	for _, mr := range l.memory[itt] {
		if mr != nil {
			p.advertised = append(p.advertised, mr.STag())
		}
	}
	if p.BHS.Opcode() == iscsi.OpResponse {
		for _, mr := range l.memory[itt] {
			if mr != nil {
				_ = mr.Deregister() // which fails if the connection has ended
			}
		}
		delete(l.memory, itt)
	}
	return p, nil
}
