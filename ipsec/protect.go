package ipsec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/flow"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// Prepare implements transport.Protector: the guard is checked, and an SA for
// dialling f's remote address is brought up if there is none. Concurrent calls
// share one attempt. The error says what is wrong with the SA, see
// negotiation.Error and charon.Error; it matches transport.ErrAway if the guard is
// in place and the SA is all that is missing.
func (m *Manager) Prepare(ctx context.Context, f transport.Flow) error {
	f = unmapped(f)
	p, ln := m.find(f, true)
	if p == nil {
		return &AdmitError{Flow: f, Kind: ErrUnknownPeer, Detail: m.knownPeers(f)}
	}
	if a := f.Local.Addr(); a.IsValid() && !a.IsUnspecified() && a != p.local {
		return &AdmitError{Flow: f, Peer: p.name, Kind: pad.ErrNotCovered, never: true, Detail: fmt.Sprintf("the peer's SA is for local address %v", p.local)}
	}
	if err := m.screenBlocked(p.name, f); err != nil {
		return m.refuse(p, err)
	}
	if err := m.ensureTested(p); err != nil {
		if errors.Is(err, guard.ErrUntested) { // there is no way to the peer
			return awayError{err}
		}
		return err
	}
	return away(m.prepare(ctx, p, ln))
}

// prepare waits for the child of a lane whose guard is in place.
func (m *Manager) prepare(ctx context.Context, p *peer, ln *lane) error {
	if _, err := m.awaitSession(ctx); err != nil {
		return err
	}
	// Until Admit the flow is nobody's: if the SA goes while it connects, it has to
	// come back all the same.
	until := m.now().Add(lanestate.DialWait)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	w := make(chan error, 1)
	p.mu.Lock()
	if p.removed { // since it was found
		p.mu.Unlock()
		return errRemoved(p.name)
	}
	p.happenLocked(ln, lanestate.DialBegins{Until: until})
	up := ln.life.State() == lanestate.Up
	if !up {
		ln.waiters[w] = struct{}{}
		ln.countWaiters()
	}
	p.restateLocked()
	p.mu.Unlock()
	context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.happenLocked(ln, lanestate.DialOver{})
	})
	if up {
		p.poke() // which sees to it that the SA leads somewhere
		return nil
	}
	p.poke()
	select {
	case err := <-w:
		if err != nil {
			return err
		}
		return p.settle(ctx)
	case <-ctx.Done():
		p.forget(ln, w)
		return fmt.Errorf("the IPsec SA with peer %s is not up yet: %w", p.name, ctx.Err())
	case <-m.ctx.Done():
		p.forget(ln, w)
		return ErrClosed
	}
}

// settle gives an IKEv1 peer the time to install its half: the responder does so
// at the third message of quick mode, and charon reports the SA as up when
// that is sent. A SYN that overtakes it would be lost, and TCP repeats it after
// a second.
func (p *peer) settle(ctx context.Context) error {
	if p.config().Profile.Version != 1 {
		return nil
	}
	timer := time.NewTimer(quickModeSettle)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.m.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("the IPsec SA with peer %s has only just come up: %w", p.name, ctx.Err())
	}
}

func (p *peer) forget(ln *lane, w chan error) {
	p.mu.Lock()
	delete(ln.waiters, w)
	ln.countWaiters()
	p.restateLocked()
	p.mu.Unlock()
}

