// Package isertest is an initiator's end of an iSER connection, for tests: it sends what it is told to,
// and gives its peer the memory that it is told to.
package isertest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Options say what an Initiator offers.
type Options struct {
	IRD         int  // Reads of the target at once
	ORD         int  // of its own at the target
	Invalidates bool // it says that it takes Sends with Invalidate
	Receives    int  // that it posts
	// Transport is what it dials with; nil: within this host.
	Transport *transport.Config
}

// depth bounds what an Initiator has under way.
const depth = 2048

// receiveSize is enough for all that a target may send.
const receiveSize = iser.HeaderLen + iscsi.BHSLen + iser.Segment + 4

// Initiator is the initiator's end of a connection.
type Initiator struct {
	PD *verbs.PD
	QP *verbs.QP

	dev  *verbs.Device
	cq   *verbs.CQ
	o    Options
	in   *verbs.MR
	out  *verbs.MR
	last int // the receive that Receive returned last, -1: none
}

// New returns an Initiator that is not connected. It fails if there is no room for what it has.
func New(o Options) (*Initiator, error) {
	i := &Initiator{o: o, last: -1}
	if i.o.Transport == nil {
		i.o.Transport = &transport.Config{Protector: transport.LoopbackOnly()}
	}
	var err error
	if i.dev, err = verbs.Open(verbs.Config{}); err != nil {
		return nil, err
	}
	u, err := i.dev.NewULP("initiator", verbs.ULPConfig{})
	if err != nil {
		return nil, err
	}
	if i.PD, err = u.AllocPD(); err != nil {
		return nil, err
	}
	if i.cq, err = u.CreateCQ(2*depth, nil); err != nil {
		return nil, err
	}
	if i.in, err = i.Memory(make([]byte, o.Receives*receiveSize), verbs.LocalWrite); err != nil {
		return nil, err
	}
	i.out, err = i.Memory(make([]byte, 64<<10), 0)
	return i, err
}

func (i *Initiator) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: i.cq, RecvCQ: i.cq, MaxSend: depth, MaxRecv: i.o.Receives, IRD: i.o.IRD, ORD: i.o.ORD}
}

func (i *Initiator) privateData() []byte {
	return iser.PrivateData{NoZeroBase: true, NoInvalidate: !i.o.Invalidates}.Append(nil)
}

func (i *Initiator) prepare(qp *verbs.QP) error {
	i.QP = qp
	for slot := range i.o.Receives {
		if err := i.postReceive(slot); err != nil {
			return err
		}
	}
	return nil
}

func (i *Initiator) postReceive(slot int) error {
	return i.QP.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{{MR: i.in, Off: uint32(slot * receiveSize), Len: receiveSize}}})
}

// Dial connects in RDMA mode. It fails as verbs.PD.Dial does.
func (i *Initiator) Dial(ctx context.Context, to netip.AddrPort) error {
	_, err := i.PD.Dial(ctx, verbs.DialConfig{Remote: to, Transport: i.o.Transport, QP: i.config(), Prepare: i.prepare, PrivateData: i.privateData(), Setup: verbs.Setup{ClientServer: true}})
	return err
}

// DialStream connects in streaming mode. It fails as transport.Dial does.
func (i *Initiator) DialStream(ctx context.Context, to netip.AddrPort) (*transport.Conn, error) {
	return transport.Dial(ctx, to, i.o.Transport)
}

// StartMPA ends streaming mode. It fails if the peer does not take part.
func (i *Initiator) StartMPA(ctx context.Context, c *transport.Conn) error {
	m, err := mpa.Client(ctx, c, &mpa.Config{PrivateData: i.privateData(), IRD: uint16(i.o.IRD), ORD: uint16(i.o.ORD)})
	if err != nil {
		return err
	}
	a := verbs.AdoptMPA(i.config(), m, c, true)
	a.Prepare = i.prepare
	_, err = i.PD.Adopt(a)
	return err
}

// Memory registers memory, which the target may reach by its STag. It fails as verbs.PD.RegisterMR does.
func (i *Initiator) Memory(b []byte, a verbs.Access) (*verbs.MR, error) {
	return i.PD.RegisterMR(b, a)
}

// Send sends a PDU in a message. It fails as verbs.QP.PostSend does.
func (i *Initiator) Send(head iser.Header, h *iscsi.BHS, data []byte) error {
	head.Op = iser.OpControl
	return i.SendRaw(iser.AppendMessage(i.out.Bytes()[:0], &head, h, data))
}

// SendRaw sends any message. It fails as verbs.QP.PostSend does.
func (i *Initiator) SendRaw(b []byte) error {
	n := copy(i.out.Bytes(), b)
	return i.QP.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline | verbs.Solicited, SGL: []verbs.SGE{{MR: i.out, Len: uint32(n)}}})
}

// Receive returns the next message, and the STag that came to its end with it, 0 for none. It fails when the
// connection has ended.
func (i *Initiator) Receive(ctx context.Context) (m iser.Message, invalidated uint32, err error) {
	if i.last >= 0 {
		if err := i.postReceive(i.last); err != nil && !errors.Is(err, verbs.ErrClosed) {
			return m, 0, err
		}
		i.last = -1
	}
	for {
		wc, err := i.cq.Next(ctx)
		switch {
		case err != nil:
			return m, 0, err
		case wc.Err != nil:
			return m, 0, wc.Err
		case wc.Op == verbs.WCRecv:
			at := int(wc.ID) * receiveSize
			i.last = int(wc.ID)
			m, err = iser.ParseMessage(i.in.Bytes()[at : at+int(wc.Len)])
			if err != nil {
				err = fmt.Errorf("what the target sent: %w", err)
			}
			return m, wc.Invalidated, err
		}
	}
}

// RawHeader is the header of the message that Receive returned last, as it came.
func (i *Initiator) RawHeader() [iser.HeaderLen]byte {
	return [iser.HeaderLen]byte(i.in.Bytes()[i.last*receiveSize:])
}

// Close ends the connection and frees all.
func (i *Initiator) Close() error { return i.dev.Close() }
