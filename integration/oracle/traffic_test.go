package oracle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unprotected stands for the protection of a recorded connection.
type unprotected struct{}

func (unprotected) Flow() transport.Flow             { return transport.Flow{Protocol: transport.ProtoTCP} }
func (unprotected) Protection() transport.Protection { return unprotected{} }
func (unprotected) Peer() transport.Identity         { return "peer" }
func (unprotected) Paused() bool                     { return false }
func (unprotected) Kind() string                     { return "recorded" }
func (unprotected) Release()                         {}

// emss is the maximum segment size in bytes at both ends.
const emss = 1460

// end is one end of a recorded connection: a queue pair of its own RNIC, and what it
// means to send.
type end struct {
	t      testing.TB
	from   int
	dev    *verbs.Device
	ulp    *verbs.ULP
	pd     *verbs.PD
	cq     *verbs.CQ
	cfg    verbs.QPConfig
	conn   *mpa.Conn
	mulpdu int // of its stream, in bytes
	qp     *verbs.QP
	local  *verbs.MR // source of everything that the end sends
	sink   *verbs.MR // of its Reads
	remote *verbs.MR // what the other end may access

	meant []string
	msn   [4]uint32
	asked int // Reads and Atomics so far
}

func newEnd(t testing.TB, from int) *end {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	e := &end{t: t, from: from, dev: dev}
	if e.ulp, err = dev.NewULP("oracle", verbs.ULPConfig{Trust: verbs.SLT}); err == nil {
		if e.pd, err = e.ulp.AllocPD(); err == nil {
			e.cq, err = e.ulp.CreateCQ(256, nil)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	e.cfg = verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 16, MaxRecv: 16, IRD: 4, ORD: 4}
	e.memory()
	return e
}

// memory registers the end's source and the memory that its peer may access.
func (e *end) memory() {
	e.t.Helper()
	e.local, e.sink = e.region(verbs.LocalWrite), e.region(verbs.LocalWrite)
	e.remote = e.region(verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic)
	for i := range e.local.Bytes() {
		e.local.Bytes()[i] = byte(i*7 + e.from)
	}
}

func (e *end) region(a verbs.Access) *verbs.MR {
	e.t.Helper()
	mr, err := e.pd.RegisterMR(make([]byte, 8192), a)
	if err != nil {
		e.t.Fatal(err)
	}
	return mr
}

// join brings two ends up on the two ends of a connection.
func join(t testing.TB, c, s *end, nc [2]net.Conn, ccfg, scfg mpa.Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ccfg.IRD, ccfg.ORD = 4, 4
	served := make(chan error, 1)
	go func() {
		r, err := mpa.Server(ctx, nc[server], &scfg)
		if err == nil {
			s.conn, err = r.Accept(ctx, mpa.AcceptOptions{IRD: 4, ORD: 4})
		}
		served <- err
	}()
	var err error
	c.conn, err = mpa.Client(ctx, nc[client], &ccfg)
	if err := errors.Join(err, <-served); err != nil {
		t.Fatal(err)
	}
	// A ready-to-receive Send takes a receive of the peer (RFC 6581 section 9.2).
	rtrSend := ccfg.PeerToPeer == enhanced.RTRSend
	s.adopt(rtrSend)
	c.adopt(false)
	switch ccfg.PeerToPeer {
	case enhanced.RTRSend:
		s.want(verbs.WCRecv)
		c.mean("Send qn=0 msn=%d len=0 in 1", c.next(rdmap.QNSend))
	case enhanced.RTRWrite:
		c.mean("Write stag=0x00000000 to=0 len=0 in 1")
	case enhanced.RTRRead:
		c.read(s, 0, 0, 0)
	}
}

// recorded makes two new ends do everything on a recorded connection, after a Write of
// 4*lead bytes.
func recorded(t testing.TB, ccfg, scfg mpa.Config, lead int) (*tape, [2]*end) {
	t.Helper()
	tp, nc := connection(t)
	ccfg.EMSS = func() int { return emss }
	scfg.EMSS = ccfg.EMSS
	c, s := newEnd(t, client), newEnd(t, server)
	join(t, c, s, nc, ccfg, scfg)
	for _, e := range [][2]*end{{c, s}, {s, c}} {
		e[0].write(e[1], 4*lead, e[1].remote.STag(), 0)
		everything(e[0], e[1])
	}
	finish(t, c, s)
	return tp, [2]*end{c, s}
}

func (e *end) adopt(recv bool) {
	e.t.Helper()
	prepare := func(qp *verbs.QP) error {
		if !recv {
			return nil
		}
		return qp.PostRecv(verbs.RecvWR{})
	}
	e.mulpdu = e.conn.MULPDU()
	var err error
	adopt := verbs.AdoptMPA(e.cfg, e.conn, unprotected{}, e.from == client)
	adopt.Prepare = prepare
	if e.qp, err = e.pd.Adopt(adopt); err != nil {
		e.t.Fatal(err)
	}
}

// mean notes a message that the end means to send.
func (e *end) mean(format string, args ...any) {
	e.meant = append(e.meant, fmt.Sprintf(format, args...))
}

// next is the number of the end's next message on a queue.
func (e *end) next(qn int) uint32 {
	e.msn[qn]++
	return e.msn[qn]
}

// segments is how many DDP segments a message of n bytes takes.
func (e *end) segments(n, header int) int {
	room := e.mulpdu - header
	return max(1, (n+room-1)/room)
}

func (e *end) post(wr verbs.SendWR) {
	e.t.Helper()
	wr.Flags |= verbs.Signaled
	if err := e.qp.PostSend(&wr); err != nil {
		e.t.Fatalf("post: %v", err)
	}
}

// want waits for a completion without error.
func (e *end) want(op verbs.WCOp) verbs.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var wcs [1]verbs.WC
	for e.cq.Poll(wcs[:]) == 0 {
		if err := e.cq.Wait(ctx); err != nil {
			e.t.Fatalf("no completion: %v; stream: %v", err, e.qp.Err())
		}
	}
	if wcs[0].Op != op || wcs[0].Err != nil {
		e.t.Fatalf("completion %v, %v; want %v without error", wcs[0].Op, wcs[0].Err, op)
	}
	return wcs[0]
}

