package verbs_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Both ends of a stream, in one process. The client writes to the server's memory,
// reads it back, and sends a message.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dev := must(verbs.Open(verbs.Config{}))
	defer dev.Close()
	ulp := must(dev.NewULP("example", verbs.ULPConfig{}))
	local := &transport.Config{Protector: transport.LoopbackOnly()} // between hosts: an ipsec.Manager

	// The server opens memory to the peer and tells it where, in its answer.
	ln := must(dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: local}))
	spd, scq := must(ulp.AllocPD()), must(ulp.CreateCQ(16, nil))
	shared := must(spd.RegisterMR(make([]byte, 64), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead))
	inbox := must(spd.RegisterMR(make([]byte, 64), verbs.LocalWrite))
	go func() {
		req := must(ln.Accept(ctx))
		must(req.Accept(ctx, spd, verbs.AcceptConfig{
			QP:          verbs.QPConfig{SendCQ: scq, RecvCQ: scq, MaxSend: 8, MaxRecv: 8, IRD: 1},
			PrivateData: binary.BigEndian.AppendUint32(nil, shared.STag()),
			Prepare:     func(qp *verbs.QP) error { return qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: inbox, Len: 64}}}) },
		}))
	}()

	// The client.
	pd, cq := must(ulp.AllocPD()), must(ulp.CreateCQ(16, nil))
	mem := must(pd.RegisterMR([]byte("hello, RDMA............"), verbs.LocalWrite))
	qp := must(pd.Dial(ctx, verbs.DialConfig{Remote: ln.Addr(), Transport: local,
		QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8, ORD: 1}}))
	stag := binary.BigEndian.Uint32(qp.PrivateData())
	for _, wr := range []verbs.SendWR{
		{Op: verbs.OpWrite, SGL: []verbs.SGE{{MR: mem, Len: 11}}, RemoteSTag: stag},
		{Op: verbs.OpRead, SGL: []verbs.SGE{{MR: mem, Off: 11, Len: 11}}, RemoteSTag: stag, Flags: verbs.Signaled},
		{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: mem, Off: 7, Len: 4}}, Flags: verbs.Fence},
	} {
		check(qp.PostSend(&wr))
	}
	check(must(cq.Next(ctx)).Err) // the Read
	fmt.Printf("read back %q\n", mem.Bytes()[11:22])
	wc := must(scq.Next(ctx))
	fmt.Printf("the server holds %q and received %q\n", shared.Bytes()[:11], inbox.Bytes()[:wc.Len])
	check(qp.Shutdown(ctx))
	// Output:
	// read back "hello, RDMA"
	// the server holds "hello, RDMA" and received "RDMA"
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
