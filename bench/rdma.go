package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/capture"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/verbs"
)

// What the client of a stream asks the server for, in its private data.
const (
	rdmaTarget = 't' // memory to write to and read from; a Send is answered when it arrives
	rdmaSource = 's' // memory to read from that the server does not write to
	rdmaEcho   = 'e' // every Send comes back
	rdmaMutual = 'm' // the server writes as well, see mutual.go
	rdmaNotice = 'n' // the server answers a Write with a Write, see notice.go
)

// anyLoopback is where a server listens unless it is given an address.
const anyLoopback = "127.0.0.1:0"

const (
	// targetSize is the server's memory region: as small as the buffer that the
	// TCP rival reads into again and again allows, so that the caches treat both
	// alike.
	targetSize = 1 << 20
	echoDepth  = 4
	largeFPDU  = 64 << 10
)

// variant is how a stream frames.
type variant struct {
	name  string
	noCRC bool
	large int // LargeFPDU of the client
	kind  transport.Kind
	mtu   int // of packets over SCTP in UDP; 0: as found
	emss  int // FPDUs of the client fit TCP segments of this size; 0: of the connection's own
	// markers: this end asks the other for markers.
	markers bool
	// spin: this end looks for so long before it sleeps.
	spin time.Duration
	// polls: this end of a ping-pong polls.
	polls polls
	// captured: what this end sends and receives is captured, for nobody to read.
	captured, payload bool
	// protector: nil is whatever transportFor admits.
	protector transport.Protector
}

// address returns what to dial or listen at, and how, where the program says addr:
// over SCTP in UDP the port in it is UDP's.
func (v variant) address(addr netip.AddrPort, peers ...netip.Addr) (netip.AddrPort, *transport.Config) {
	cfg := &transport.Config{Protector: v.protector}
	if v.protector == nil {
		cfg = transportFor(addr.Addr(), peers...)
	}
	cfg.Kind, cfg.MTU = v.kind, v.mtu
	if v.kind == transport.SCTPUDP {
		cfg.UDPPort = addr.Port()
		addr = netip.AddrPortFrom(addr.Addr(), sctp.DefaultPort)
	}
	return addr, cfg
}

// spinTime is longer than any pause in a row that spins. Those rows give each
// end one processor: a second one would do nothing but to wake up with each
// message and find that it was taken.
const spinTime = 50 * time.Millisecond

// onOneProcessor runs a contender that spins on the first processor, and leaves
// the others to its server: two that spin on one hold each other up for the
// scheduler's granularity.
func onOneProcessor(run func(context.Context) (metrics, error)) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		free, err := pin(func(cpu, n int) bool { return cpu == 0 || n == 1 })
		if err != nil {
			return nil, err
		}
		defer free()
		return run(ctx)
	}
}

// pin keeps all threads of this process on some of its processors, the i-th of n
// being cpu i, until free is called.
func pin(on func(cpu, n int) bool) (free func(), err error) {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, err
	}
	for i, cpu := 0, 0; i < all.Count(); cpu++ {
		if all.IsSet(cpu) {
			if on(i, all.Count()) {
				some.Set(cpu)
			}
			i++
		}
	}
	return func() { setAffinity(&all) }, setAffinity(&some)
}

func setAffinity(set *unix.CPUSet) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, _ := strconv.Atoi(t.Name())
		if err := unix.SchedSetaffinity(id, set); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

var (
	largeCRC   = variant{name: "large FPDUs, CRC on", large: largeFPDU}
	largeNoCRC = variant{name: "large FPDUs, CRC off", noCRC: true, large: largeFPDU}
	spinning   = variant{name: "spinning, CRC on", spin: spinTime}
	smallCRC   = variant{name: "1460-byte FPDUs, CRC on", emss: 1460}
	// headersOf and allOf are largeCRC, captured.
	headersOf = variant{name: "headers captured", large: largeFPDU, captured: true}
	allOf     = variant{name: "all captured", large: largeFPDU, captured: true, payload: true}
)

// transportFor admits peers of this host on loopback, and on another address,
// which only the namespaces of a virtual machine have here, whatever is in peers.
func transportFor(addr netip.Addr, peers ...netip.Addr) *transport.Config {
	if addr.IsLoopback() {
		return &transport.Config{Protector: transport.LoopbackOnly()}
	}
	return &transport.Config{Protector: transport.Plaintext(slog.New(slog.DiscardHandler), peers...)}
}