func (e *end) sge(n int) []verbs.SGE { return []verbs.SGE{{MR: e.local, Len: uint32(n)}} }

// send does a Send of each kind. stag, if not 0, is invalidated at the peer.
func (e *end) send(to *end, n int, solicited bool, stag uint32) {
	e.t.Helper()
	if err := to.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: to.remote, Len: uint32(n)}}}); err != nil {
		e.t.Fatal(err)
	}
	wr := verbs.SendWR{Op: verbs.OpSend, SGL: e.sge(n), Invalidate: stag != 0, InvalidateSTag: stag}
	op, invalidates := rdmap.OpSend, ""
	if stag != 0 {
		op, invalidates = rdmap.OpSendInvalidate, fmt.Sprintf(" inv=%#08x", stag)
	}
	if solicited {
		wr.Flags |= verbs.Solicited
		op += rdmap.OpSendSE - rdmap.OpSend
	}
	e.mean("%v%s qn=0 msn=%d len=%d in %d", op, invalidates, e.next(rdmap.QNSend), n, e.segments(n, 18))
	e.post(wr)
	e.want(verbs.WCSend)
	to.want(verbs.WCRecv)
}

func (e *end) write(to *end, n int, stag uint32, off uint64) {
	e.t.Helper()
	e.mean("Write stag=%#08x to=%d len=%d in %d", stag, off, n, e.segments(n, 14))
	e.post(verbs.SendWR{Op: verbs.OpWrite, SGL: e.sge(n), RemoteSTag: stag, RemoteTO: off})
	e.want(verbs.WCWrite)
}

// read notes a Read and its response. The stream chooses the sink's STag: #1 is that of
// its first request, and so on.
func (e *end) read(to *end, n int, stag uint32, off uint64) {
	e.asked++
	e.mean("Read Request qn=1 msn=%d sink=#%d sinkto=0 size=%d src=%#08x srcto=%d in 1", e.next(rdmap.QNReadRequest), e.asked, n, stag, off)
	to.mean("Read Response stag=#%d to=0 len=%d in %d", e.asked, n, to.segments(n, 14))
}

