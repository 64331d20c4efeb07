package verbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// node is a device with one consumer, on a network in memory.
type node struct {
	host *verbstest.Host
	dev  *verbs.Device
	ulp  *verbs.ULP
	pd   *verbs.PD
	cq   *verbs.CQ
}

func newNode(host *verbstest.Host, trust verbs.TrustModel) *node {
	n := &node{host: host, dev: must(verbs.Open(verbs.Config{}))}
	n.ulp = must(n.dev.NewULP("example", verbs.ULPConfig{Trust: trust}))
	n.pd, n.cq = must(n.ulp.AllocPD()), must(n.ulp.CreateCQ(64, nil))
	return n
}

func (n *node) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: n.cq, RecvCQ: n.cq, MaxSend: 8, MaxRecv: 8, IRD: 2, ORD: 2}
}

func (n *node) listen(ctx context.Context) *verbs.Listener {
	return must(n.dev.Listen(ctx, n.host.Addr(0), verbs.ListenConfig{Transport: n.host.Transport()}))
}

func (n *node) dial(ctx context.Context, to netip.AddrPort) *verbs.QP {
	return must(n.pd.Dial(ctx, verbs.DialConfig{Remote: to, Transport: n.host.Transport(), QP: n.config()}))
}

// join is a stream from n, which dials, to peer, which accepts with cfg.
func (n *node) join(ctx context.Context, peer *node, ln *verbs.Listener, cfg verbs.QPConfig) (here, there *verbs.QP) {
	accepted := make(chan *verbs.QP)
	go func() { accepted <- must(must(ln.Accept(ctx)).Accept(ctx, peer.pd, verbs.AcceptConfig{QP: cfg})) }()
	here = n.dial(ctx, ln.Addr())
	return here, <-accepted
}

// Two streams take their receives from one queue. No peer may hold more than two of
// its four, so that none can keep the other from being heard (RFC 5042 section
// 6.4.3.1).
func ExampleSRQ() {
	ctx, fabric := context.Background(), verbstest.New()
	client, server := newNode(fabric.Host("client"), verbs.ST), newNode(fabric.Host("server"), verbs.SLT)
	defer client.dev.Close()
	defer server.dev.Close()

	srq := must(server.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 4, MaxPerQP: 2}))
	buf := must(server.pd.RegisterMR(make([]byte, 4*16), verbs.LocalWrite))
	for i := range uint32(4) {
		check(srq.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{{MR: buf, Off: 16 * i, Len: 16}}}))
	}
	ln := server.listen(ctx)
	cfg := server.config()
	cfg.SRQ, cfg.MaxRecv = srq, 0
	text := must(client.pd.RegisterMR([]byte("one two"), 0))
	for i := range uint32(2) {
		qp, _ := client.join(ctx, server, ln, cfg)
		check(qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: text, Off: 4 * i, Len: 3}}}))
		wc := must(server.cq.Next(ctx))
		at := 16 * wc.ID
		fmt.Printf("%s, %d receives are left\n", buf.Bytes()[at:at+uint64(wc.Len)], srq.Len())
	}
	// Output:
	// one, 3 receives are left
	// two, 2 receives are left
}

// A window opens a part of a region to the peer of one queue pair, and is closed
// again. What the peer does then ends its stream.
func ExampleMW() {
	ctx, fabric := context.Background(), verbstest.New()
	client, server := newNode(fabric.Host("client"), verbs.NSNT), newNode(fabric.Host("server"), verbs.NSNT)
	defer client.dev.Close()
	defer server.dev.Close()
	there, here := client.join(ctx, server, server.listen(ctx), server.config())

	region := must(server.pd.RegisterMR([]byte("private public private"), verbs.LocalWrite|verbs.WindowBind))
	window := must(server.pd.AllocMW())
	check(here.PostSend(&verbs.SendWR{Op: verbs.OpBind, Flags: verbs.Signaled, MW: window, Access: verbs.RemoteRead,
		SGL: []verbs.SGE{{MR: region, Off: 8, Len: 6}}}))
	check(must(server.cq.Next(ctx)).Err)

	mem := must(client.pd.RegisterMR(make([]byte, 6), verbs.LocalWrite))
	read := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: mem, Len: 6}}, RemoteSTag: window.STag()}
	check(there.PostSend(&read))
	check(must(client.cq.Next(ctx)).Err)
	fmt.Printf("the peer reads %q\n", mem.Bytes())

	check(window.Invalidate())
	check(there.PostSend(&read))
	fmt.Println("after that it fails:", errors.Is(must(client.cq.Next(ctx)).Err, verbs.ErrFlushed))
	// Output:
	// the peer reads "public"
	// after that it fails: true
}

