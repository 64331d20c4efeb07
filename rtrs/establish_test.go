package rtrs

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

// A server that ends a session's first connection while the client makes the second
// one. The race detector sees what goes on there.
func TestConnectionThatEndsWhileTheNextOneIsMade(t *testing.T) {
	h, server := newHost(t), newHost(t)
	ln, err := server.dev.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: loopback()})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		accept := func(cr *verbs.ConnRequest) *verbs.QP {
			pd, err := server.ulp.AllocPD()
			if err != nil {
				t.Error(err)
				return nil
			}
			cq, err := server.ulp.CreateCQ(16, nil)
			if err != nil {
				t.Error(err)
				return nil
			}
			rsp := ConRsp{Version: Version, QueueDepth: rawDepth, MaxIO: 64 << 10, MaxHeader: 4096}
			qp, err := cr.Accept(ctx, pd, verbs.AcceptConfig{QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}, PrivateData: rsp.Append(nil)})
			if err != nil && ctx.Err() == nil { // the client has given up, and with it the test
				t.Error(err)
			}
			return qp
		}
		first, err := ln.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		qp := accept(first)
		second, err := ln.Accept(ctx)
		if qp == nil || err != nil {
			t.Error(err)
			return
		}
		qp.Abort(nil)
		<-qp.Done()
		if qp = accept(second); qp != nil {
			defer func() { qp.Abort(nil); <-qp.Done() }()
		}
		<-ctx.Done()
	})
	cfg := clientConfig(h, ln.Addr(), "two")
	cfg.Conns = 2
	cl, err := Connect(ctx, cfg)
	if err == nil {
		t.Error("connected without a first connection")
		cl.Close()
	}
	cancel()
	wg.Wait()
	h.unused(t)
}
