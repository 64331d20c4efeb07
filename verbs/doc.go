// Package verbs is RDMA for Go programs: devices, protection domains, memory regions
// and windows, queue pairs, shared receive queues and completion queues, in user space,
// over TCP or SCTP. This program has both ends of a stream:
//
//	package main
//
//	import (
//		"context"
//		"encoding/binary"
//		"fmt"
//		"net/netip"
//		"time"
//
//		"github.com/ironwarp/ironwarp/transport"
//		"github.com/ironwarp/ironwarp/verbs"
//	)
//
//	func main() {
//		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
//		defer cancel()
//		dev := must(verbs.Open(verbs.Config{}))
//		defer dev.Close()
//		ulp := must(dev.NewULP("example", verbs.ULPConfig{}))
//		local := &transport.Config{Protector: transport.LoopbackOnly()} // between hosts: an ipsec.Manager
//
//		// The server opens memory to the peer and tells it where, in its answer.
//		ln := must(dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: local}))
//		spd, scq := must(ulp.AllocPD()), must(ulp.CreateCQ(16, nil))
//		shared := must(spd.RegisterMR(make([]byte, 64), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead))
//		inbox := must(spd.RegisterMR(make([]byte, 64), verbs.LocalWrite))
//		go func() {
//			req := must(ln.Accept(ctx))
//			must(req.Accept(ctx, spd, verbs.AcceptConfig{
//				QP:          verbs.QPConfig{SendCQ: scq, RecvCQ: scq, MaxSend: 8, MaxRecv: 8, IRD: 1},
//				PrivateData: binary.BigEndian.AppendUint32(nil, shared.STag()),
//				Prepare:     func(qp *verbs.QP) error { return qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: inbox, Len: 64}}}) },
//			}))
//		}()
//
//		// The client.
//		pd, cq := must(ulp.AllocPD()), must(ulp.CreateCQ(16, nil))
//		mem := must(pd.RegisterMR([]byte("hello, RDMA............"), verbs.LocalWrite))
//		qp := must(pd.Dial(ctx, verbs.DialConfig{Remote: ln.Addr(), Transport: local,
//			QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8, ORD: 1}}))
//		stag := binary.BigEndian.Uint32(qp.PrivateData())
//		for _, wr := range []verbs.SendWR{
//			{Op: verbs.OpWrite, SGL: []verbs.SGE{{MR: mem, Len: 11}}, RemoteSTag: stag},
//			{Op: verbs.OpRead, SGL: []verbs.SGE{{MR: mem, Off: 11, Len: 11}}, RemoteSTag: stag, Flags: verbs.Signaled},
//			{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: mem, Off: 7, Len: 4}}, Flags: verbs.Fence},
//		} {
//			check(qp.PostSend(&wr))
//		}
//		check(must(cq.Next(ctx)).Err) // the Read
//		fmt.Printf("read back %q\n", mem.Bytes()[11:22])
//		wc := must(scq.Next(ctx))
//		fmt.Printf("the server holds %q and received %q\n", shared.Bytes()[:11], inbox.Bytes()[:wc.Len])
//		check(qp.Shutdown(ctx))
//	}
//
//	func check(err error) {
//		if err != nil {
//			panic(err)
//		}
//	}
//
//	func must[T any](v T, err error) T {
//		check(err)
//		return v
//	}
//
// A Device is one userspace RNIC. Its consumers are ULPs. A ULP allocates protection
// domains and completion queues; with a protection domain it registers memory and dials,
// or accepts a request from a Listener of the device. The result is a queue pair. Work
// is posted to it, and completion queues report when it is done, through Next, Poll or
// a handler. Peers reach memory through the STag of a region or window, which they have
// to be given: in private data, as here, or in a message. Device.Event reports
// everything else that happens.
//
// A QP has no stream while Prepare runs, so that is the place to post receives before
// anything can arrive. Either end may send first; Setup.ClientServer has the exceptions.
// In a QPConfig an IRD of 0 means that the peer may make no Reads and Atomics, and an ORD
// of 0 that this end makes none. When one end of a stream ends, so does the other: see
// QP.Done and QP.Err. Errors begin with the name of the package that found the problem, are
// wrapped, and are matched with errors.Is and errors.As; each call says which to expect.
// Package verbstest is an in-memory network for tests.
//
// # Transports
//
// Streams run over MPA on TCP, or over SCTP, the kernel's or in UDP: the
// transport.Config of Dial and Listen selects one, and nothing else depends on it.
// Over SCTP the streams of a ULP to one peer share an association if their trust
// model allows it. The Protector of that Config guards every stream: in this
// module it is IPsec (package ipsec), or loopback.
//
// # Privileges (RFC 5042)
//
// The interface is that of RFC 5042 section 2, and every allocation passes its
// Privileged Resource Manager: each ULP is a principal with a quota.
//
// A Device and its methods are the privileged control interface of RFC 5042 section
// 2.3.1: whoever holds one decides on limits, trust and the end of streams. A ULP is
// what a consumer gets. Through it the consumer allocates on its own account and reaches
// its own objects; whatever could affect others passes the Privileged Resource
// Manager (section 3). An unprivileged ULP cannot waive what others depend
// on: its idle streams are ended when streams run short, whatever its trust model
// says. Section 2.3.3's mapping of STags to any memory is not for ULPs of either
// kind: each registers memory that no other one has registered (section 7.3). A ULP
// brings its own transport.Config, Protector included, so it is for code of this
// process. To serve another process, a privileged one makes these calls on a ULP in
// its name.
package verbs
