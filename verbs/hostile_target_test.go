package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// rawPeer is a peer that can send anything.
type rawPeer interface {
	Send(segs ...[]byte) error
	Recv() ([][]byte, error)
	CloseWrite() error
	Close() error
}

// rawLLP is a rawPeer on an LLP.
type rawLLP struct {
	ddp.LLP
	tcp *net.TCPConn // below MPA
	in  chan [][]byte
	buf [][]byte
}

func (r *rawLLP) Segment(seg []byte) error {
	r.buf = append(r.buf, bytes.Clone(seg))
	return nil
}

func (r *rawLLP) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (r *rawLLP) DirectBuffer() ([]byte, error)         { return nil, io.ErrShortBuffer }
func (r *rawLLP) DirectDone(int) error                  { return io.ErrShortBuffer }

func (r *rawLLP) BatchEnd() {
	if len(r.buf) > 0 {
		r.in <- r.buf
		r.buf = nil
	}
}

func (r *rawLLP) Recv() ([][]byte, error) {
	segs, ok := <-r.in
	if !ok {
		return nil, io.EOF
	}
	return segs, nil
}

func (r *rawLLP) Send(segs ...[]byte) error {
	for _, seg := range segs {
		if err := r.Append(seg, nil); err != nil {
			return err
		}
	}
	return r.Flush()
}

