package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/capture"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/export"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/manage"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// rejectTime bounds telling a peer that it is refused.
const rejectTime = 5 * time.Second

// openRNIC opens the device and the services that peers reach through it.
func (d *Daemon) openRNIC() error {
	var err error
	if d.dev, err = verbs.Open(verbs.Config{Limits: d.config().Limits.Device, Peer: d.config().Limits.PerPeer, Partitions: &d.partitions}); err != nil {
		return err
	}
	d.captures = capture.New(d.dev.Tap())
	if err := d.registerServices(); err != nil {
		return err
	}
	d.probes = probe.NewServer(d.ulps[config.ServicePing], d.log)
	d.targets = d.newTargets()
	d.subsystems = d.newSubsystems()
	d.programs = d.newPrograms()
	d.directory = d.newDirectory()
	d.exports = export.New(export.Config{
		LUNOpened: d.openedForTargets, LUNClosing: d.closingForTargets, Resized: d.resizedForTargets,
		Log: d.log, StateDir: d.config().StateDir, Closing: d.opt.closing, Identities: d.allowedIdentities, EndStreams: d.abortStreams, Offered: d.endOvertrusted, NameOf: d.peers.nameOf,
		Trust: func(e config.Export) verbs.TrustModel { return d.config().ExportTrust(e).Model() },
	})
	if err := d.openVolumes(); err != nil {
		return err
	}
	d.sessions, err = rtrs.NewServer(rtrs.ServerConfig{
		ULP: d.ulps[config.ServiceExports], QueueDepth: d.config().Limits.QueueSize, MaxSessionsPerPeer: d.config().Limits.Sessions,
		MaxSessions: d.config().Limits.AllSessions,
		NewSession:  d.exports.Server().NewSession, TrustOf: d.trustOf, HeartbeatOf: d.heartbeatOf, TrustsClient: d.leavesChunksOpen, Logger: d.log,
	})
	return err
}

// heartbeatOf is how paths of a peer's sessions are watched.
func (d *Daemon) heartbeatOf(id transport.Identity) rtrs.HeartbeatConfig {
	if p := d.peers.byIdentity(id); p != nil {
		return p.cfg.Heartbeat
	}
	return rtrs.HeartbeatConfig{}
}

// leavesChunksOpen reports whether a peer's requests stay open to it while they are carried out.
func (d *Daemon) leavesChunksOpen(id transport.Identity) bool {
	p := d.peers.byIdentity(id)
	return p != nil && p.cfg.OpenChunks
}

// accept hands each stream that a peer asks for to the service that it is for.
func (d *Daemon) accept(ln *verbs.Listener) {
	d.run(func(ctx context.Context) {
		for {
			cr, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			d.dispatch(cr)
		}
	})
}

func (d *Daemon) dispatch(cr *verbs.ConnRequest) {
	private := cr.PrivateData()
	p, known := d.peers.ofStream(cr.Peer(), cr.Flow().Remote.Addr())
	var blocked error
	if known {
		d.blocks.Created(p.cfg.Name, nil)
		blocked = d.blocks.Blocked(p.cfg.Name)
	}
	switch {
	case !known:
		d.refuse(cr, probe.AppendUnknownPeer(nil), fmt.Errorf("%s at %s is not a configured peer", cr.Peer(), cr.Flow().Remote.Addr()))
	case blocked != nil:
		d.refuse(cr, nil, blocked)
	case probe.IsHello(private):
		d.answerHello(cr, transportAt(p.cfg, cr.Flow().Remote.Addr()))
	case d.directory.Drained() && rtrs.IsRequest(private):
		d.refuse(cr, d.sessions.Refusal(syscall.ESHUTDOWN), errDrained)
	case d.directory.Drained() && !gsi.IsRequest(private):
		d.refuse(cr, probe.AppendDrained(nil), errDrained)
	case manage.IsRequest(private):
		d.managed.Handle(cr, d.mayManageAny(p.cfg))
	case probe.IsRequest(private):
		d.probes.Handle(cr)
	case gsi.IsRequest(private):
		d.acceptFabric(cr, p)
	case rtrs.IsRequest(private):
		d.sessions.Handle(cr)
	default:
		d.refuse(cr, nil, errors.New("the private data names no service of this host"))
	}
}

// refuse rejects a stream without holding up the listener.
func (d *Daemon) refuse(cr *verbs.ConnRequest, private []byte, why error) {
	d.refused.add(d.log, d.peers.nameOrIdentity(cr.Peer()), cr.Flow(), why)
	d.reject(cr, private)
}

