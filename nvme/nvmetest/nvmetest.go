// Package nvmetest is a host's end of NVMe over RDMA, for tests: a queue that sends what it is told to, and gives the
// target the memory that it is told to.
package nvmetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Options say what a queue is like.
type Options struct {
	QID   uint16
	Depth int // entries; 0: 32
	IRD   int // Reads of the target at once; 0: 8
	// Request is the private data, if they are to be others than those of the queue.
	Request []byte
	// Transport is what it dials with; nil: within this host.
	Transport *transport.Config
}

// room is for what a queue has under way beyond its depth, if a test wants that.
const room = 64

// Queue is a connection.
type Queue struct {
	PD *verbs.PD
	QP *verbs.QP

	dev  *verbs.Device
	cq   *verbs.CQ
	in   *verbs.MR
	next uint16
	done map[uint16]nvme.Completion // that came while another was waited for
}

// Dial connects. It fails as verbs.PD.Dial does, and if there is no room for what a queue has.
func Dial(ctx context.Context, to netip.AddrPort, o Options) (q *Queue, err error) {
	if o.Depth == 0 {
		o.Depth = 32
	}
	if o.IRD == 0 {
		o.IRD = 8
	}
	if o.Transport == nil {
		o.Transport = &transport.Config{Protector: transport.LoopbackOnly()}
	}
	if o.Request == nil {
		o.Request = nvme.ConnectRequest{QID: o.QID, RecvQueue: uint16(o.Depth), SendQueue: uint16(o.Depth - 1)}.Append(nil)
	}
	q = &Queue{done: map[uint16]nvme.Completion{}}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	q.dev = dev
	defer func() {
		if err != nil {
			dev.Close()
		}
	}()
	u, err := q.dev.NewULP("host", verbs.ULPConfig{})
	if err != nil {
		return nil, err
	}
	if q.PD, err = u.AllocPD(); err != nil {
		return nil, err
	}
	receives := o.Depth + room
	if q.cq, err = u.CreateCQ(4*receives, nil); err != nil {
		return nil, err
	}
	if q.in, err = q.PD.RegisterMR(make([]byte, receives*nvme.CompletionLen), verbs.LocalWrite); err != nil {
		return nil, err
	}
	q.QP, err = q.PD.Dial(ctx, verbs.DialConfig{Remote: to, Transport: o.Transport, PrivateData: o.Request,
		QP: verbs.QPConfig{SendCQ: q.cq, RecvCQ: q.cq, MaxSend: 2 * receives, MaxRecv: receives, IRD: o.IRD},
		Prepare: func(qp *verbs.QP) error {
			for slot := range receives {
				if err := q.post(qp, slot); err != nil {
					return err
				}
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	return q, nil
}

func (q *Queue) post(qp *verbs.QP, slot int) error {
	return qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{{MR: q.in, Off: uint32(slot * nvme.CompletionLen), Len: nvme.CompletionLen}}})
}

// Close ends the connection.
func (q *Queue) Close() {
	q.QP.Abort(nil)
	q.dev.Close()
}

// Memory registers memory, which the target may reach by its STag. It fails as verbs.PD.RegisterMR does.
func (q *Queue) Memory(b []byte, a verbs.Access) (*verbs.MR, error) { return q.PD.RegisterMR(b, a) }

// New returns a command with an identifier of its own.
func (q *Queue) New(op nvme.Opcode) nvme.Command {
	q.next++
	return nvme.NewCommand(op, q.next)
}

// Send sends a capsule. It fails as verbs.QP.PostSend does.
func (q *Queue) Send(capsule []byte) error {
	return q.QP.PostSend(&verbs.SendWR{ID: 1 << 32, Op: verbs.OpSend, Flags: verbs.Inline | verbs.Solicited, Data: capsule})
}

// Receive returns the next response, and the STag that came to its end with it, 0 for none. It fails when the connection
// has ended.
func (q *Queue) Receive(ctx context.Context) (e nvme.Completion, invalidated uint32, err error) {
	for {
		wc, err := q.cq.Next(ctx)
		switch {
		case err != nil:
			return e, 0, err
		case wc.Err != nil:
			return e, 0, fmt.Errorf("nvmetest: the connection is over: %w", errors.Join(wc.Err, q.QP.Err()))
		case wc.Op != verbs.WCRecv:
			continue
		}
		e, err = nvme.ParseCompletion(q.in.Bytes()[int(wc.ID)*nvme.CompletionLen:][:wc.Len])
		if perr := q.post(q.QP, int(wc.ID)); err == nil && !errors.Is(perr, verbs.ErrClosed) {
			err = perr
		}
		return e, wc.Invalidated, err
	}
}

// Wait waits for the response to a command. It fails when the connection has ended.
func (q *Queue) Wait(ctx context.Context, id uint16) (nvme.Completion, error) {
	for {
		if e, ok := q.done[id]; ok {
			delete(q.done, id)
			return e, nil
		}
		e, _, err := q.Receive(ctx)
		if err != nil {
			return e, err
		}
		q.done[e.ID] = e
	}
}

// Do sends a command without data, and waits for its response. It fails when the connection has ended.
func (q *Queue) Do(ctx context.Context, c nvme.Command) (nvme.Completion, error) {
	if err := q.Send(c); err != nil {
		return nvme.Completion{}, err
	}
	return q.Wait(ctx, c.ID())
}

// In is Do of a command whose data come: n bytes. It fails as Do does.
func (q *Queue) In(ctx context.Context, c nvme.Command, n int) ([]byte, nvme.Completion, error) {
	mr, err := q.Memory(make([]byte, n), verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		return nil, nvme.Completion{}, err
	}
	defer mr.Deregister()
	c.SetSGL(nvme.SGL{Type: nvme.KeyedBlockInvalidate, Length: uint32(n), Key: mr.STag()})
	e, err := q.Do(ctx, c)
	return mr.Bytes(), e, err
}

// Out is Do of a command whose data are read by the target. It fails as Do does.
func (q *Queue) Out(ctx context.Context, c nvme.Command, data []byte) (nvme.Completion, error) {
	mr, err := q.Memory(data, verbs.RemoteRead)
	if err != nil {
		return nvme.Completion{}, err
	}
	defer mr.Deregister()
	c.SetSGL(nvme.SGL{Type: nvme.KeyedBlock, Length: uint32(len(data)), Key: mr.STag()})
	return q.Do(ctx, c)
}

// Inline is Do of a command whose data are in the capsule. It fails as Do does.
func (q *Queue) Inline(ctx context.Context, c nvme.Command, data []byte) (nvme.Completion, error) {
	c.SetSGL(nvme.SGL{Type: nvme.DataBlockOffset, Length: uint32(len(data))})
	if err := q.Send(append(c[:nvme.CommandLen:nvme.CommandLen], data...)); err != nil {
		return nvme.Completion{}, err
	}
	return q.Wait(ctx, c.ID())
}

// Connect sends a Connect with data read by the target. It fails as Do does.
func (q *Queue) Connect(ctx context.Context, k nvme.ConnectCommand, d nvme.ConnectData) (nvme.Completion, error) {
	c := q.New(nvme.Fabrics)
	c.SetConnect(k)
	return q.Out(ctx, c, d.Append(nil))
}

// Enable sets CC.EN, and reports whether the controller is ready. It fails as Do does.
func (q *Queue) Enable(ctx context.Context) (bool, error) {
	c := q.New(nvme.Fabrics)
	c.SetProperty(nvme.PropertySet, nvme.Property{Offset: nvme.PropCC, Value: nvme.CCEnable | nvme.CCIOSQES | nvme.CCIOCQES})
	if e, err := q.Do(ctx, c); err != nil || e.Status != nvme.Success {
		return false, err
	}
	c = q.New(nvme.Fabrics)
	c.SetProperty(nvme.PropertyGet, nvme.Property{Offset: nvme.PropCSTS})
	e, err := q.Do(ctx, c)
	return e.Status == nvme.Success && e.Result&nvme.CSTSReady != 0, err
}

// Host is a host with a controller: an admin queue, and I/O queues.
type Host struct {
	Admin      *Queue
	Controller uint16
	Data       nvme.ConnectData
	to         netip.AddrPort
	transport  *transport.Config
}

// Connect connects a host to a subsystem, and enables the controller. It fails if it is refused.
func Connect(ctx context.Context, to netip.AddrPort, tr *transport.Config, subsystem, host string, id block.ID) (*Host, error) {
	h := &Host{Data: nvme.ConnectData{HostID: id, Controller: nvme.DynamicController, SubsystemNQN: subsystem, HostNQN: host}, to: to, transport: tr}
	var err error
	if h.Admin, err = Dial(ctx, to, Options{Transport: tr}); err != nil {
		return nil, err
	}
	e, err := h.Admin.Connect(ctx, nvme.ConnectCommand{SQSize: 31}, h.Data)
	if err == nil && e.Status != nvme.Success {
		err = &RefusedError{e}
	}
	if err == nil {
		h.Controller = uint16(e.Result)
		var ready bool
		if ready, err = h.Admin.Enable(ctx); err == nil && !ready {
			err = errors.New("nvmetest: the controller is not ready")
		}
	}
	if err != nil {
		h.Admin.Close()
		return nil, err
	}
	return h, nil
}

// RefusedError is a Connect that failed.
type RefusedError struct{ Completion nvme.Completion }

func (e *RefusedError) Error() string {
	return "nvmetest: connect refused: " + e.Completion.Status.String()
}

// Queue adds an I/O queue. It fails if it is refused.
func (h *Host) Queue(ctx context.Context, qid uint16) (*Queue, error) {
	q, err := Dial(ctx, h.to, Options{QID: qid, Transport: h.transport})
	if err != nil {
		return nil, err
	}
	d := h.Data
	d.Controller = h.Controller
	e, err := q.Connect(ctx, nvme.ConnectCommand{QID: qid, SQSize: 31}, d)
	if err == nil && e.Status != nvme.Success {
		err = &RefusedError{e}
	}
	if err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}
