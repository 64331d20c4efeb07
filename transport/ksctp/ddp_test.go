package ksctp_test

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// muxes are the DDP streams of both ends.
type muxes struct{ a, b *sctpadapt.Mux }

// connectMuxes makes an association of the kernel with itself.
func connectMuxes(t *testing.T, c ksctp.Config) *muxes {
	t.Helper()
	kernel(t)
	c.Adaptation = sctpadapt.Indication
	cl := c
	cl.Local = loopback
	l := listen(t, cl)
	a, err := ksctp.Dial(patient(t), c, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); <-a.Done() })
	b, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); <-b.Done() })
	x := &muxes{sctpadapt.New(a, sctpadapt.Config{}, true), sctpadapt.New(b, sctpadapt.Config{}, false)}
	a.Start(x.a)
	b.Start(x.b)
	return x
}

// session starts a DDP stream.
func (x *muxes) session(t testing.TB) (a, b *sctpadapt.Stream) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		r, err := x.b.Accept(patient(t))
		if err == nil {
			b, err = r.Accept(sctpadapt.Session{PrivateData: []byte("welcome")})
		}
		accepted <- err
	}()
	a, err := x.a.Initiate(patient(t), sctpadapt.Session{PrivateData: []byte("hello")})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	return a, b
}

func (x *muxes) run(t *testing.T, cases []conformance.Case) {
	t.Helper()
	connect := conformance.OverLLP(t, func(t testing.TB) (a, b ddp.LLP) { return x.session(t) })
	conformance.Run(t, connect, cases)
	for _, m := range []*sctpadapt.Mux{x.a, x.b} {
		if err := m.Quiet(patient(t)); err != nil {
			t.Errorf("%d sessions are left: %v", m.Streams(), err)
		}
	}
}

// RFC 5043: what RDMAP promises holds over the kernel's SCTP.
func TestConformance(t *testing.T) {
	connectMuxes(t, ksctp.Config{}).run(t, conformance.Cases())
}

func TestConformanceWithSmallBuffers(t *testing.T) {
	connectMuxes(t, ksctp.Config{SendBuffer: 16 << 10, RecvBuffer: 16 << 10}).run(t, conformance.Core())
}

// The same between our endpoint in UDP and the kernel's, each as the one that
// dials, over a good wire and a bad one.
func TestConformanceOfOurEndpointInUDPAndTheKernels(t *testing.T) {
	for _, c := range []struct {
		name  string
		netem []string
	}{
		{"good wire", nil},
		{"2 % loss", []string{"delay", "1ms", "loss", "2%"}},
	} {
		for _, dialler := range []string{"ours", "the kernel"} {
			t.Run(c.name+", "+dialler+" dials", func(t *testing.T) {
				row(t, "SCTP in UDP of our own and the kernel's with encapsulation, "+dialler+" dials, "+c.name+": the conformance suite")
				hours, hkernel := hosts(t, 1)
				encapsulate(t, hkernel)
				if c.netem != nil {
					if err := hkernel.Impair(t.Context(), 0, c.netem...); err != nil {
						t.Fatal(err)
					}
				}
				x := &muxes{}
				cfg := ksctp.Config{Params: assoc.Params{Adaptation: sctpadapt.Indication, RTOInitial: quick.RTOInitial, RTOMin: quick.RTOMin}, EncapPort: udpPort}
				if dialler == "ours" {
					cfg.Local, cfg.Port = addrs(hkernel, 1), port
					l := listenOn(t, hkernel, cfg)
					e := endpoint(t, hours, nil)
					_, err := e.Dial(patient(t), netip.AddrPortFrom(hkernel.Addr(), udpPort), sctp.DialConfig{
						RemotePort: port,
						Receiver: func(a *sctp.Assoc) assoc.Receiver {
							x.a = sctpadapt.New(a, sctpadapt.Config{}, true)
							return x.a
						},
					})
					if err != nil {
						t.Fatal(err)
					}
					b, err := l.Accept(patient(t))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { b.Close(); <-b.Done() })
					x.b = sctpadapt.New(b, sctpadapt.Config{}, false)
					b.Start(x.b)
				} else {
					e := endpointOf(t, hours, func(a *sctp.Assoc) assoc.Receiver {
						x.b = sctpadapt.New(a, sctpadapt.Config{}, false)
						return x.b
					})
					a, err := dialFrom(t, hkernel, cfg, netip.AddrPortFrom(hours.Addr(), port))
					if err != nil {
						t.Fatal(err)
					}
					x.a = sctpadapt.New(a, sctpadapt.Config{}, true)
					a.Start(x.a)
					if _, err := e.Accept(patient(t)); err != nil {
						t.Fatal(err)
					}
				}
				x.run(t, conformance.Core())
			})
		}
	}
}