// LocalPorts implements transport.PortChooser: it gives a flow that is about to
// be dialled to the child SA with the fewest flows, and returns the local ports
// that this one covers. Any port will do, 0 and 0, where a peer has one child
// SA, and for a flow of no peer, which Prepare refuses.
func (m *Manager) LocalPorts(_ context.Context, f transport.Flow) (lo, hi uint16, err error) {
	f = unmapped(f)
	p, ln := m.find(f, true)
	if p == nil || ln.Local.AnyPort() {
		return 0, 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ln.picked = time.Now()
	ln.picks = append(ln.picks, ln.picked)
	return ln.Local.PortFrom, ln.Local.PortTo, nil
}

var _ transport.PortChooser = (*Manager)(nil)

// Admit implements transport.Protector. It proves by charon's list that an
// INSTALLED child of the peer's connection covers the flow, that its ESP ends at
// the flow's own two addresses, and that IKE authenticated the configured
// identity; and that no child of another connection covers the flow as well. An
// *AdmitError says what is missing.
func (m *Manager) Admit(ctx context.Context, f transport.Flow, outgoing bool, c transport.Monitored) (transport.Protection, error) {
	f = unmapped(f)
	p, ln := m.find(f, outgoing)
	if p == nil {
		return nil, m.refuse(nil, &AdmitError{Flow: f, Kind: ErrUnknownPeer, Detail: m.knownPeers(f)})
	}
	if err := m.screenBlocked(p.name, f); err != nil {
		return nil, m.refuse(p, err)
	}
	pr := &protection{p: p, l: ln, Watch: flow.Watch{Monitored: c}}
	p.mu.Lock()
	ln.flows[pr] = struct{}{}
	p.happenLocked(ln, lanestate.FlowComes{})
	p.restateLocked()
	p.mu.Unlock()
	var id transport.Identity
	var err error
	if !p.isTested() {
		if err = m.ensureTested(p); errors.Is(err, guard.ErrUntested) {
			err = awayError{err}
		}
	}
	if err == nil {
		id, err = m.prove(ctx, p, ln, f)
	}
	if err != nil {
		pr.Release()
		return nil, m.refuse(p, err)
	}
	pr.id, pr.kind = id, fmt.Sprintf("ipsec (%v)", m.DaemonStatus().DataPlane)
	p.mu.Lock()
	pr.admitted = true
	p.happenLocked(ln, lanestate.FlowAdmitted{Dialled: outgoing})
	if outgoing && len(ln.picks) > 0 {
		ln.picks = ln.picks[1:]
	}
	p.mu.Unlock()
	p.poke()
	m.note(Event{Kind: EventFlowAdmitted, Peer: p.name, Child: ln.Name, Detail: f.String()})
	return pr, nil
}

func (m *Manager) refuse(p *peer, err error) error {
	e := Event{Kind: EventFlowRefused, Detail: err.Error()}
	if p == nil {
		m.mu.Lock()
		m.refused++
		m.mu.Unlock()
	} else {
		e.Peer = p.name
		p.mu.Lock()
		p.counters.Refused++
		p.counters.Refusals.add(err)
		p.mu.Unlock()
	}
	m.note(e)
	return err
}

func (r *Refusals) add(err error) {
	switch kindOf(err, pad.ErrWrongIdentity, pad.ErrGateway, pad.ErrLabel, ErrNotConnected, pad.ErrNotCovered, ErrBlocked) {
	case pad.ErrLabel:
		r.Label++
	case ErrBlocked:
		r.Blocked++
	case pad.ErrWrongIdentity:
		r.WrongIdentity++
	case pad.ErrGateway:
		r.Gateway++
	case ErrNotConnected:
		r.NotConnected++
	case pad.ErrNotCovered:
		r.NotCovered++
	default:
		r.Other++
	}
}

// prove waits for charon's list to show the flow covered: the first packet of a flow may
// overtake the end of the key exchange that it rides on. The flow is refused by a list
// that was asked for lanestate.AdmitWait after it came, unless the child is just being brought
// up: a charon that is slow to list, or to exchange keys, costs time and no stream.
func (m *Manager) prove(ctx context.Context, p *peer, ln *lane, f transport.Flow) (transport.Identity, error) {
	timer := time.NewTimer(m.admitWait)
	defer timer.Stop()
	var last error
	late := false
	for {
		p.mu.Lock()
		changed, cfg, trying := p.changed, p.cfg, ln.life.Trying()
		p.mu.Unlock()
		if f.Local.Addr() != cfg.Local {
			return "", &AdmitError{Flow: f, Peer: p.name, Kind: pad.ErrNotCovered, never: true, Detail: fmt.Sprintf("the peer's SA is for local address %v", cfg.Local)}
		}
		err := m.proof(ctx, p, &cfg, ln.Name, f)
		if err == nil && !ln.up.Load() {
			err = p.refresh(ctx) // so that the flow does not start as a paused one
		}
		if err == nil {
			return transport.Identity(cfg.RemoteID), nil
		}
		if errors.Is(err, pad.ErrWrongIdentity) || errors.Is(err, pad.ErrGateway) {
			return "", err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if late && !trying {
			return "", last
		}
		p.beginRefresh()
		select {
		case <-changed:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			return "", fmt.Errorf("%w (%w)", last, ctx.Err())
		case <-m.ctx.Done():
			return "", ErrClosed
		}
	}
}

// proof looks once whether a flow is covered.
func (m *Manager) proof(ctx context.Context, p *peer, cfg *pad.Peer, name string, f transport.Flow) error {
	sas, err := m.listAll(ctx)
	if err != nil {
		return &AdmitError{Flow: f, Peer: cfg.Name, Kind: ErrNotConnected, Detail: err.Error()}
	}
	sa, child, err := cfg.Carrier(name, f, sas)
	if err != nil {
		kind := kindOf(err, pad.ErrWrongIdentity, pad.ErrGateway, pad.ErrLabel, pad.ErrNotCovered)
		return &AdmitError{Flow: f, Peer: cfg.Name, Kind: kind, Detail: strings.TrimPrefix(err.Error(), kind.Error()+": ")}
	}
	st := m.DaemonStatus()
	if err := m.confirm(p.host(st.DataPlane, st.Tun), sa, child); err != nil {
		return &AdmitError{Flow: f, Peer: cfg.Name, Kind: pad.ErrNotCovered, Detail: err.Error()}
	}
	return nil
}

// find returns the peer and the lane of a flow, or nil.
func (m *Manager) find(f transport.Flow, outgoing bool) (*peer, *lane) {
	for _, p := range m.allPeers() {
		if ln := p.laneOf(f, outgoing); ln != nil {
			return p, ln
		}
	}
	return nil, nil
}

// knownPeers helps with a flow of no peer: it names the peer with that address.
func (m *Manager) knownPeers(f transport.Flow) string {
	for _, p := range m.allPeers() {
		if p.hasLink(f, true) || p.hasLink(f, false) {
			n := max(p.config().Children, 1)
			return fmt.Sprintf("peer %s has %d child SAs per direction, for ports %d to 65535 of the host that dials; is child_sas the same on both hosts?", p.name, n, pad.FirstBlockPort)
		}
		if p.remote == f.Remote.Addr() {
			return fmt.Sprintf("%v is peer %s, whose link has %s", p.remote, p.name, linkWords(p.links))
		}
	}
	return fmt.Sprintf("no peer has the address %v; add it first", f.Remote.Addr())
}

func linkWords(links []pad.Link) string {
	var words []string
	for _, k := range links {
		words = append(words, k.String())
	}
	return strings.Join(words, ", ")
}

func unmapped(f transport.Flow) transport.Flow {
	f.Local = netip.AddrPortFrom(f.Local.Addr().Unmap(), f.Local.Port())
	f.Remote = netip.AddrPortFrom(f.Remote.Addr().Unmap(), f.Remote.Port())
	return f
}

// protection is what an admitted flow lives under.
type protection struct {
	p        *peer
	l        *lane
	id       transport.Identity
	kind     string
	released atomic.Bool

	// The peer's mutex guards these.
	flow.Watch
	admitted bool // until then its data is not waited for
}

func (pr *protection) Peer() transport.Identity { return pr.id }
func (pr *protection) Paused() bool             { return !pr.l.up.Load() }
func (pr *protection) Kind() string             { return pr.kind }

func (pr *protection) Release() {
	if pr.released.Swap(true) {
		return
	}
	p := pr.p
	p.mu.Lock()
	delete(pr.l.flows, pr)
	p.happenLocked(pr.l, lanestate.FlowLeaves{Admitted: pr.admitted})
	reap := p.cfg.IdleReap > 0
	p.restateLocked()
	p.mu.Unlock()
	if reap {
		p.poke()
	}
}
