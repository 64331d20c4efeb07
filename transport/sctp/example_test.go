package sctp_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// printer prints what comes.
type printer struct{ done chan struct{} }

func (p printer) Message(m *assoc.Message) bool {
	fmt.Printf("stream %d: %s\n", m.Stream, m.Payload)
	return false // not held: the window is free again
}

func (p printer) Event(e assoc.Event) {
	if e.Kind == assoc.EventDown {
		close(p.done)
	}
}

func (printer) BatchEnd() {}

// Two endpoints in one process.
func Example() {
	loopback := func(_, remote netip.AddrPort, outgoing bool) error {
		if !remote.Addr().IsLoopback() {
			return fmt.Errorf("%v is not of this host", remote)
		}
		return nil
	}
	listen := func(cfg sctp.Config) *sctp.Endpoint {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			panic(err)
		}
		cfg.Admit = loopback
		e, err := sctp.Listen(c, cfg)
		if err != nil {
			panic(err)
		}
		return e
	}
	p := printer{make(chan struct{})}
	server := listen(sctp.Config{Accept: func(*sctp.Assoc) assoc.Receiver { return p }})
	defer server.Close()
	client := listen(sctp.Config{})
	defer client.Close()

	ctx := context.Background()
	a, err := client.Dial(ctx, server.Addr(), sctp.DialConfig{
		Receiver: func(*sctp.Assoc) assoc.Receiver { return printer{make(chan struct{})} },
	})
	if err != nil {
		panic(err)
	}
	a.Send(ctx, []assoc.Outgoing{{Stream: 7, PPID: 16, Bufs: [][]byte{[]byte("hello, "), []byte("world")}}})
	if err := a.Shutdown(ctx); err != nil {
		panic(err)
	}
	<-p.done
	// Output: stream 7: hello, world
}
