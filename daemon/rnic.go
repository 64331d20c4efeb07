package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// rejectTime bounds telling a peer that it is refused.
const rejectTime = 5 * time.Second

// openRNIC opens the device and the services that peers reach through it.
func (d *Daemon) openRNIC() error {
	lim := d.cfg.Limits
	var err error
	d.dev, err = verbs.Open(verbs.Config{Limits: verbs.Limits{Streams: int64(lim.Streams), Bytes: lim.Memory}})
	if err != nil {
		return err
	}
	probeQuota := verbs.Quota{Streams: 2 * probe.MaxClients, Bytes: 2 * probe.MaxClients * 6 << 20}
	for _, u := range []struct {
		ulp   **verbs.ULP
		name  string
		quota verbs.Quota
	}{{&d.ulps.server, "exports", verbs.Quota{}}, {&d.ulps.client, "attachments", verbs.Quota{}}, {&d.ulps.probe, "ping", probeQuota}} {
		if *u.ulp, err = d.dev.NewULP(u.name, verbs.ULPConfig{Quota: u.quota, Trust: verbs.SLT}); err != nil {
			return err
		}
	}
	d.probes = probe.NewServer(d.ulps.probe, d.log)
	return d.openBlocks()
}

// listener awaits peers at one address.
type listener struct {
	addr    netip.AddrPort
	ln      *verbs.Listener // nil while it cannot listen
	problem *api.Error
}

// wanted are the addresses that peers reach this host at.
func (d *Daemon) wanted() map[netip.AddrPort]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := map[netip.AddrPort]bool{}
	for _, a := range d.cfg.ListenOn {
		w[netip.AddrPortFrom(a, d.cfg.ListenPort)] = true
	}
	if len(d.cfg.ListenOn) > 0 {
		return w
	}
	for _, p := range d.peers {
		if p.local.IsValid() {
			w[netip.AddrPortFrom(p.local, d.cfg.ListenPort)] = true
		}
	}
	return w
}

// listen opens the listeners that are wanted and closes those that are not.
// changing is held.
func (d *Daemon) listen(ctx context.Context) {
	want := d.wanted()
	d.mu.Lock()
	var stale []*listener
	for a, l := range d.listeners {
		if !want[a] {
			delete(d.listeners, a)
			stale = append(stale, l)
		}
	}
	d.mu.Unlock()
	for _, l := range stale {
		d.log.Debug("listener closed", "address", l.addr)
		if l.ln != nil {
			l.ln.Close()
		}
	}
	for a := range want {
		d.mu.Lock()
		l := d.listeners[a]
		if l == nil {
			l = &listener{addr: a}
			d.listeners[a] = l
		}
		up := l.ln != nil
		d.mu.Unlock()
		if !up {
			d.openListener(ctx, l)
		}
	}
}

func (d *Daemon) openListener(ctx context.Context, l *listener) {
	ln, err := d.dev.Listen(ctx, l.addr, verbs.ListenConfig{
		Transport: &transport.Config{
			Protector: transport.PerPeer(d.protectorFor),
			OnRefused: func(f transport.Flow, err error) { d.refused.add(d.log, f, err) },
		},
		PeerMPA:  d.listenMPA,
		OnFailed: func(f transport.Flow, err error) { d.refused.add(d.log, f, err) },
	})
	problem := listenProblem(l.addr, err)
	d.mu.Lock()
	changed := problem != nil && (l.problem == nil || l.problem.Message != problem.Message)
	l.ln, l.problem = ln, problem
	d.mu.Unlock()
	switch {
	case changed:
		d.log.Error("cannot listen", "address", l.addr, "error", problem)
	case problem == nil:
		d.log.Info("listening", "address", l.addr)
		d.run(func(ctx context.Context) { d.accept(ctx, ln) })
	}
}

func listenProblem(a netip.AddrPort, err error) *api.Error {
	if err == nil {
		return nil
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot listen at %s: %v", a, err)}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code = api.CodeInUse
		e.Message = fmt.Sprintf("cannot listen at %s: another program has TCP port %d", a, a.Port())
		e.Fix = fmt.Sprintf("find it with `ss -ltnp 'sport = :%d'` and stop it, or choose another listen port in the configuration of both hosts. The daemon keeps trying", a.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Message = fmt.Sprintf("cannot listen at %s: no interface of this host has that address", a)
		e.Fix = "see `ip address`; set local_address of the peer to an address of this host. The daemon keeps trying"
	}
	return e
}

func (d *Daemon) closeListeners() {
	d.mu.Lock()
	ls := d.listeners
	d.listeners = map[netip.AddrPort]*listener{}
	d.mu.Unlock()
	for _, l := range ls {
		if l.ln != nil {
			l.ln.Close()
		}
	}
}

// accept hands each stream that a peer asks for to the service that it is for.
func (d *Daemon) accept(ctx context.Context, ln *verbs.Listener) {
	for {
		cr, err := ln.Accept(ctx)
		if err != nil {
			return
		}
		d.dispatch(cr)
	}
}

func (d *Daemon) dispatch(cr *verbs.ConnRequest) {
	private := cr.PrivateData()
	_, known := d.peerFor(cr.Peer(), cr.Flow().Remote.Addr())
	switch {
	case !known:
		d.refuse(cr, probe.AppendUnknownPeer(nil), fmt.Errorf("%s at %s is not a configured peer", cr.Peer(), cr.Flow().Remote.Addr()))
	case probe.IsRequest(private):
		d.probes.Handle(cr)
	case rtrs.IsRequest(private):
		d.blocks.Handle(cr)
	default:
		d.refuse(cr, nil, errors.New("the private data names no service of this host"))
	}
}

// refuse rejects a stream without holding up the listener.
func (d *Daemon) refuse(cr *verbs.ConnRequest, private []byte, why error) {
	d.refused.add(d.log, cr.Flow(), why)
	if !d.refused.enter() {
		ctx, cancel := context.WithCancel(d.ctx)
		cancel()
		// With a context that is over this only closes the connection.
		_ = cr.Reject(ctx, private)
		return
	}
	d.run(func(ctx context.Context) {
		defer d.refused.leave()
		ctx, cancel := context.WithTimeout(ctx, rejectTime)
		defer cancel()
		// The peer may be gone; there is nobody else to tell.
		_ = cr.Reject(ctx, private)
	})
}

// dialMPA is the start-up of streams to and from a peer.
func dialMPA(p config.Peer) mpa.Config {
	var m mpa.Config
	if !p.CRC {
		m.CRC = mpa.CRCAvoid
	}
	if p.LargeFPDU {
		m.LargeFPDU = mpa.MaxLargeFPDU
	}
	return m
}

// listenMPA is the start-up of a stream from a peer. A stranger's goes as far
// as its request, to be refused in words.
func (d *Daemon) listenMPA(f transport.Flow, id transport.Identity) mpa.Config {
	if p, ok := d.peerFor(id, f.Remote.Addr()); ok {
		return dialMPA(p.cfg)
	}
	return mpa.Config{}
}

// dialTransport is the transport of streams to a peer.
func (p *peer) dialTransport(local netip.Addr) *transport.Config {
	return &transport.Config{Protector: p.protector, Local: local}
}

func streamID(id uint64) string {
	s := strconv.FormatUint(id, 16)
	return "0000000000000000"[len(s):] + s
}
