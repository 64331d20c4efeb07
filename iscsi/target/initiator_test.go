package target_test

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// wire is what an initiator sends by, and the target moves data by.
type wire interface {
	// command sends a SCSI Command: the first immediate bytes of out with it, the rest as the target
	// asks for it. What it reads comes into in.
	command(k *iscsi.Command, immediate int, out, in []byte)
	control(h *iscsi.BHS, data []byte)
	// next returns the next PDU that moves no data; the zero header is the connection's end.
	next() (h iscsi.BHS, data []byte)
}

// transfer is the data of a command that is under way.
type transfer struct {
	in, out []byte
	memory  *verbs.MR
}

// tcpWire is the wire over TCP, without digests.
type tcpWire struct {
	t   *testing.T
	nc  net.Conn
	all map[uint32]*transfer
}

func (w *tcpWire) control(h *iscsi.BHS, data []byte) {
	h.SetLengths(0, len(data))
	b := append(append(append([]byte(nil), h[:]...), data...), make([]byte, iscsi.Pad(len(data)))...)
	if _, err := w.nc.Write(b); err != nil {
		w.t.Log(err)
	}
}

func (w *tcpWire) command(k *iscsi.Command, immediate int, out, in []byte) {
	w.all[k.ITT] = &transfer{in: in, out: out}
	var h iscsi.BHS
	k.Put(&h)
	w.control(&h, out[:immediate])
}

func (w *tcpWire) next() (h iscsi.BHS, data []byte) {
	for {
		if _, err := io.ReadFull(w.nc, h[:]); err != nil {
			return iscsi.BHS{}, nil
		}
		n := h.DataLen()
		data = make([]byte, n+iscsi.Pad(n))
		if _, err := io.ReadFull(w.nc, data); err != nil {
			return iscsi.BHS{}, nil
		}
		data = data[:n]
		switch h.Opcode() {
		case iscsi.OpDataIn:
			d, err := iscsi.ParseDataIn(&h)
			if err != nil {
				w.t.Error(err)
			}
			copy(w.all[d.ITT].in[d.Offset:], data)
			if d.HasStatus {
				r := iscsi.Response{Residual: d.Residual, Status: d.Status, ITT: d.ITT, Numbers: d.Numbers}
				r.Put(&h)
				return h, nil
			}
		case iscsi.OpR2T:
			r, err := iscsi.ParseR2T(&h)
			if err != nil {
				w.t.Error(err)
			}
			d := iscsi.DataOut{Final: true, ITT: r.ITT, TTT: r.TTT, Offset: r.Offset}
			d.Put(&h)
			w.control(&h, w.all[r.ITT].out[r.Offset:r.Offset+r.Length])
		default:
			return h, data
		}
	}
}

// rdmaWire is the wire over iSER.
type rdmaWire struct {
	t           *testing.T
	i           *isertest.Initiator
	all         map[uint32]*transfer
	immediate   bool // how it started up: what the base of what is written is that of
	invalidates bool
}

func (w *rdmaWire) control(h *iscsi.BHS, data []byte) {
	if err := w.i.Send(iser.Header{}, h, data); err != nil {
		w.t.Log(err)
	}
}

func (w *rdmaWire) command(k *iscsi.Command, immediate int, out, in []byte) {
	x := &transfer{in: in, out: out}
	w.all[k.ITT] = x
	var head iser.Header
	var err error
	switch {
	case len(in) > 0:
		if x.memory, err = w.i.Memory(in, verbs.LocalWrite|verbs.RemoteWrite); err == nil {
			head.Read, head.ReadTag = true, x.memory.STag()
		}
	case len(out) > immediate:
		if x.memory, err = w.i.Memory(out, verbs.RemoteRead); err == nil {
			head.Write, head.WriteTag = true, x.memory.STag()
			if w.immediate {
				head.WriteBase = uint64(immediate)
			}
		}
	}
	if err != nil {
		w.t.Error(err)
	}
	var h iscsi.BHS
	k.Put(&h)
	if err := w.i.Send(head, &h, out[:immediate]); err != nil {
		w.t.Log(err)
	}
}

