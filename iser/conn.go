package iser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/fifo"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/verbs"
)

// Config configures the connections of a target.
type Config struct {
	ULP *verbs.ULP // whom all is charged to
	// Commands is how many commands an initiator may have ahead, and Unexpected how many of the PDUs
	// that RFC 7145 section 8.1.1.3 calls unexpected: what receives are posted for.
	Commands, Unexpected int
	// ORD is how many Reads may be under way (32). The initiator may take fewer.
	ORD int
	// ReadAge is how long an initiator may take to answer a Read (a minute). After that the
	// connection ends. Time without a security association does not count.
	ReadAge time.Duration
}

// Conn is the target's end of a connection: an iscsi.Datamover and, if it has started up in RDMA mode,
// an iscsi.Stream before.
type Conn struct {
	cfg     Config
	req     *verbs.ConnRequest // of Upgrade: MPA has not started yet
	local   net.Addr
	remote  net.Addr
	ctx     context.Context // ends with ConnectionTerminate
	cancel  context.CancelFunc
	pd      *verbs.PD
	cq      *verbs.CQ
	qp      *verbs.QP // set before anything arrives
	login   *verbs.MR // the receive of a login in RDMA mode
	ring    *verbs.MR // the receives of full feature phase
	scratch *verbs.MR // where whoever has mu builds what is to be sent
	size    int       // of a receive
	slots   int
	// Set before data move.
	invalidates bool // the initiator takes Sends with Invalidate
	immediate   bool // it started up in RDMA mode
	ord         int
	declared    int // the longest data segment that the initiator may send
	firstBurst  uint32
	discovery   bool
	solicited   bool // the base of what is to be read is that of byte 0 of what is asked for
	hello       bool // the first message has to be a Hello

	// Run's goroutine has these; before it, whoever reads PDUs.
	upper   iscsi.Upper // set with mu locked, nil before Run
	in      iscsi.Incoming
	data    []byte // of the PDU in in
	begun   bool   // a message of full feature phase has come
	segment int    // the longest data segment that the initiator takes
	batch   []arrival
	fetched []*iscsi.Get

	ended []posted // of Completions

	kick chan struct{} // one slot: there is something for Run
	age  *time.Timer   // of the oldest Read

	mu      sync.Mutex // guards the fields below it; innermost but for the stream's own
	settled sync.Cond  // a Read has ended
	err     error      // why it is to end
	up      bool
	dead    bool // nothing can be sent any more
	arrived []arrival
	done    []*iscsi.Get // have come, and Run does not know yet
	queued  iscsi.OutQueue
	waiting fifo.Queue[*iscsi.Get] // to be read
	gets    []*iscsi.Get           // all that were asked for, and are not done
	posted  [maxSend]posted        // between retired and next, modulo their number
	next    uint64
	retired uint64
	reads   int // of those
}

// arrival is a message in a receive.
type arrival struct {
	slot uint64
	n    uint32
}

// posted is an operation that has not ended.
type posted struct {
	out *iscsi.Out // to be given back at its end
	get *iscsi.Get
	at  time.Time // of a Read

	failed bool
}

var (
	_ iscsi.Stream    = (*Conn)(nil)
	_ iscsi.Datamover = (*Conn)(nil)
	_ iscsi.Registrar = (*Conn)(nil)
)

// loginSlot is the number of the receive of a login.
const loginSlot = 1 << 32

// Reasons why a connection ends.
var (
	errTerminated = errors.New("iser: the target ends the connection")
	errReadAge    = errors.New("iser: the initiator does not answer a Read")
	errNoTag      = fmt.Errorf("iser: a command that moves data names no memory for them: %w", iscsi.ErrFormat)
	errNoReads    = errors.New("iser: data are to be fetched, and the initiator takes no Reads")
	errHello      = fmt.Errorf("iser: a Hello that is missing, or out of turn: %w", iscsi.ErrFormat)
)