// A counter in the server's memory, which any number of clients may raise (RFC 7306
// section 5).
func ExampleSendWR_atomic() {
	ctx, fabric := context.Background(), verbstest.New()
	client, server := newNode(fabric.Host("client"), verbs.NSNT), newNode(fabric.Host("server"), verbs.NSNT)
	defer client.dev.Close()
	defer server.dev.Close()
	qp, _ := client.join(ctx, server, server.listen(ctx), server.config())
	counter := must(server.pd.RegisterMR(make([]byte, 8), verbs.LocalWrite|verbs.RemoteAtomic))
	for range 3 {
		check(qp.PostSend(&verbs.SendWR{Op: verbs.OpFetchAdd, Flags: verbs.Signaled, RemoteSTag: counter.STag(), Add: 5}))
		wc := must(client.cq.Next(ctx))
		check(wc.Err)
		fmt.Println("it was", wc.Imm)
	}
	fmt.Println("it is", binary.NativeEndian.Uint64(counter.Bytes()))
	// Output:
	// it was 0
	// it was 5
	// it was 10
	// it is 15
}

// The request carries data of the ULP's, by which the server decides, and so do its
// answers.
func ExampleConnRequest_Reject() {
	ctx, fabric := context.Background(), verbstest.New()
	client, server := newNode(fabric.Host("client"), verbs.ST), newNode(fabric.Host("server"), verbs.ST)
	defer client.dev.Close()
	defer server.dev.Close()
	ln := server.listen(ctx)
	go func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			if name := string(req.PrivateData()); name != "disk" {
				req.Reject(ctx, []byte("there is no "+name))
				continue
			}
			must(req.Accept(ctx, server.pd, verbs.AcceptConfig{QP: server.config(), PrivateData: []byte("of 4 GiB")}))
		}
	}()
	for _, name := range []string{"disk", "printer"} {
		qp, err := client.pd.Dial(ctx, verbs.DialConfig{Remote: ln.Addr(), Transport: client.host.Transport(), QP: client.config(), PrivateData: []byte(name)})
		var rejected *verbs.RejectedError
		switch {
		case errors.As(err, &rejected):
			fmt.Printf("refused: %s\n", rejected.PrivateData)
		case err == nil:
			fmt.Printf("%s %s\n", name, qp.PrivateData())
		default:
			panic(err)
		}
	}
	// Output:
	// disk of 4 GiB
	// refused: there is no printer
}

// The carrier is one word of the transport's configuration. Over SCTP the streams of
// a ULP to one peer share an association, where their trust model lets them.
func ExamplePD_Dial_sctp() {
	ctx := context.Background()
	dev := must(verbs.Open(verbs.Config{}))
	defer dev.Close()
	ulp := must(dev.NewULP("example", verbs.ULPConfig{Trust: verbs.ST}))
	pd, cq := must(ulp.AllocPD()), must(ulp.CreateCQ(16, nil))
	cfg := verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}

	sctp := &transport.Config{Kind: transport.SCTPUDP, UDPPort: freePort(), Protector: transport.LoopbackOnly()}
	ln := must(dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:7471"), verbs.ListenConfig{Transport: sctp}))
	accepted := make(chan *verbs.QP, 2)
	go func() {
		for range 2 {
			accepted <- must(must(ln.Accept(ctx)).Accept(ctx, pd, verbs.AcceptConfig{QP: cfg}))
		}
	}()
	dial := verbs.DialConfig{Remote: ln.Addr(), Transport: sctp, QP: cfg}
	a, b := must(pd.Dial(ctx, dial)), must(pd.Dial(ctx, dial))
	fmt.Println("two streams on one association:", a.ID() != b.ID() && a.Flow() == b.Flow())
	<-accepted
	<-accepted
	// Output:
	// two streams on one association: true
}

// freePort is a UDP port that nobody has; without one it is 9899.
func freePort() uint16 {
	c := must(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// A ULP with a quota can't take from others what they need: each allocation is charged
// to it, and fails when it would be too much.
func ExampleULPConfig_quota() {
	dev := must(verbs.Open(verbs.Config{}))
	defer dev.Close()
	ulp := must(dev.NewULP("guest", verbs.ULPConfig{Quota: verbs.Quota{Bytes: 1 << 20}}))
	pd := must(ulp.AllocPD())
	must(pd.RegisterMR(make([]byte, 1<<20), 0))
	_, err := pd.RegisterMR(make([]byte, 4096), 0)
	var quota *verbs.QuotaError
	fmt.Println(errors.As(err, &quota), err)
	// Output:
	// true verbs: 4096 more registered bytes for ULP guest: 1048576 of 1048576 are in use; close what is not needed or raise the limit
}