func (e *end) doRead(to *end, n int, stag uint32, off uint64) {
	e.t.Helper()
	e.read(to, n, stag, off)
	e.post(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{{MR: e.sink, Len: uint32(n)}}, RemoteSTag: stag, RemoteTO: off})
	e.want(verbs.WCRead)
}

func (e *end) atomic(to *end, wr verbs.SendWR) {
	e.t.Helper()
	e.asked++
	wr.RemoteSTag, wr.RemoteTO = to.remote.STag(), 64
	kind, fields := "FetchAdd", fmt.Sprintf("add=%#x mask=%#x", wr.Add, wr.AddMask)
	if wr.Op == verbs.OpCmpSwap {
		kind = "CmpSwap"
		fields = fmt.Sprintf("swap=%#x mask=%#x compare=%#x mask=%#x", wr.Add, wr.AddMask, wr.Compare, wr.CompareMask)
	}
	e.mean("Atomic Request qn=1 msn=%d id=#%d %s stag=%#08x to=64 %s in 1", e.next(rdmap.QNReadRequest), e.asked, kind, wr.RemoteSTag, fields)
	e.post(wr)
	wc := e.want(verbs.WCAtomic)
	to.mean("Atomic Response qn=3 msn=%d id=#%d original=%#x in 1", to.next(rdmap.QNAtomicResponse), e.asked, wc.Imm)
}

func (e *end) immediate(to *end, solicited bool) {
	e.t.Helper()
	if err := to.qp.PostRecv(verbs.RecvWR{}); err != nil {
		e.t.Fatal(err)
	}
	wr, op := verbs.SendWR{Op: verbs.OpImmediate, Imm: 0x0123456789abcdef}, rdmap.OpImmediate
	if solicited {
		wr.Flags, op = verbs.Solicited, rdmap.OpImmediateSE
	}
	e.mean("%v qn=0 msn=%d len=8 in 1", op, e.next(rdmap.QNSend))
	e.post(wr)
	e.want(verbs.WCImmediate)
	to.want(verbs.WCRecvImm)
}

// everything makes one end do each operation towards the other.
func everything(e, to *end) {
	e.t.Helper()
	lengths := []int{0, 1, 2, 3, 5, 495, 1007, e.mulpdu - 18, 5000}
	for i, n := range lengths {
		e.send(to, n, i%2 == 1, 0)
	}
	e.send(to, 4, false, to.region(verbs.LocalWrite|verbs.RemoteWrite).STag())
	e.send(to, 3007, true, to.region(verbs.LocalWrite|verbs.RemoteRead).STag())
	e.send(to, 0, false, to.region(verbs.LocalWrite|verbs.RemoteRead).STag())
	e.write(to, 0, 0, 0)
	for _, n := range lengths {
		e.write(to, n, to.remote.STag(), 1001)
		e.doRead(to, n, to.remote.STag(), 3)
	}
	e.doRead(to, 0, 0, 0)
	e.atomic(to, verbs.SendWR{Op: verbs.OpFetchAdd, Add: 3, AddMask: 1 << 63})
	e.atomic(to, verbs.SendWR{Op: verbs.OpFetchAdd, Add: 0xfedcba9876543210})
	e.atomic(to, verbs.SendWR{Op: verbs.OpCmpSwap, Add: 1, AddMask: 2, Compare: 3, CompareMask: 4})
	e.atomic(to, verbs.SendWR{Op: verbs.OpCmpSwap, Add: 0x8877665544332211, AddMask: ^uint64(0), CompareMask: 0xff00})
	e.immediate(to, false)
	e.immediate(to, true)
}

// end closes both ends and waits.
func finish(t testing.TB, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		e.qp.Close()
	}
	for _, e := range ends {
		select {
		case <-e.qp.Done():
		case <-time.After(2 * time.Minute):
			t.Fatal("the stream does not end")
		}
	}
}