func newConn(cfg Config, r *verbs.ConnRequest) (*Conn, error) {
	if cfg.ORD <= 0 {
		cfg.ORD = defaultORD
	}
	if cfg.ReadAge <= 0 {
		cfg.ReadAge = defaultReadAge
	}
	f := r.Flow()
	c := &Conn{
		cfg: cfg, kick: make(chan struct{}, 1), declared: Segment,
		local: net.TCPAddrFromAddrPort(f.Local), remote: net.TCPAddrFromAddrPort(f.Remote),
	}
	c.settled.L = &c.mu
	c.in.ReadData = c.readData
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var err error
	if c.pd, err = cfg.ULP.AllocPDAs(cfg.ULP.Trust().Alone()); err != nil {
		c.free()
		return nil, err
	}
	if c.cq, err = cfg.ULP.CreateCQ(maxSend+c.maxRecv(), c); err != nil {
		c.free()
		return nil, err
	}
	if c.scratch, err = c.pd.RegisterMR(make([]byte, HeaderLen+iscsi.BHSLen+Segment+4), verbs.LocalWrite); err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

// maxRecv is the most receives that are ever posted.
func (c *Conn) maxRecv() int {
	return (1+maxUnsolicited)*c.cfg.Commands + c.cfg.Unexpected + spare + 1
}

func (c *Conn) qpConfig() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSend: maxSend, MaxRecv: c.maxRecv(), ORD: c.cfg.ORD}
}

// Accept takes a connection that is in RDMA mode, and begins with its login. Until NoticeKeyValues it has
// memory for one PDU. It fails as ConnRequest.Accept does, and if resources are short; the request is then
// over.
func Accept(ctx context.Context, r *verbs.ConnRequest, cfg Config) (*Conn, error) {
	c, err := newConn(cfg, r)
	if err == nil {
		if c.login, err = c.pd.RegisterMR(make([]byte, HeaderLen+iscsi.BHSLen+Segment+4), verbs.LocalWrite); err != nil {
			c.free()
		}
	}
	if err != nil {
		r.Reject(ctx, nil)
		return nil, err
	}
	c.immediate = true
	if err := c.accept(ctx, r, c.postLogin); err != nil {
		r.Reject(ctx, nil) // does nothing if the stream is over
		c.free()
		return nil, err
	}
	return c, nil
}

// Upgrade takes a connection that has logged in in streaming mode. NoticeKeyValues has resources
// allocated, and Run starts MPA, which the initiator asks for. It fails if resources are short; the request
// is then as it was.
func Upgrade(r *verbs.ConnRequest, cfg Config) (*Conn, error) {
	c, err := newConn(cfg, r)
	if err != nil {
		return nil, err
	}
	c.req = r
	return c, nil
}

// accept answers the request for RDMA.
func (c *Conn) accept(ctx context.Context, r *verbs.ConnRequest, prepare func() error) error {
	c.invalidates = !ParsePrivateData(r.PrivateData()).NoInvalidate
	qp, err := r.Accept(ctx, c.pd, verbs.AcceptConfig{
		QP:          c.qpConfig(),
		PrivateData: PrivateData{NoZeroBase: true, NoInvalidate: !c.invalidates}.Append(nil),
		Prepare: func(qp *verbs.QP) error {
			c.qp = qp
			return prepare()
		},
	})
	if err != nil {
		c.qp = nil
		return err
	}
	c.ord = min(qp.ORD(), c.cfg.ORD)
	c.mu.Lock()
	c.up = true
	c.mu.Unlock()
	return nil
}

func (c *Conn) postLogin() error {
	return c.qp.PostRecv(verbs.RecvWR{ID: loginSlot, SGL: []verbs.SGE{{MR: c.login, Len: uint32(c.login.Len())}}})
}

func (c *Conn) postSlot(slot uint64) error {
	return c.qp.PostRecv(verbs.RecvWR{ID: slot, SGL: []verbs.SGE{{MR: c.ring, Off: uint32(slot) * uint32(c.size), Len: uint32(c.size)}}})
}