// tcpLLP joins a rawPeer to an LLP over TCP.
func tcpLLP(t *testing.T, cfg mpa.Config) (*rawLLP, ddp.LLP) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, s := iwarptest.TCPPair(t)
	var l *mpa.Conn
	served := make(chan error, 1)
	go func() {
		r, err := mpa.Server(ctx, s, &cfg)
		if err == nil {
			l, err = r.Accept(ctx, mpa.AcceptOptions{})
		}
		served <- err
	}()
	m, err := mpa.Client(ctx, c, &cfg)
	if err := errors.Join(err, <-served); err != nil {
		t.Fatal(err)
	}
	raw := newRaw(t, m)
	raw.tcp = c.(*net.TCPConn)
	// The responder may send once it has received (RFC 5044 section 7.1.2).
	if err := raw.Send(tagged(true, rdmap.OpWrite, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	return raw, l
}

// newRaw makes a rawPeer of one end of an LLP.
func newRaw(t *testing.T, l ddp.LLP) *rawLLP {
	raw := &rawLLP{LLP: l, in: make(chan [][]byte, 1024)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer close(raw.in)
		l.Receive(raw)
	}()
	t.Cleanup(func() { l.Close(); <-over })
	return raw
}

// sctpLLP joins a rawPeer to an LLP by a session on an SCTP association in UDP.
func sctpLLP(t *testing.T) (rawPeer, ddp.LLP) {
	t.Helper()
	x := rawAssociation(t, iwarptest.SCTPInUDP(t))
	c, s := x.session(t)
	return newRaw(t, c), s
}

// attackLLPs are the lower layers over which each attack is made.
var attackLLPs = []struct {
	name string
	open func(t *testing.T) (rawPeer, ddp.LLP)
}{
	{"memory", memoryLLP(iwarptest.Options{})},
	{"memory direct", memoryLLP(iwarptest.Options{Direct: true})},
	{"memory with reordering", memoryLLP(iwarptest.Options{Window: 8})},
	{"TCP with CRC", func(t *testing.T) (rawPeer, ddp.LLP) { return tcpLLP(t, mpa.Config{}) }},
	{"SCTP in UDP", sctpLLP},
	{"TCP without CRC", func(t *testing.T) (rawPeer, ddp.LLP) { return tcpLLP(t, mpa.Config{CRC: mpa.CRCAvoid}) }},
}

func memoryLLP(o iwarptest.Options) func(t *testing.T) (rawPeer, ddp.LLP) {
	return func(*testing.T) (rawPeer, ddp.LLP) { return iwarptest.Pair(o) }
}

const (
	guardLen  = 64
	regionLen = 64
)

// guarded is a region between guard bytes. Nothing may change it but what a test
// names.
type guarded struct {
	buf []byte
	mr  *MR
}

func newGuarded(t *testing.T, pd *PD, a Access) *guarded {
	t.Helper()
	g := &guarded{buf: bytes.Repeat([]byte{0xa5}, 2*guardLen+regionLen)}
	var err error
	if g.mr, err = pd.RegisterMR(g.buf[guardLen:guardLen+regionLen], a); err != nil {
		t.Fatal(err)
	}
	return g
}

// intact reports what of the guards, and of the region itself unless it may be
// written, has changed.
func (g *guarded) intact(written bool) error {
	for i, b := range g.buf {
		if guard := i < guardLen || i >= guardLen+regionLen; b != 0xa5 && (guard || !written) {
			return fmt.Errorf("byte %d of the region is %#02x", i-guardLen, b)
		}
	}
	return nil
}

// target is a device with a stream that is attacked and a bystander's stream.
type target struct {
	*end
	t         *testing.T
	foreign   *PD
	bystander *QP
	witness   *end // the bystander's peer
	shown     *MR  // which the bystander writes
	rounds    uint64
	idle      Limits // in use between attacks

	raw  rawPeer
	mem  map[string]*guarded
	gone uint32 // an STag that was valid
	reqs []rdmap.ReadRequest
	ids  []uint32 // of Atomics
}

func newTarget(t *testing.T) *target {
	v := &target{end: newEnd(t, Config{}), t: t, witness: newEnd(t, Config{})}
	a, b := iwarptest.Pair(iwarptest.Options{})
	v.witness.startOn(a)
	v.startOn(b)
	v.bystander = v.qp
	v.shown = v.witness.mr(8, LocalWrite|RemoteWrite)
	var err error
	if v.foreign, err = v.ulp.AllocPD(); err != nil {
		t.Fatal(err)
	}
	v.idle = v.dev.Usage()
	return v
}

// arm makes the regions and the stream for one attack, and posts receives.
func (v *target) arm(t *testing.T, open func(t *testing.T) (rawPeer, ddp.LLP)) {
	t.Helper()
	v.t, v.end.t, v.reqs, v.ids = t, t, nil, nil
	v.mem = map[string]*guarded{
		"write":   newGuarded(t, v.pd, LocalWrite|RemoteWrite),
		"read":    newGuarded(t, v.pd, RemoteRead),
		"atomic":  newGuarded(t, v.pd, LocalWrite|RemoteAtomic),
		"none":    newGuarded(t, v.pd, LocalWrite),
		"foreign": newGuarded(t, v.foreign, LocalWrite|RemoteRead|RemoteWrite|RemoteAtomic),
		"gone":    newGuarded(t, v.pd, LocalWrite|RemoteRead|RemoteWrite|RemoteAtomic),
		"recv":    newGuarded(t, v.pd, LocalWrite),
		"sink":    newGuarded(t, v.pd, LocalWrite),
	}
	v.gone = v.stag("gone")
	if err := v.mem["gone"].mr.Invalidate(); err != nil {
		t.Fatal(err)
	}
	raw, l := open(t)
	v.raw = raw
	// Waiting for a Terminate that does not come fails.
	watchdog := time.AfterFunc(time.Minute, func() { raw.Close() })
	t.Cleanup(func() { watchdog.Stop() })
	v.startOn(l)
	v.recv(RecvWR{ID: 1, SGL: whole(v.mem["recv"].mr, regionLen)})
	v.recv(RecvWR{ID: 2})
}

func (v *target) stag(region string) uint32 { return v.mem[region].mr.STag() }

// asks posts a Read of the whole sink, or an Atomic, and takes it off the wire.
func (v *target) asks(op Opcode) {
	v.t.Helper()
	sgl := whole(v.mem["sink"].mr, regionLen)
	if op != OpRead {
		sgl = nil
	}
	v.post(SendWR{ID: 3, Op: op, Flags: Signaled, SGL: sgl, RemoteSTag: 7})
	for heard := 0; heard == 0; {
		segs, err := v.raw.Recv()
		if err != nil {
			v.t.Fatal(err)
		}
		for _, seg := range segs {
			heard++
			p := ddp.Untagged(seg).Payload()
			if r, ok := rdmap.ParseReadRequest(p); ok {
				v.reqs = append(v.reqs, r)
			} else if a, ok := rdmap.ParseAtomicRequest(p); ok {
				v.ids = append(v.ids, a.ID)
			}
		}
	}
}

// wantWound checks that the attacked stream has ended for the reason want, that
// all its work is flushed for that reason, that there are the events kinds, and
// that nothing else has come to harm. Only the region written may have changed.
func (v *target) wantWound(want func(error) bool, written string, kinds ...EventKind) {
	v.t.Helper()
	err := v.wantEnd()
	if !want(err) {
		v.t.Errorf("ended with %v", err)
	}
	var wcs [64]WC
	for n := v.cq.Poll(wcs[:]); n > 0; n = v.cq.Poll(wcs[:]) {
		for _, wc := range wcs[:n] {
			if wc.QP == v.qp && wc.Err != nil && !(errors.Is(wc.Err, ErrFlushed) && want(wc.Err)) {
				v.t.Errorf("work request %d: %v", wc.ID, wc.Err)
			}
		}
	}
	wantEvents(v.t, v.dev, v.qp.ID(), append(append([]EventKind{EventStreamUp}, kinds...), EventStreamDown)...)
	for name, g := range v.mem {
		if err := g.intact(name == written); err != nil {
			v.t.Errorf("region %s: %v", name, err)
		}
		if err := g.mr.Deregister(); err != nil {
			v.t.Errorf("region %s: %v", name, err)
		}
	}
	v.raw.Close()
	v.wantBystander()
	if u := v.dev.Usage(); u != v.idle {
		v.t.Errorf("in use after the attack: %+v, want %+v", u, v.idle)
	}
}

// wantBystander has the bystander's stream do a Write and checks it at its peer.
func (v *target) wantBystander() {
	v.t.Helper()
	v.rounds++
	src := v.mr(8, 0)
	binary.LittleEndian.PutUint64(src.Bytes(), v.rounds)
	v.qp = v.bystander
	v.post(SendWR{Op: OpWrite, Flags: Signaled, SGL: whole(src, 8), RemoteSTag: v.shown.STag()})
	v.post(SendWR{Op: OpRead, Flags: Signaled | Fence, SGL: nil})
	v.wantOK(WCWrite)
	v.wantOK(WCRead) // its answer follows the Write's placement
	if got := binary.LittleEndian.Uint64(v.shown.Bytes()); got != v.rounds {
		v.t.Errorf("the bystander's write %d has not arrived: %d", v.rounds, got)
	}
	if err := src.Deregister(); err != nil {
		v.t.Error(err)
	}
}

// isFault matches a *ddp.Error.
func isFault(layer ddp.Layer, typ, code uint8) func(error) bool {
	return func(err error) bool { return errors.Is(err, &ddp.Error{Layer: layer, Type: typ, Code: code}) }
}
