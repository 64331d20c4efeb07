package oversctp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	port     = 7471
	patience = time.Minute
)

// row hands a result of the test to make interop, which writes docs/interop.md.
func row(t *testing.T, what string, args ...any) { t.Attr("row", fmt.Sprintf(what, args...)) }

// hosts are two hosts without protection between them.
type hosts struct {
	kind        transport.Kind
	alpha, beta *lab.Host
	v6          bool
}

func newHosts(t *testing.T, kind transport.Kind, v6 bool) *hosts {
	t.Helper()
	if kind == transport.SCTP {
		lab.RequireKernelSCTP(t)
	}
	l := lab.Start(t, lab.Config{NoCharon: true})
	return &hosts{kind: kind, alpha: l.Host("alpha"), beta: l.Host("beta"), v6: v6}
}

func (h *hosts) addr(of *lab.Host) netip.Addr {
	if h.v6 {
		return of.Addr6()
	}
	return of.Addr()
}

// config is the configuration of a host whose only peer is the other one.
func (h *hosts) config(of *lab.Host) *transport.Config {
	peer := h.alpha
	if of == h.alpha {
		peer = h.beta
	}
	return &transport.Config{Kind: h.kind, Local: h.addr(of), Protector: transport.Plaintext(slog.New(slog.DiscardHandler), h.addr(peer))}
}

// impair skips the test where there is no netem.
func (h *hosts) impair(t *testing.T, netem ...string) {
	t.Helper()
	if err := h.beta.Impair(t.Context(), 0, netem...); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && strings.Contains(err.Error(), "qdisc kind is unknown") {
			t.Skipf("make interop runs it in its virtual machine, whose kernel has netem; here: %v", err)
		}
		t.Fatal(err)
	}
}

// connect dials from alpha to beta. All streams share one association as long as one of
// them lives.
func (h *hosts) connect(t *testing.T) conformance.Connect {
	t.Helper()
	ha, hb := conformance.NewHost(t), conformance.NewHost(t)
	remote := netip.AddrPortFrom(h.addr(h.beta), port)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var ln *verbs.Listener
	err := h.beta.Do(func() (err error) {
		ln, err = hb.Device.Listen(ctx, remote, verbs.ListenConfig{Transport: h.config(h.beta)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	dial := verbs.DialConfig{Remote: remote, Transport: h.config(h.alpha)}
	return func(t testing.TB) (a, b conformance.Endpoint) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		accepted := make(chan error, 1)
		go func() {
			req, err := ln.Accept(ctx)
			if err == nil {
				b, err = hb.Endpoint(t, 0, func(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
					return req.Accept(ctx, pd, verbs.AcceptConfig{QP: cfg})
				})
			}
			accepted <- err
		}()
		a, err := ha.Endpoint(t, 0, func(pd *verbs.PD, cfg verbs.QPConfig) (qp *verbs.QP, err error) {
			err = h.alpha.Do(func() (err error) {
				dial.QP = cfg
				qp, err = pd.Dial(ctx, dial)
				return err
			})
			return qp, err
		})
		if err != nil {
			cancel()
		}
		if err := errors.Join(err, <-accepted); err != nil {
			t.Fatal(err)
		}
		speakFirst(ctx, t, a)
		return a, b
	}
}

// speakFirst sends a message that the peer's consumer does not see, so that the
// responder may send.
func speakFirst(ctx context.Context, t testing.TB, e conformance.Endpoint) {
	t.Helper()
	if err := e.PostSend(conformance.WR{Op: conformance.OpWrite, Flags: conformance.Signaled}); err != nil {
		t.Fatal(err)
	}
	if wc, err := e.Completion(ctx); errors.Is(err, io.EOF) || err != nil || wc.Status != conformance.OK {
		t.Fatalf("the initiator's first message: %+v, %v", wc, err)
	}
}