func (w *rdmaWire) next() (h iscsi.BHS, data []byte) {
	m, invalidated, err := w.i.Receive(w.t.Context())
	if err != nil {
		w.t.Logf("the connection has ended: %v", err)
		return iscsi.BHS{}, nil
	}
	if m.Op != iser.OpControl {
		w.t.Errorf("message of type %d", m.Op)
	}
	x := w.all[m.BHS.ITT()]
	if m.BHS.Opcode() == iscsi.OpResponse && x != nil && x.memory != nil {
		if want := x.memory.STag(); w.invalidates != (invalidated == want) || !w.invalidates && invalidated != 0 {
			w.t.Errorf("invalidated %#x, the command's tag was %#x", invalidated, want)
		}
		if err := x.memory.Deregister(); err != nil {
			w.t.Error(err)
		}
		delete(w.all, m.BHS.ITT())
	} else if invalidated != 0 {
		w.t.Errorf("%v invalidates %#x", m.BHS.Opcode(), invalidated)
	}
	return m.BHS, bytes.Clone(m.Data)
}

// way is how an initiator reaches the target.
type way struct {
	name string
	rdma bool // the listener is that of ServeRDMA
	// connect logs in.
	connect func(t *testing.T, s *served, isid byte, keys ...string) *initiator
}

func overTCP(t *testing.T, s *served, isid byte, keys ...string) *initiator {
	t.Helper()
	nc, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(time.Minute)) // a test that hangs fails
	c := &initiator{t: t, w: &tcpWire{t, nc, map[uint32]*transfer{}}, cmdSN: 1}
	c.login(isid, keys)
	return c
}

func inRDMA(o isertest.Options) func(t *testing.T, s *served, isid byte, keys ...string) *initiator {
	return func(t *testing.T, s *served, isid byte, keys ...string) *initiator {
		t.Helper()
		i := newInitiator(t, o)
		if err := i.Dial(t.Context(), netip.MustParseAddrPort(s.address)); err != nil {
			t.Fatal(err)
		}
		c := &initiator{t: t, w: &rdmaWire{t, i, map[uint32]*transfer{}, true, o.Invalidates}, cmdSN: 1}
		c.login(isid, append(keys, "RDMAExtensions=Yes"))
		return c
	}
}

func newInitiator(t *testing.T, o isertest.Options) *isertest.Initiator {
	t.Helper()
	if o.Receives == 0 {
		o.Receives = 300
	}
	i, err := isertest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return i
}

// fromStream logs in over TCP and goes on with RDMA (RFC 7145 section 5.1).
func fromStream(t *testing.T, s *served, isid byte, keys ...string) *initiator {
	t.Helper()
	o := isertest.Options{IRD: 3, Invalidates: true}
	i := newInitiator(t, o)
	nc, err := i.DialStream(t.Context(), netip.MustParseAddrPort(s.address))
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(time.Minute))
	c := &initiator{t: t, w: &tcpWire{t, nc, nil}, cmdSN: 1}
	c.login(isid, append(keys, "RDMAExtensions=Yes"))
	if err := i.StartMPA(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	c.w = &rdmaWire{t, i, map[uint32]*transfer{}, false, o.Invalidates}
	return c
}

const withoutInvalidate = "RDMA without Send with Invalidate, one Read at a time"

// ways are all of them.
var ways = []way{
	{"TCP", false, overTCP},
	{"TCP beside RDMA", true, overTCP},
	{"RDMA", true, inRDMA(isertest.Options{IRD: 8, Invalidates: true})},
	{withoutInvalidate, true, inRDMA(isertest.Options{IRD: 1})},
	{"streaming mode, then RDMA", true, fromStream},
}

// overEachWay runs a test over each of them, with units of its own.
func overEachWay(t *testing.T, f func(t *testing.T, w way)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { f(t, w) })
	}
}

