package verbstest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// A test of code that has to notice that its peer is gone: watch stands for the code
// under test, which knows nothing of the fabric. Its peer accepts the stream, and then
// the path is lost.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fabric := verbstest.New()
	alpha, beta := fabric.Host("alpha"), fabric.Host("beta")

	dev, pd, cfg := device("beta")
	defer dev.Close()
	ln := must(dev.Listen(ctx, beta.Addr(7471), verbs.ListenConfig{Transport: beta.Transport()}))
	accepted := make(chan *verbs.QP)
	go func() {
		req := must(ln.Accept(ctx))
		accepted <- must(req.Accept(ctx, pd, verbs.AcceptConfig{QP: cfg}))
	}()

	up, result := make(chan struct{}), make(chan error)
	go func() { result <- watch(ctx, alpha.Transport(), beta, up) }()
	<-up
	fmt.Println("accepted a stream from", (<-accepted).Peer())
	fabric.Cut()
	fmt.Println(<-result)
	// Output:
	// accepted a stream from alpha
	// lost beta
}

// watch is the code under test: it returns when the stream to a peer is over.
func watch(ctx context.Context, via *transport.Config, to *verbstest.Host, up chan<- struct{}) error {
	dev, pd, cfg := device("alpha")
	defer dev.Close()
	qp, err := pd.Dial(ctx, verbs.DialConfig{Remote: to.Addr(7471), Transport: via, QP: cfg})
	if err != nil {
		return err
	}
	close(up)
	<-qp.Done()
	return fmt.Errorf("lost %s", qp.Peer())
}

// device is a device with what a stream needs.
func device(name string) (*verbs.Device, *verbs.PD, verbs.QPConfig) {
	dev := must(verbs.Open(verbs.Config{}))
	ulp := must(dev.NewULP(name, verbs.ULPConfig{}))
	cq := must(ulp.CreateCQ(16, nil))
	return dev, must(ulp.AllocPD()), verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
