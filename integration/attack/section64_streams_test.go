package attack

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

var (
	home     = netip.MustParseAddr("127.0.0.1")
	evilHost = netip.MustParseAddr("127.0.0.2")
	goodHost = netip.MustParseAddr("127.0.0.3")
)

// byAddress is how connections of this host are made whose peers are distinguished by
// their addresses.
func byAddress(kind transport.Kind, from netip.Addr) *transport.Config {
	p := transport.Plaintext(slog.New(slog.DiscardHandler), home, evilHost, goodHost)
	return &transport.Config{Protector: p, Kind: kind, Local: from}
}

// service is a target that listens.
type service struct {
	*target
	ln      *verbs.Listener
	streams chan *verbs.QP // that it has accepted
}

// listen makes the target serve streams over tc. Start-ups have no time limit, so no
// half-open stream ends by itself.
func (v *target) listen(tc *transport.Config) *service {
	v.Helper()
	return v.listenWith(tc, verbs.ListenConfig{})
}

func (v *target) listenWith(tc *transport.Config, cfg verbs.ListenConfig) *service {
	v.Helper()
	cfg.Transport, cfg.Setup.Timeout = tc, time.Hour
	local := netip.AddrPortFrom(home, 0)
	if tc.Kind != transport.TCP {
		local = netip.AddrPortFrom(home, 7000)
	}
	return &service{v, must(v.dev.Listen(v.Context(), local, cfg))(v.T), make(chan *verbs.QP, 1024)}
}

// serve accepts streams until the test is over, as many as there is room for.
func (s *service) serve() {
	s.serveWith(func() (*verbs.PD, verbs.QPConfig) {
		return s.pd, verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSend: 4, MaxRecv: 4, IRD: 4}
	}, nil)
}

// serveWith is serve with queue pairs of this kind. Each has itself prepared.
func (s *service) serveWith(kind func() (*verbs.PD, verbs.QPConfig), prepare func(*verbs.QP) error) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := s.ln.Accept(context.Background())
			if err != nil {
				return
			}
			pd, cfg := kind()
			qp, err := r.Accept(context.Background(), pd, verbs.AcceptConfig{QP: cfg, Prepare: prepare})
			if err != nil {
				_ = r.Reject(context.Background(), nil) // the peer sees that it is not accepted
				continue
			}
			select {
			case s.streams <- qp:
			default: // nobody looks at so many
			}
		}
	})
	s.Cleanup(func() {
		s.ln.Close()
		wg.Wait()
	})
}

// newcomer is a peer that does nothing wrong. It reports whether it gets no stream.
func (s *service) newcomer(tc *transport.Config) (shutOut bool) {
	s.Helper()
	n := newTarget(s.T)
	wait := patience
	if checks.Weakened {
		wait = 2 * time.Second // it is to be shut out, which is nothing to wait for
	}
	ctx, cancel := context.WithTimeout(s.Context(), wait)
	defer cancel()
	cfg := verbs.QPConfig{SendCQ: n.cq, RecvCQ: n.cq, MaxSend: 4, MaxRecv: 4}
	dial := verbs.DialConfig{Remote: s.ln.Addr(), Transport: tc, Setup: verbs.Setup{Plain: true}} // with which it tries once
	dial.QP = cfg
	qp, err := n.pd.Dial(ctx, dial)
	if err != nil {
		s.Logf("the newcomer: %v", err)
		return true
	}
	qp.Close()
	<-qp.Done()
	return false
}

// connections opens n connections from the attacker's host, sends one of these texts on
// each in turn and then nothing more, and keeps those that are not closed.
func (s *service) connections(n int, say ...string) {
	s.Helper()
	const hands, most = 8, 1000
	var made, kept sync.WaitGroup
	open := make(chan struct{}, most) // so many are not known to be closed
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: evilHost.AsSlice()}}
	ctx, cancel := context.WithCancel(context.Background())
	for range hands {
		made.Go(func() {
			for i := range n / hands {
				open <- struct{}{}
				c, err := d.DialContext(ctx, "tcp", s.ln.Addr().String())
				if err != nil { // it was refused while it was set up
					<-open
					continue
				}
				_, _ = io.WriteString(c, say[i%len(say)]) // as above
				kept.Go(func() {
					stop := context.AfterFunc(ctx, func() { c.Close() })
					defer stop()
					_, _ = io.Copy(io.Discard, c)
					c.Close()
					<-open
				})
			}
		})
	}
	made.Wait()
	s.Cleanup(func() {
		cancel()
		kept.Wait()
	})
}

// Requests of Setup: none, a part of one, and a whole one of revision 1 (RFC 5044
// section 7.1.1).
const (
	silence = ""
	part    = "MPA ID Req"
	request = "MPA ID Req Frame\x00\x01\x00\x00"
)

// One address opens connections without end, and another peer still connects (R19,
// RFC 5042 section 6.4.1).
func TestConnectionsWithoutEndOfOneAddress(t *testing.T) {
	const places = 64
	flood := func(cfg verbs.Config, n int, say ...string) func(v *target) bool {
		return func(v *target) bool {
			v = newTargetAs(v.T, cfg, verbs.ST)
			s := v.listen(byAddress(transport.TCP, home))
			s.serve()
			s.connections(n, say...)
			most := cfg.Peer.Streams
			if most == 0 || !checks.Weakened { // the newcomer comes where the limit is reached, and not before
				v.eventually(verbs.EventQuotaExceeded, "plaintext:127.0.0.2")
			}
			shutOut := s.newcomer(byAddress(transport.TCP, goodHost))
			if most > 0 {
				return v.usageOf(evilHost).Streams > most
			}
			return shutOut
		}
	}
	halfOpen := verbs.Config{Limits: verbs.Limits{HalfOpen: places}}
	run(t,
		attack{"10,000 of all kinds", checks.HalfOpen, flood(halfOpen, 10_000, silence, part, request)},
		attack{"that say nothing", checks.HalfOpen, flood(halfOpen, 1000, silence)},
		attack{"that say half of something", checks.HalfOpen, flood(halfOpen, 1000, part)},
		attack{"streams", checks.FairShare, flood(verbs.Config{Limits: verbs.Limits{Streams: places}}, 1000, request)},
		attack{"streams beyond a quota", checks.PeerQuota, flood(verbs.Config{Peer: verbs.Quota{Streams: places / 8}}, 1000, request)},
	)
}

// usageOf is what a peer uses, by its address.
func (v *target) usageOf(addr netip.Addr) verbs.Limits {
	for _, u := range v.dev.Resources().Peers {
		if u.Name == "plaintext:"+addr.String() {
			return u.Used
		}
	}
	return verbs.Limits{}
}

// While the service is busy, the requests of one peer fill the queue of those that it
// has not looked at. Another peer's request is among them all the same (R19).
func TestRequestsThatFillTheBacklog(t *testing.T) {
	run(t, attack{"requests", checks.BacklogShare, func(v *target) bool {
		const backlog, flood = 16, 160
		refused := make(chan struct{}, 2*flood)
		tc := byAddress(transport.TCP, home)
		tc.OnRefused = func(transport.Flow, error) { refused <- struct{}{} }
		s := v.listenWith(tc, verbs.ListenConfig{Backlog: backlog, OnFailed: tc.OnRefused})
		s.connections(flood, request)
		for range flood - backlog {
			<-refused
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			<-refused // the newcomer's, or one that has given way to it
			s.serve()
		}()
		shutOut := s.newcomer(byAddress(transport.TCP, goodHost))
		<-served
		return shutOut
	}})
}