// reject is refuse that neither counts nor logs.
func (d *Daemon) reject(cr *verbs.ConnRequest, private []byte) {
	select {
	case d.refused.rejecting <- struct{}{}:
	default:
		ctx, cancel := context.WithCancel(d.ctx)
		cancel()
		// With a context that is over this only closes the connection.
		_ = cr.Reject(ctx, private)
		return
	}
	d.run(func(ctx context.Context) {
		defer func() { <-d.refused.rejecting }()
		ctx, cancel := context.WithTimeout(ctx, rejectTime)
		defer cancel()
		// The peer may be gone; there is nobody else to tell.
		_ = cr.Reject(ctx, private)
	})
}

// listenSetup is the start-up of a stream from a peer. One of an unknown host goes as far as
// its request, to be refused with a reason.
func (d *Daemon) listenSetup(f transport.Flow, id transport.Identity) verbs.Setup {
	if p, ok := d.peers.ofStream(id, f.Remote.Addr()); ok {
		return p.cfg.Setup()
	}
	return verbs.Setup{}
}

func streamID(id uint64) string {
	s := strconv.FormatUint(id, 16)
	return "0000000000000000"[len(s):] + s
}

// answerHello tells a peer which carriers this host awaits it with.
func (d *Daemon) answerHello(cr *verbs.ConnRequest, of config.Transport) {
	var have probe.Transports
	for _, k := range d.listeners.Kinds(of) {
		have = have.With(k)
	}
	d.reject(cr, probe.AppendHello(nil, have))
}

// listenAt begins to listen for peers, for streams of a partition or of none.
func (d *Daemon) listenAt(ctx context.Context, at netip.AddrPort, partition string, tc *transport.Config) (*verbs.Listener, error) {
	tc.Protector, tc.OnRefused, tc.OnPath = transport.PerPeer(d.protectorFor), d.onRefused, d.carriers.OnPath
	return d.dev.Listen(ctx, at, verbs.ListenConfig{Transport: tc, PeerSetup: d.listenSetup, OnFailed: d.onRefused,
		Partition: partition, Label: func() string { return d.config().ServiceLabel(config.ServiceExports) }, Stays: d.stays})
}

// stays fails for a stream of a peer that was removed or blocked while the stream was being accepted, when nobody could find it to end it.
func (d *Daemon) stays(f transport.Flow, id transport.Identity) error {
	p, ok := d.peers.ofStream(id, f.Remote.Addr())
	if !ok {
		return fmt.Errorf("%s at %s is not a configured peer any more", id, f.Remote.Addr())
	}
	return d.blocks.Blocked(p.cfg.Name)
}

// awaitedPeers are the peers of a configuration, which may be about to be applied.
func (d *Daemon) awaitedPeers(next *config.Config) (all []listen.Awaited) {
	for _, c := range next.Peers {
		if c.Unresolved() {
			continue
		}
		local := c.LocalAddress
		if p := d.peers.byName(c.Name); p != nil && c.SameEndpoints(p.cfg) {
			local = p.localAddr()
		}
		if !local.IsValid() {
			local, _ = listen.LocalAddr(c.Address) // without a route nobody comes
		}
		all = append(all, listen.Awaited{Peer: c, Local: local})
		for _, q := range c.Paths {
			all = append(all, listen.Awaited{Peer: c.ViaPath(q), Local: q.LocalAddress})
		}
	}
	return all
}

// refusals counts connections that were turned away.
type refusals struct {
	rejecting chan struct{} // a token for each peer that is being told

	mu   sync.Mutex // guards the fields below it
	n    uint64
	last string
	fix  string // what to do about the last, if it is known
}

// maxRejecting bounds the goroutines that tell peers that they are refused.
const maxRejecting = 32

// add counts and logs a connection that was turned away. peer is who has its
// address, "" if nobody has.
func (r *refusals) add(log *slog.Logger, peer string, f transport.Flow, err error) {
	reason, fix := sas.AdviceOf(err)
	r.mu.Lock()
	r.n++
	r.last, r.fix = fmt.Sprintf("%s: %v", f.Remote, err), fix
	n := r.n
	r.mu.Unlock()
	attrs := []any{"peer", peer, "flow", f.String(), "error", err, "refused_so_far", n}
	if reason != "" {
		attrs = append(attrs, "reason", reason)
	}
	if fix != "" {
		attrs = append(attrs, "advice", fix)
	}
	log.Warn("connection refused", attrs...)
}

func (r *refusals) summary() (n uint64, last, fix string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n, r.last, r.fix
}

// onRefused counts a flow that was refused before its service was known, or that failed in its
// start-up.
func (d *Daemon) onRefused(f transport.Flow, err error) {
	name := ""
	if p := d.peers.byAddress(f.Remote.Addr()); p != nil {
		name = p.cfg.Name
		d.blocks.Created(name, err)
	}
	d.refused.add(d.log, name, f, err)
}
