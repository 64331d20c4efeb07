package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// startTime bounds the start of a stream.
const startTime = time.Minute

// Config says how streams between an agent and a device of package verbs come up.
type Config struct {
	Agent     *Process
	Dial      bool           // the agent listens; else it connects to us
	Theirs    netip.AddrPort // where the agent listens
	Ours      netip.AddrPort // where we do; of Transport.Local, if we dial
	Transport *transport.Config
	Setup     verbs.Setup // of our end
	// Within calls its function where our end's network is; nil: that is here.
	Within func(func() error) error
}

// Streams makes streams.
type Streams struct {
	Flows []string // of the streams so far, our end first; whoever reads them may clear them

	cfg  Config
	host *conformance.Host
	ln   *verbs.Listener
}

// Open starts what streams need, until the test ends.
func Open(t testing.TB, cfg Config) *Streams {
	t.Helper()
	if cfg.Within == nil {
		cfg.Within = func(f func() error) error { return f() }
	}
	s := &Streams{cfg: cfg, host: conformance.NewHost(t)}
	if cfg.Dial {
		if _, err := cfg.Agent.Do("listen %v %d", cfg.Theirs.Addr(), cfg.Theirs.Port()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if err := cfg.Within(func() (err error) {
		s.ln, err = s.host.Device.Listen(ctx, cfg.Ours, verbs.ListenConfig{Transport: cfg.Transport, Setup: cfg.Setup})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.ln.Close() })
	return s
}

// Connect is a conformance.Connect: a stream whose first end is ours.
func (s *Streams) Connect(t testing.TB) (a, b conformance.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	type made struct {
		e   *Endpoint
		err error
	}
	theirs := make(chan made, 1)
	go func() {
		e, err := s.theirEnd()
		theirs <- made{e, err}
	}()
	our, err := s.host.Endpoint(t, 0, func(pd *verbs.PD, cfg verbs.QPConfig) (qp *verbs.QP, err error) {
		if s.cfg.Dial {
			err = s.cfg.Within(func() (err error) {
				qp, err = pd.Dial(ctx, verbs.DialConfig{QP: cfg, Remote: s.cfg.Theirs, Transport: s.cfg.Transport, Setup: s.cfg.Setup})
				return err
			})
		} else {
			var req *verbs.ConnRequest
			if req, err = s.ln.Accept(ctx); err == nil {
				qp, err = req.Accept(ctx, pd, verbs.AcceptConfig{QP: cfg})
			}
		}
		if err == nil {
			s.Flows = append(s.Flows, fmt.Sprintf("%v-%v", qp.Flow().Local, qp.Flow().Remote))
		}
		return qp, err
	})
	m := <-theirs
	if m.e != nil {
		t.Cleanup(func() {
			if err := m.e.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := errors.Join(err, m.err); err != nil {
		t.Fatal(err)
	}
	if s.cfg.Dial {
		speakFirst(ctx, t, our)
	}
	return our, m.e
}

// theirEnd brings up the agent's end.
func (s *Streams) theirEnd() (*Endpoint, error) {
	a := s.cfg.Agent
	var words []string
	var err error
	if s.cfg.Dial {
		words, err = a.Do("accept %d %d", readDepth, readDepth)
	} else {
		words, err = a.Do("connect %v %d %d %d", s.ln.Addr().Addr(), s.ln.Addr().Port(), readDepth, readDepth)
	}
	if err != nil {
		return nil, err
	}
	e := &Endpoint{a: a, ord: readDepth}
	if _, err := fmt.Sscan(strings.Join(words, " "), &e.conn); err != nil {
		return nil, fmt.Errorf("agent: a new stream is called %q: %w", words, err)
	}
	e.s = a.stream(e.conn)
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
