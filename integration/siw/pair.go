package siw

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// startTime bounds the start of a stream.
const startTime = time.Minute

// Lab is where the suite runs.
type Lab struct {
	Agent     string // its path
	Namespace string // siw's network namespace
	Device    string // siw's name of its device

	// Where the streams are protected; without Protector they are not.
	Protector transport.Protector
	Siw, Ours netip.Addr // the addresses
	NetNS     string     // path of our network namespace; "": this process's own
}

// Pairs makes streams of one variant.
type Pairs struct {
	v     Variant
	netns string
	agent *Agent
	host  *conformance.Host
	ln    *verbs.Listener // we listen
	tc    *transport.Config
	siw   netip.AddrPort // siw listens
	flows []string       // of the streams since the last look
}

// Open starts what the streams of a variant need, until the test ends. Both listeners
// use port.
func (l Lab) Open(t testing.TB, v Variant, port uint16) *Pairs {
	t.Helper()
	for name, value := range v.parameters() {
		if err := os.WriteFile(filepath.Join("/sys/module/siw/parameters", name), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	agent, err := Start(l.Agent, l.Namespace, l.Device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := agent.Stop(); err != nil {
			t.Error(err)
		}
	})
	siw, ours := l.Siw, l.Ours
	if l.Protector == nil {
		siw, ours = v.addresses()
		l.Protector = transport.Plaintext(slog.New(slog.DiscardHandler), siw)
	}
	p := &Pairs{v: v, netns: l.NetNS, agent: agent, host: conformance.NewHost(t), siw: netip.AddrPortFrom(siw, port)}
	p.tc = &transport.Config{Protector: l.Protector, Local: ours}
	if v.Dial {
		if _, err := agent.Do("listen %v %d", siw, port); err != nil {
			t.Fatal(err)
		}
		return p
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	err = nsdo.Do(l.NetNS, func() (err error) {
		p.ln, err = p.host.Device.Listen(ctx, netip.AddrPortFrom(ours, port), verbs.ListenConfig{Transport: p.tc, Setup: v.setup()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.ln.Close() })
	return p
}

// Connect is a conformance.Connect: a stream whose first end is ours.
func (p *Pairs) Connect(t testing.TB) (a, b conformance.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	type made struct {
		e   *endpoint
		err error
	}
	theirs := make(chan made, 1)
	go func() {
		e, err := p.siwEnd()
		theirs <- made{e, err}
	}()
	our, err := p.host.Endpoint(t, 0, func(pd *verbs.PD, cfg verbs.QPConfig) (qp *verbs.QP, err error) {
		if p.v.Dial {
			err = nsdo.Do(p.netns, func() (err error) {
				qp, err = pd.Dial(ctx, verbs.DialConfig{QP: cfg, Remote: p.siw, Transport: p.tc, Setup: p.v.setup()})
				return err
			})
		} else {
			var req *verbs.ConnRequest
			if req, err = p.ln.Accept(ctx); err == nil {
				qp, err = req.Accept(ctx, pd, verbs.AcceptConfig{QP: cfg})
			}
		}
		if err == nil {
			p.flows = append(p.flows, fmt.Sprintf("%v-%v", qp.Flow().Local, qp.Flow().Remote))
		}
		return qp, err
	})
	m := <-theirs
	if m.e != nil {
		t.Cleanup(func() {
			if err := m.e.release(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := errors.Join(err, m.err); err != nil {
		t.Fatal(err)
	}
	if p.v.Dial {
		speakFirst(ctx, t, our)
	}
	return our, m.e
}

// siwEnd brings up siw's end.
func (p *Pairs) siwEnd() (*endpoint, error) {
	var words []string
	var err error
	if p.v.Dial {
		words, err = p.agent.Do("accept %d %d", readDepth, readDepth)
	} else {
		words, err = p.agent.Do("connect %v %d %d %d", p.ln.Addr().Addr(), p.ln.Addr().Port(), readDepth, readDepth)
	}
	if err != nil {
		return nil, err
	}
	e := &endpoint{a: p.agent, ord: readDepth}
	if _, err := fmt.Sscan(strings.Join(words, " "), &e.conn); err != nil {
		return nil, fmt.Errorf("siw: a new stream is called %q: %w", words, err)
	}
	e.s = p.agent.stream(e.conn)
	return e, nil
}

// speakFirst sends a message that the peer's consumer does not see, so that an
// MPA responder may send (RFC 5044 section 7.1.2 rule 4).
func speakFirst(ctx context.Context, t testing.TB, e conformance.Endpoint) {
	t.Helper()
	if err := e.PostSend(conformance.WR{Op: conformance.OpWrite, Flags: conformance.Signaled}); err != nil {
		t.Fatal(err)
	}
	if wc, err := e.Completion(ctx); err != nil || wc.Status != conformance.OK {
		t.Fatalf("the initiator's first message: %+v, %v", wc, err)
	}
}
