package verbs

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// association is both ends of an SCTP association in UDP, without anything above
// the sessions.
type rawAssoc struct {
	client, server *transport.Assoc
}

func rawAssociation(t *testing.T, tc *transport.Config) *rawAssoc {
	t.Helper()
	ln, err := transport.ListenSCTP(testContext(t), sctpLocal, tc, func(a assoc.Association) assoc.Receiver {
		return sctpadapt.New(a, sctpadapt.Config{}, false)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	x := &rawAssoc{}
	if x.client, err = transport.DialSCTP(testContext(t), sctpLocal, tc, muxOf); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.client.Close() })
	if x.server, err = ln.Accept(testContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.server.Close() })
	return x
}

// session starts one from the client to the server.
func (x *rawAssoc) session(t *testing.T) (client, server *sctpadapt.Stream) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		r, err := x.server.Receiver().(*sctpadapt.Mux).Accept(testContext(t))
		if err == nil {
			server, err = r.Accept(sctpadapt.Session{})
		}
		accepted <- err
	}()
	client, err := x.client.Receiver().(*sctpadapt.Mux).Initiate(context.Background(), sctpadapt.Session{IRD: 16, ORD: 16})
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func anyone(_, _ netip.AddrPort, _ bool) error { return nil }

// addrOf is the UDP address of a listener at sctpLocal.
func addrOf(tc *transport.Config) netip.AddrPort {
	return netip.AddrPortFrom(sctpLocal.Addr(), tc.UDPPort)
}

func deadline(t testing.TB) time.Time {
	d, _ := testContext(t).Deadline()
	return d
}