// neighbours are the addresses of the /24 network of an IPv4 address: the client's
// is among them where a server is not on loopback.
func neighbours(a netip.Addr) (all []netip.Addr) {
	p, err := a.Prefix(24)
	if err != nil {
		return nil
	}
	for n := p.Addr(); p.Contains(n); n = n.Next() {
		all = append(all, n)
	}
	return all
}

// rdmaHome is what streams to one server have in common. Over SCTP they share an
// association.
type rdmaHome struct {
	dev       *verbs.Device
	ulp       *verbs.ULP
	remote    netip.AddrPort
	transport *transport.Config
	v         variant
	captured  func() error // ends the capture; nil: there is none
}

func newRDMAHome(addr string, v variant) (*rdmaHome, error) {
	remote, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	h := &rdmaHome{v: v}
	h.remote, h.transport = v.address(remote, remote.Addr())
	if h.dev, err = verbs.Open(verbs.Config{}); err != nil {
		return nil, err
	}
	if h.ulp, err = h.dev.NewULP("bench", verbs.ULPConfig{Trust: verbs.SLT}); err != nil {
		h.dev.Close()
		return nil, err
	}
	if v.captured {
		if h.captured, err = discardCapture(h.dev, v.payload); err != nil {
			h.dev.Close()
			return nil, err
		}
	}
	return h, nil
}

func (h *rdmaHome) Close() error {
	if h.captured != nil {
		return errors.Join(h.captured(), h.dev.Close())
	}
	return h.dev.Close()
}

// discardCapture captures the streams of a device until it is told to end.
func discardCapture(dev *verbs.Device, payload bool) (end func() error, err error) {
	about := capture.About{Payload: payload, Name: func(string) string { return "" }}
	c, err := capture.New(dev.Tap()).Begin(about, "", os.Getpid())
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(context.Background(), io.Discard, func() error { return nil }) }()
	return func() error {
		c.End()
		return <-ended
	}, nil
}

// rdmaClient is the measuring end of one stream.
type rdmaClient struct {
	*rdmaHome
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR // own memory: source of Writes and Sends, sink of Reads
	sink *verbs.MR // own memory that the server writes to, if it does
	stag uint32    // the server's memory
	span int       // bytes of it that a stream of Writes goes round
	sge  [1]verbs.SGE
	wr   verbs.SendWR
}

// dialRDMA opens a stream with size bytes of memory that has a home of its own.
// handler may be nil.
func dialRDMA(ctx context.Context, addr string, kind byte, v variant, size int, handler verbs.CQHandler) (*rdmaClient, error) {
	h, err := newRDMAHome(addr, v)
	if err != nil {
		return nil, err
	}
	c, err := h.dial(ctx, kind, size, handler)
	if err != nil {
		h.Close()
	}
	return c, err
}

func (h *rdmaHome) dial(ctx context.Context, kind byte, size int, handler verbs.CQHandler) (_ *rdmaClient, err error) {
	c := &rdmaClient{rdmaHome: h, span: targetSize}
	pd, err := h.ulp.AllocPD()
	if err != nil {
		return nil, err
	}
	if c.cq, err = h.ulp.CreateCQ(256, handler); err != nil {
		return nil, err
	}
	if c.mr, err = pd.RegisterMR(make([]byte, size), verbs.LocalWrite); err != nil {
		return nil, err
	}
	req := request{kind: kind}
	if kind == rdmaMutual || kind == rdmaNotice {
		if c.sink, err = pd.RegisterMR(make([]byte, targetSize), verbs.LocalWrite|verbs.RemoteWrite); err != nil {
			return nil, err
		}
		req.stag = c.sink.STag()
	}
	v := h.v
	setup := verbs.Setup{NoCRC: v.noCRC, LargeFPDU: v.large, Markers: v.markers, Spin: v.spin}
	if v.emss > 0 {
		setup.EMSS = func() int { return v.emss }
	}
	c.qp, err = pd.Dial(ctx, verbs.DialConfig{Remote: h.remote, Transport: h.transport, PrivateData: req.bytes(), QP: qpConfig(c.cq), Setup: setup, Prepare: func(qp *verbs.QP) error {
		for i := range echoDepth {
			c.sge[0] = verbs.SGE{MR: c.mr, Off: 0, Len: echoSlot}
			if err := qp.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: c.sge[:]}); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	private := c.qp.PrivateData()
	if len(private) < 4 {
		return nil, fmt.Errorf("the server answered with %d bytes of private data", len(private))
	}
	c.stag = binary.BigEndian.Uint32(private)
	return c, nil
}