func (c *Conn) postRing() error {
	for i := range c.slots {
		if err := c.postSlot(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// NoticeKeyValues implements iscsi.Datamover: it has the receives of full feature phase posted, as many
// as the initiator may send PDUs (RFC 7145 section 8.1.1).
func (c *Conn) NoticeKeyValues(v *iscsi.Values, declared uint32) (err error) {
	c.declared, c.firstBurst = int(declared), v[iscsi.KeyFirstBurstLength]
	c.solicited, c.hello = v.Bool(iscsi.KeyTaggedBufferForSolicitedDataOnly), v.Bool(iscsi.KeyISERHelloRequired)
	each := 1
	if !v.Bool(iscsi.KeyInitialR2T) {
		each += (int(c.firstBurst) + c.declared - 1) / c.declared
	}
	if c.slots = each*c.cfg.Commands + c.cfg.Unexpected + spare; c.slots >= c.maxRecv() {
		return fmt.Errorf("iser: an initiator that may send %d PDUs for each command", each)
	}
	c.size = (HeaderLen + iscsi.BHSLen + maxAHS + c.declared + iscsi.Pad(c.declared) + 63) &^ 63
	if c.ring, err = c.pd.RegisterMR(make([]byte, c.slots*c.size), verbs.LocalWrite); err != nil {
		return err
	}
	c.discovery = !v.Bool(iscsi.KeyRDMAExtensions) // of a normal session it is agreed on
	c.segment = min(int(v[iscsi.KeyInitiatorRecvDataSegmentLength]), Segment)
	switch {
	case c.discovery: // the initiator uses the buffer of its login
		c.NoticeSegment(v[iscsi.KeyMaxRecvDataSegmentLength])
	case c.immediate:
		c.segment = min(c.segment, linuxSegment)
	default:
		return nil
	}
	return c.postRing()
}

// NoticeSegment implements iscsi.Datamover. In a normal session the key that it comes from does not
// count (RFC 7145 section 6.2).
func (c *Conn) NoticeSegment(n uint32) {
	if c.discovery {
		c.segment = min(int(n), Segment)
	}
}

// Segment implements iscsi.Datamover.
func (c *Conn) Segment() int { return c.segment }

// Register implements iscsi.Registrar.
func (c *Conn) Register(b []byte) (any, error) { return c.pd.RegisterMR(b, verbs.LocalWrite) }

// Deregister implements iscsi.Registrar.
func (c *Conn) Deregister(memory any) { memory.(*verbs.MR).Deregister() }

// Invalidates reports whether the initiator takes Sends with Invalidate, as it has said in MPA's request.
func (c *Conn) Invalidates() bool { return c.invalidates }

// Addr returns the addresses of this end and of the initiator's.
func (c *Conn) Addr() (local, remote net.Addr) { return c.local, c.remote }

// ReadPDU implements iscsi.Stream.
func (c *Conn) ReadPDU() (h iscsi.BHS, data []byte, err error) {
	for {
		c.mu.Lock()
		err = c.err
		var a []arrival
		if len(c.arrived) > 0 {
			a, c.arrived = c.arrived[:1], c.arrived[1:]
		}
		c.mu.Unlock()
		if err != nil {
			return h, nil, err
		}
		if a != nil {
			m, err := ParseMessage(c.login.Bytes()[:a[0].n])
			if err == nil && m.Op != OpControl {
				err = errHello
			}
			return m.BHS, m.Data, err
		}
		select {
		case <-c.kick:
		case <-c.qp.Done():
			return h, nil, c.qp.Err()
		}
	}
}

// WritePDU implements iscsi.Stream. Before the answer that ends the login, the receives of full feature
// phase are posted already; before others it is that of the next request.
func (c *Conn) WritePDU(h *iscsi.BHS, data []byte) error {
	if c.ring == nil {
		if err := c.postLogin(); err != nil {
			return err
		}
	}
	o := &iscsi.Out{BHS: *h, Data: data}
	c.mu.Lock()
	err := c.postOutLocked(o, verbs.Signaled)
	c.mu.Unlock()
	if err == nil {
		c.qp.Flush()
	}
	return err
}

// fail begins to end the connection.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.cancel()
	c.tell()
}

func (c *Conn) tell() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Wake implements iscsi.Datamover.
func (c *Conn) Wake() { c.tell() }

// ConnectionTerminate implements iscsi.Datamover.
func (c *Conn) ConnectionTerminate() {
	c.fail(errTerminated)
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	if up {
		time.AfterFunc(farewell, func() { c.qp.Abort(errTerminated) }) // whatever Run waits for
	}
}

// Close ends the connection if Run has not, and frees what it has. All memory has been deregistered.
func (c *Conn) Close() error {
	c.fail(errTerminated)
	if c.qp != nil {
		c.shutDown()
	} else {
		c.req.Reject(context.Background(), nil) // does nothing if it is over
	}
	c.free()
	return nil
}

// shutDown ends the stream, after what is posted.
func (c *Conn) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	c.qp.Shutdown(ctx)
}

// free frees what the connection has, once its stream is over.
func (c *Conn) free() {
	c.cancel()
	for _, mr := range []*verbs.MR{c.login, c.ring, c.scratch} {
		if mr != nil {
			mr.Deregister()
		}
	}
	if c.cq != nil {
		c.cq.Destroy()
	}
	if c.pd != nil {
		c.pd.Dealloc()
	}
}