// initiator is an initiator that works the same over each wire.
type initiator struct {
	t      *testing.T
	w      wire
	cmdSN  uint32
	statSN uint32
	itt    uint32
	text   []byte // of the answer to the login
}

func (c *initiator) login(isid byte, keys []string) {
	c.t.Helper()
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature, ISID: [6]byte{0x80, isid}, CmdSN: 1}
	var h iscsi.BHS
	q.Put(&h)
	text := []byte("InitiatorName=iqn.x:i\x00TargetName=" + targetName + "\x00")
	for _, k := range keys {
		text = append(append(text, k...), 0)
	}
	c.w.control(&h, text)
	h, c.text = c.w.next()
	r, err := iscsi.ParseLoginResponse(&h)
	if err != nil || r.Status != iscsi.LoginOK || !r.Transit {
		c.t.Fatalf("%+v %v", r, err)
	}
	c.statSN = r.StatSN + 1
}

// start sends a command and returns its tag. Only one of out and in has data.
func (c *initiator) start(cdb [16]byte, immediate int, out, in []byte) uint32 {
	c.itt++
	k := iscsi.Command{Final: true, Attr: iscsi.Simple, ITT: c.itt, CmdSN: c.cmdSN, ExpStatSN: c.statSN, CDB: cdb}
	k.Read, k.Write, k.EDTL = len(in) > 0, len(out) > 0, uint32(len(in)+len(out))
	c.cmdSN++
	c.w.command(&k, immediate, out, in)
	return c.itt
}

// response returns the next SCSI Response.
func (c *initiator) response() (r iscsi.Response, s scsi.Sense) {
	c.t.Helper()
	h, data := c.w.next()
	if h.Opcode() != iscsi.OpResponse {
		c.t.Fatalf("%v instead of a response", h.Opcode())
	}
	r, err := iscsi.ParseResponse(&h)
	if err != nil {
		c.t.Error(err)
	}
	c.statSN = r.StatSN + 1
	b, err := iscsi.ParseSense(data)
	if err != nil {
		c.t.Error(err)
	}
	s, _ = scsi.ParseSense(b)
	return r, s
}

// do carries a command out.
func (c *initiator) do(cdb [16]byte, immediate int, out, in []byte) (iscsi.Response, scsi.Sense) {
	c.t.Helper()
	itt := c.start(cdb, immediate, out, in)
	r, s := c.response()
	if r.ITT != itt {
		c.t.Fatalf("a response to %d, want %d", r.ITT, itt)
	}
	return r, s
}

// good is do of a command that succeeds.
func (c *initiator) good(cdb [16]byte, immediate int, out, in []byte) iscsi.Response {
	c.t.Helper()
	r, s := c.do(cdb, immediate, out, in)
	if r.Status != 0 {
		c.t.Fatalf("%x: %+v %+v", cdb, r, s)
	}
	return r
}

// ready takes the unit attention.
func (c *initiator) ready() {
	c.t.Helper()
	if r, s := c.do([16]byte{}, 0, nil, nil); r.Status != 2 || s.Code != scsi.PowerOnOrReset {
		c.t.Fatalf("%+v %+v", r, s)
	}
}

// manage sends a task management function.
func (c *initiator) manage(f iscsi.Function, ref, refSN uint32) {
	c.itt++
	var h iscsi.BHS
	m := iscsi.TaskMgmt{Immediate: true, Function: f, ITT: c.itt, RefTag: ref, CmdSN: c.cmdSN, ExpStatSN: c.statSN, RefCmdSN: refSN}
	m.Put(&h)
	c.w.control(&h, nil)
}

func cdb10(op byte, lba uint32, blocks uint16) [16]byte {
	return [16]byte{op, 0, byte(lba >> 24), byte(lba >> 16), byte(lba >> 8), byte(lba), 0, byte(blocks >> 8), byte(blocks)}
}

// serve serves units for a way.
func (w way) serve(t *testing.T, units ...unit) *served {
	t.Helper()
	if w.rdma {
		return serveRDMA(t, target.Config{}, units...)
	}
	return serve(t, target.Config{}, nil, units...)
}
