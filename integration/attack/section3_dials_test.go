package attack

import (
	"context"
	"net"
	"runtime"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// dial begins a stream to an address that does not answer, which lasts until the test's end.
func (p *party) dial() error {
	p.v.Helper()
	silent := must(net.Listen("tcp", "127.0.0.1:0"))(p.v.T)
	dial := verbs.DialConfig{
		Remote:    silent.Addr().(*net.TCPAddr).AddrPort(),
		Transport: &transport.Config{Protector: transport.LoopbackOnly()},
		Setup:     verbs.Setup{Timeout: time.Hour},
	}
	cfg := verbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSend: 1, MaxRecv: 1}
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	over := make(chan struct{})
	before := p.ulp.Usage().Dials
	go func() {
		defer close(over)
		dial.QP = cfg
		_, err = p.pd.Dial(ctx, dial)
	}()
	p.v.Cleanup(func() {
		cancel()
		<-over
		silent.Close()
	})
	for p.ulp.Usage().Dials == before {
		select {
		case <-over:
			return err
		default:
			runtime.Gosched()
		}
	}
	return nil
}
