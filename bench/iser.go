package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/scsi/lu"
	"github.com/ironwarp/ironwarp/verbs"
)

// iserServers have the same file, each in a process of its own.
var iserServers = map[string]startServer{
	"iser": ownClient(startRole(roleISER), overISER),
	"rnbd": startOwnRNBD,
}

// iserRows are iSER beside RNBD, both with clients of this program.
func iserRows() (rows []row) {
	for _, j := range fioJobs {
		if j.depth > 1 {
			aim := 0.85
			if j.size() > 4<<10 {
				aim = 0.95
			}
			rows = append(rows, j.iscsiRow("iSER "+j.name+" / RNBD", aim, "iser", "rnbd"))
		}
	}
	return rows
}

// startRole starts this program as the server of the file, in a role whose argument that is.
func startRole(role string) startServer {
	return func(ctx context.Context, b *bench, _, image string) (*blockServer, error) {
		p := newPeer(role, image, 0)
		if err := p.start(ctx, b); err != nil {
			return nil, err
		}
		return &blockServer{iscsi: portal{address: p.addr}, pids: []int{p.cmd.Process.Pid}, closer: p}, nil
	}
}

// fileTarget is a target with a file as LUN 0.
type fileTarget struct {
	server *target.Server
	close  func() error
}

func newFileTarget(image string) (*fileTarget, error) {
	st, err := backing.Open(image, backing.Options{})
	if err != nil {
		return nil, err
	}
	u, err := lu.New(lu.Config{Medium: st})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	t := &fileTarget{target.NewServer(target.Config{LogoutWait: -1}), func() error {
		u.Close()
		return st.Close()
	}}
	d := &lu.Device{}
	err = d.Add(0, u)
	if err == nil {
		err = t.server.Add(&target.Target{Name: benchIQN, Device: d})
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// withTarget has f use a target with a file that is gone afterwards.
func withTarget(f func(*fileTarget) error) error {
	dir, err := os.MkdirTemp("", "ironwarp-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	image := filepath.Join(dir, "disk.img")
	if err := makeImage(image); err != nil {
		return err
	}
	t, err := newFileTarget(image)
	if err != nil {
		return err
	}
	return errors.Join(f(t), t.close())
}

// listenRDMA listens on loopback, for RDMA with large FPDUs.
func listenRDMA(ctx context.Context) (*verbs.Listener, *verbs.ULP, error) {
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, nil, err
	}
	ulp, err := dev.NewULP("bench", verbs.ULPConfig{Trust: verbs.ST})
	if err != nil {
		return nil, nil, err
	}
	at := netip.MustParseAddrPort(anyLoopback)
	ln, err := dev.Listen(ctx, at, verbs.ListenConfig{Transport: transportFor(at.Addr()), Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}})
	return ln, ulp, err
}

func serveISER(ctx context.Context, image string) (string, error) {
	t, err := newFileTarget(image)
	if err != nil {
		return "", err
	}
	ln, ulp, err := listenRDMA(ctx)
	if err != nil {
		return "", err
	}
	go t.server.ServeRDMA(ctx, ln, ulp)
	return ln.Addr().String(), nil
}

func serveRNBD(ctx context.Context, image string) (string, error) {
	st, err := backing.Open(image, backing.Options{})
	if err != nil {
		return "", err
	}
	s := rnbd.NewServer(rnbd.ServerConfig{})
	if err := s.AddExport(rnbd.Export{Name: "disk", Storage: st, AllowAll: true, Trust: verbs.ST}); err != nil {
		return "", err
	}
	ln, ulp, err := listenRDMA(ctx)
	if err != nil {
		return "", err
	}
	rt, err := rtrs.NewServer(rtrs.ServerConfig{ULP: ulp, NewSession: s.NewSession})
	if err != nil {
		return "", err
	}
	go func() {
		for {
			r, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			rt.Handle(r)
		}
	}()
	return ln.Addr().String(), nil
}

// startOwnRNBD starts a server of RNBD with a copy of image. Each job has a session of its own.
func startOwnRNBD(ctx context.Context, b *bench, dir, _ string) (*blockServer, error) {
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk.img")
	if err := makeImage(disk); err != nil {
		return nil, err
	}
	s, err := startRole(roleRNBD)(ctx, b, dir, disk)
	if err == nil {
		s.own = runRNBD
	}
	return s, err
}

func runRNBD(ctx context.Context, j fioJob, s *blockServer) (_ metrics, err error) {
	h, err := newRDMAHome(s.iscsi.address, variant{})
	if err != nil {
		return nil, err
	}
	defer h.Close()
	c, err := rnbd.Connect(ctx, rnbd.ClientConfig{RTRS: rtrs.ClientConfig{ULP: h.ulp, Name: "bench", Conns: 1,
		Paths: []rtrs.PathConfig{{Remote: h.remote, Transport: h.transport}}, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	d, err := c.Open(ctx, "disk", rnbd.OpenOptions{})
	if err != nil {
		return nil, err
	}
	return j.timed(s.pids, func(more func() bool) (int, error) { return runDisk(ctx, j, d, more) })
}

// diskOp is one of the operations that are under way on a block.Device.
type diskOp struct {
	io    block.IO
	errno syscall.Errno
	ended chan *diskOp
}

// Complete implements block.Completion.
func (o *diskOp) Complete(errno syscall.Errno) {
	o.errno = errno
	o.ended <- o
}

// runDisk keeps a job's operations under way while more says so, and returns how many there were.
func runDisk(ctx context.Context, j fioJob, d block.Device, more func() bool) (done int, err error) {
	op := block.OpRead
	if j.writes() {
		op = block.OpWrite
	}
	place, ended := j.places(), make(chan *diskOp, j.depth)
	submit := func(o *diskOp) error {
		x, err := d.Get(ctx, op, place(), uint32(j.size()), 0)
		if err == nil {
			o.io = x
			x.Submit(o, true)
		}
		return err
	}
	for range j.depth {
		if err := submit(&diskOp{ended: ended}); err != nil {
			return 0, err
		}
	}
	for under := j.depth; under > 0; {
		var o *diskOp
		select {
		case o = <-ended:
		default:
			d.Kick()
			o = <-ended
		}
		o.io.Release()
		if o.errno != 0 {
			return 0, fmt.Errorf("%v over RNBD: %w", op, o.errno)
		}
		done++
		if !more() {
			under--
		} else if err := submit(o); err != nil {
			return 0, err
		}
	}
	return done, nil
}

const (
	iserReceives    = 300
	iserHead        = iser.HeaderLen + iscsi.BHSLen
	iserReceiveSize = iserHead + iser.Segment + 4
)

// iserWire is the wire over RDMA. It opens the memory of a command to the target when it sends the
// command, and the target's Send with Invalidate closes it. Short writes go along with their commands.
type iserWire struct {
	h   *rdmaHome
	cq  *verbs.CQ
	qp  *verbs.QP
	in  *verbs.MR   // slots of receives
	out *verbs.MR   // a message of the login, and the heads of commands
	all []*verbs.MR // memory of commands, by ITT
	bhs iscsi.BHS
	sgl [2]verbs.SGE
	wcs [32]verbs.WC
	got []verbs.WC // of wcs, not handled yet
}

// overISER logs in over RDMA.
func overISER(ctx context.Context, address string, j fioJob) (*initiator, error) {
	h, err := newRDMAHome(address, variant{})
	if err != nil {
		return nil, err
	}
	w := &iserWire{h: h}
	c, err := w.logIn(ctx, j)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return c, nil
}

func (w *iserWire) logIn(ctx context.Context, j fioJob) (*initiator, error) {
	pd, err := w.h.ulp.AllocPD()
	if err != nil {
		return nil, err
	}
	if w.cq, err = w.h.ulp.CreateCQ(4096, nil); err != nil {
		return nil, err
	}
	if w.in, err = pd.RegisterMR(make([]byte, iserReceives*iserReceiveSize), verbs.LocalWrite); err != nil {
		return nil, err
	}
	if w.out, err = pd.RegisterMR(make([]byte, iserReceiveSize+j.depth*iserHead), 0); err != nil {
		return nil, err
	}
	if w.qp, err = pd.Dial(ctx, verbs.DialConfig{Remote: w.h.remote, Transport: w.h.transport, PrivateData: iser.PrivateData{NoZeroBase: true}.Append(nil),
		QP:    verbs.QPConfig{SendCQ: w.cq, RecvCQ: w.cq, MaxSend: 1024, MaxRecv: iserReceives, IRD: 32},
		Setup: verbs.Setup{ClientServer: true, LargeFPDU: verbs.MaxLargeFPDU}, Prepare: func(qp *verbs.QP) error {
			w.qp = qp
			for i := range uint64(iserReceives) {
				if err := w.postReceive(i); err != nil {
					return err
				}
			}
			return nil
		}}); err != nil {
		return nil, err
	}
	c, err := logIn(w, j, 0, "RDMAExtensions=Yes", "ImmediateData=Yes", "FirstBurstLength=8192", "InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192")
	if err != nil {
		return nil, err
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	access := verbs.LocalWrite
	if j.writes() {
		access = 0
	}
	for i := range c.memory {
		m, err := pd.RegisterMR(make([]byte, j.size()), access)
		if err != nil {
			return nil, err
		}
		w.all, c.memory[i] = append(w.all, m), m.Bytes()
	}
	return c, nil
}

func (w *iserWire) Close() error { return w.h.Close() }

func (w *iserWire) postReceive(slot uint64) error {
	return w.qp.PostRecv(verbs.RecvWR{ID: slot, SGL: []verbs.SGE{{MR: w.in, Off: uint32(slot * iserReceiveSize), Len: iserReceiveSize}}})
}

func (w *iserWire) control(h *iscsi.BHS, data []byte) error {
	n := len(iser.AppendMessage(w.out.Bytes()[:0], &iser.Header{Op: iser.OpControl}, h, data))
	return w.qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline | verbs.Solicited, SGL: []verbs.SGE{{MR: w.out, Len: uint32(n)}}})
}

func (w *iserWire) command(k *iscsi.Command, data []byte) error {
	head := iser.Header{Op: iser.OpControl}
	sgl, n, with := w.sgl[:1], uint32(len(data)), 0
	switch {
	case n == 0:
	case k.Write && n <= iser.Segment:
		sgl, with = w.sgl[:2], len(data)
		sgl[1] = verbs.SGE{MR: w.all[k.ITT], Len: n}
	default:
		m, access := w.all[k.ITT], verbs.RemoteWrite
		if k.Write {
			access = verbs.RemoteRead
		}
		sgl[0] = verbs.SGE{MR: m, Len: n}
		if err := w.qp.PostSend(&verbs.SendWR{Op: verbs.OpRegister, Flags: verbs.More, SGL: sgl, Access: access}); err != nil {
			return err
		}
		if k.Write {
			head.Write, head.WriteTag = true, m.STag()
		} else {
			head.Read, head.ReadTag = true, m.STag()
		}
	}
	// Each command has its place, and the data follow from theirs.
	at := iserReceiveSize + int(k.ITT)*iserHead
	k.Put(&w.bhs)
	iser.AppendMessage(w.out.Bytes()[at:at], &head, &w.bhs, nil)
	(*iscsi.BHS)(w.out.Bytes()[at+iser.HeaderLen:]).SetLengths(0, with)
	sgl[0] = verbs.SGE{MR: w.out, Off: uint32(at), Len: iserHead}
	return w.qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Solicited | verbs.More, SGL: sgl})
}

func (w *iserWire) next() (*iscsi.BHS, error) {
	for {
		if len(w.got) == 0 {
			n := w.cq.Poll(w.wcs[:])
			if n == 0 {
				w.qp.Flush()
				wc, err := w.cq.Next(context.Background())
				if err != nil {
					return nil, err
				}
				w.wcs[0], n = wc, 1
			}
			w.got = w.wcs[:n]
		}
		wc := w.got[0]
		w.got = w.got[1:]
		switch {
		case wc.Err != nil:
			return nil, wc.Err
		case wc.Op != verbs.WCRecv:
			continue
		}
		at := int(wc.ID) * iserReceiveSize
		m, err := iser.ParseMessage(w.in.Bytes()[at : at+int(wc.Len)])
		if err != nil {
			return nil, err
		}
		if m.Op != iser.OpControl {
			return nil, fmt.Errorf("a message of type %d", m.Op)
		}
		w.bhs = m.BHS
		return &w.bhs, w.postReceive(wc.ID)
	}
}
