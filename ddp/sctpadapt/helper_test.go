package sctpadapt_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func anyone(_, _ netip.AddrPort, _ bool) error { return nil }

// config is a Config for both ends of a test.
func config() sctp.Config {
	return sctp.Config{Params: assoc.Params{Adaptation: sctpadapt.Indication, RTOInitial: 100 * time.Millisecond, RTOMin: 50 * time.Millisecond}, Admit: anyone}
}

func listen(t testing.TB, cfg sctp.Config) *sctp.Endpoint {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	e, err := sctp.Listen(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// muxes are both ends of an association.
type muxes struct {
	a, b   *sctpadapt.Mux
	aa, ab *sctp.Assoc
}

// connect makes an association between two endpoints, by way of the address via,
// or directly if that is invalid.
func connect(t testing.TB, ca, cb sctpadapt.Config, via func(t testing.TB, to netip.AddrPort) netip.AddrPort) *muxes {
	t.Helper()
	return connectWith(t, func(*sctp.Config) {}, ca, cb, via)
}

// connectWith is connect with something else in the endpoints' Config.
func connectWith(t testing.TB, change func(*sctp.Config), ca, cb sctpadapt.Config, via func(t testing.TB, to netip.AddrPort) netip.AddrPort) *muxes {
	t.Helper()
	x := &muxes{}
	cfg := config()
	change(&cfg)
	ea := listen(t, cfg)
	cfg.Accept = func(a *sctp.Assoc) assoc.Receiver {
		x.b = sctpadapt.New(a, cb, false)
		return x.b
	}
	eb := listen(t, cfg)
	to := eb.Addr()
	if via != nil {
		to = via(t, to)
	}
	var err error
	if x.aa, err = ea.Dial(patient(t), to, sctp.DialConfig{Receiver: func(a *sctp.Assoc) assoc.Receiver {
		x.a = sctpadapt.New(a, ca, true)
		return x.a
	}}); err != nil {
		t.Fatal(err)
	}
	if x.ab, err = eb.Accept(patient(t)); err != nil {
		t.Fatal(err)
	}
	return x
}

// session starts a session from a to b.
func (x *muxes) session(t testing.TB) (a, b *sctpadapt.Stream) {
	t.Helper()
	return x.sessionWith(t, sctpadapt.Session{}, sctpadapt.Session{})
}

// sessionWith is session with something else in what each end wants.
func (x *muxes) sessionWith(t testing.TB, sa, sb sctpadapt.Session) (a, b *sctpadapt.Stream) {
	t.Helper()
	sa.PrivateData, sb.PrivateData = []byte("hello"), []byte("welcome")
	accepted := make(chan error, 1)
	go func() {
		r, err := x.b.Accept(patient(t))
		if err == nil {
			b, err = r.Accept(sb)
		}
		accepted <- err
	}()
	a, err := x.a.Initiate(patient(t), sa)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	return a, b
}
