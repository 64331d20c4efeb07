package directory

import (
	"context"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/verbs"
)

// keeper keeps the directory: the hosts that have a stream with this one, and the SA that they ask.
type keeper struct {
	d        *Directory
	plan     *Plan
	settings atomic.Pointer[conf.Config]
	call     *calls        // requests of hosts' agents
	joined   chan struct{} // capacity 1: there is another host, or this has become the master

	wg sync.WaitGroup // the hosts' goroutines

	managing sync.Mutex   // held while hosts get keys; outermost
	rotated  *conf.Config // these settings have another m_key than their file; guarded by managing

	keysMu   sync.Mutex // guards the field below it; innermost
	portKeys *conf.PortKeys

	mu       sync.Mutex      // guards the fields below it
	ctx      context.Context // ends with run; nil before it
	sa       *sa.Server
	hosts    map[mad.GUID]*host
	traps    map[mad.GUID]*rate.Bucket // of hosts, also of those that are away: a new stream is no new allowance
	fresh    map[mad.GUID]bool         // hosts whose agents have not been looked at since they came, or the settings changed
	endRound func()                    // ends what gives hosts the keys of the settings that it has begun with
	ended    bool
}

// host is one that has a stream with this one, or this host itself.
type host struct {
	*port
	Manager
	lid mad.LID
}

// newKeeper makes a directory without hosts. It fails as conf.LoadPortKeys does.
func newKeeper(d *Directory, plan *Plan) (*keeper, error) {
	k := &keeper{d: d, plan: plan, call: newCalls(), joined: make(chan struct{}, 1), hosts: map[mad.GUID]*host{}, traps: map[mad.GUID]*rate.Bucket{}, fresh: map[mad.GUID]bool{}, endRound: func() {}}
	s := plan.Settings
	k.settings.Store(s)
	var err error
	if k.portKeys, err = conf.LoadPortKeys(filepath.Join(plan.StateDir, "fabric-ports.key")); err != nil {
		return nil, err
	}
	k.sa = sa.New(sa.Config{
		GUID: plan.Self.GUID, Key: s.Keys.SA(), Options: options(s.Options), Priority: s.SMPriority,
		Reserved: d.reserved,
		Log:      func(x sa.Drop) { d.cfg.Log.Warn("fabric: a request was dropped", "drop", x.String()) },
		Activity: d.cfg.Dropped,
	})
	return k, nil
}

// run works until ctx ends, and then waits until its hosts' streams have ended.
func (k *keeper) run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	k.wg.Go(func() { k.manageAll(ctx) })
	for t := range rate.Ticks(ctx, time.Second) {
		k.mu.Lock()
		out := k.sa.Tick(t)
		maps.DeleteFunc(k.traps, func(_ mad.GUID, b *rate.Bucket) bool { return b.Full(trapLimit, t) })
		k.mu.Unlock()
		k.deliver(out)
	}
	k.mu.Lock()
	k.ended = true
	k.mu.Unlock()
	k.wg.Wait()
}

// renew applies other settings: to the requests from now on, and to the keys of all hosts.
func (k *keeper) renew(s *conf.Config) {
	k.settings.Store(s)
	k.mu.Lock()
	k.sa.Configure(options(s.Options), s.Keys.SA(), s.SMPriority)
	for guid := range k.hosts {
		k.fresh[guid] = true
	}
	k.endRound()
	k.mu.Unlock()
	k.look()
}

// attach makes this host itself one of the directory's.
func (k *keeper) attach(p *port) {
	k.join(&host{port: p, Manager: Manager{Identity: k.plan.Self.Identity, GUID: k.plan.Self.GUID}})
}

// handle takes the stream that a peer has asked for.
func (k *keeper) handle(cr *verbs.ConnRequest, ulp *verbs.ULP, peer Manager) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended || k.ctx == nil {
		go gsi.Refuse(cr)
		return
	}
	ctx := k.ctx
	k.wg.Go(func() { k.serve(ctx, cr, ulp, peer) })
}

// serve has a host in the directory for as long as its stream lives.
func (k *keeper) serve(ctx context.Context, cr *verbs.ConnRequest, ulp *verbs.ULP, peer Manager) {
	h := &host{port: newPort(peer.GUID), Manager: peer}
	l, err := gsi.Accept(ctx, ulp, cr, h.port)
	if err != nil {
		k.d.cfg.Log.Warn("fabric: no stream with a host", "peer", peer.Peer, "error", err)
		return
	}
	h.link = l
	if k.join(h) {
		h.run(ctx, func(packet mad.Packet) { k.receive(h.GUID, packet) })
		k.leave(h)
	} else {
		l.Close()
	}
}

// join has a host in the directory, in place of an earlier stream of it. It reports whether there was room.
func (k *keeper) join(h *host) bool {
	k.mu.Lock()
	before := k.hosts[h.GUID]
	lid, out, err := k.sa.PortUp(time.Now(), sa.Port{GUID: h.GUID, Name: h.Peer, Router: k.plan.routes(h.GUID)})
	if err == nil {
		h.lid = lid
		k.hosts[h.GUID], k.fresh[h.GUID] = h, true
	}
	k.mu.Unlock()
	if err != nil {
		k.d.cfg.Log.Warn("fabric: a host is not taken into the directory", "peer", h.Peer, "error", err)
		return false
	}
	if before != nil && before.link != nil {
		before.link.QP().Abort(errReplaced)
	}
	k.deliver(out)
	k.look()
	return true
}

// look has the agents of hosts that have come looked at soon.
func (k *keeper) look() {
	select {
	case k.joined <- struct{}{}:
	default:
	}
}

// leave takes a host out, unless another stream of it has come.
func (k *keeper) leave(h *host) {
	k.mu.Lock()
	var out []sa.Outgoing
	if k.hosts[h.GUID] == h {
		delete(k.hosts, h.GUID)
		out = k.sa.PortDown(time.Now(), h.GUID)
	}
	k.mu.Unlock()
	k.deliver(out)
}

// deliver sends what the SA has for hosts.
func (k *keeper) deliver(out []sa.Outgoing) {
	if len(out) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range out {
		if h := k.hosts[out[i].To]; h != nil {
			h.answer(out[i].Packet)
		}
	}
}

// answer has a packet sent to the host; to this host itself it is received.
func (h *host) answer(packet mad.Packet) {
	if h.link == nil {
		h.put(h.in, packet)
		return
	}
	h.send(packet)
}

// receive deals with a message of a host.
func (k *keeper) receive(from mad.GUID, packet mad.Packet) {
	k.mu.Lock()
	h := k.hosts[from]
	k.mu.Unlock()
	if h == nil {
		return
	}
	head := packet.MAD.Header()
	switch {
	case head.Class == mad.ClassSubnAdm:
		if !k.d.manages().isMaster() {
			return // as on InfiniBand, where the standby's SA is silent
		}
		k.mu.Lock()
		out := k.sa.Handle(time.Now(), sa.Requester{GUID: from}, packet)
		k.mu.Unlock()
		k.deliver(out)
	case head.Class != mad.ClassSubn:
	case head.Method.Response():
		k.call.take(h.port, &packet.MAD)
	case head.Method == mad.MethodTrap && head.Attribute == mad.AttrNotice:
		k.trap(h, packet)
	default:
		if answer, ok := k.d.manages().handle(k.requester(h), &packet); ok {
			h.answer(k.packet(h, answer))
		}
	}
}

// trap forwards an event that a host tells of: of itself alone, and not too many.
func (k *keeper) trap(h *host, packet mad.Packet) {
	smp, err := mad.ParseSMP(&packet.MAD)
	if err != nil {
		return
	}
	n, err := mad.ParseNotice(smp.Data[:])
	if err != nil || !ofItself(&n, h.GUID) {
		return
	}
	if _, err := n.MKey(); err == nil {
		if answer, ok := k.d.manages().trap(k.requester(h), &smp); ok {
			h.answer(k.packet(h, answer))
		}
	}
	k.mu.Lock()
	var out []sa.Outgoing
	if k.hosts[h.GUID] == h && k.mayTellLocked(h.GUID, time.Now()) {
		n.IssuerGID, n.IssuerLID = gid(h.GUID), h.lid
		out = k.sa.Announce(time.Now(), n)
	}
	k.mu.Unlock()
	k.deliver(out)
}

// mayTellLocked reports whether a host may tell of one more event.
func (k *keeper) mayTellLocked(host mad.GUID, now time.Time) bool {
	b := k.traps[host]
	if b == nil {
		b = &rate.Bucket{}
		k.traps[host] = b
	}
	return b.Take(trapLimit, now)
}

// trapLimit bounds the events that one host may have forwarded.
var trapLimit = rate.Limit{PerSecond: trapRate, Burst: trapBurst}

// requester is a host as its stream was authenticated.
func (k *keeper) requester(h *host) agent.Requester {
	return agent.Requester{Name: h.Identity, GUID: h.GUID, LID: h.lid, Manager: k.plan.manages(h.GUID)}
}

// errReplaced ends a host's earlier stream.
var errReplaced = errors.New("directory: the host has another stream with this manager now")

// isOfItself reports whether a notice is about what its sender has: a path of its own, or its own keys. What becomes of services the directory knows by
// itself.
func isOfItself(n *mad.Notice, host mad.GUID) bool {
	if d, err := n.Path(); err == nil {
		return d.SGID == gid(host)
	}
	_, err := n.MKey()
	return err == nil
}

// manages reports whether a host is a manager.
func (p *Plan) manages(host mad.GUID) bool {
	return slices.ContainsFunc(p.Managers, func(m Manager) bool { return m.GUID == host })
}

// routes reports whether a host is a relay.
func (p *Plan) routes(host mad.GUID) bool { return slices.Contains(p.Routers, host) }

// options are those of the SA.
func options(o conf.Options) sa.Options {
	return sa.Options{
		EnhancedTrustModel: o.SAEnhancedTrustModel, AllowUntrustedGUIDInfoRec: o.SAETMAllowUntrustedGUIDInfoRec,
		AllowGUIDInfoRecByVF: o.SAETMAllowGUIDInfoRecByVF, AllowUntrustedProxyRequests: o.SAETMAllowUntrustedProxyRequests,
		MaxNumMCGs: most(o.SAETMMaxNumMCGs), MaxNumSrvcs: most(o.SAETMMaxNumSrvcs), MaxNumEventSubs: most(o.SAETMMaxNumEventSubs),
		CheckSGIDSpoofing: o.SACheckSGIDSpoofing,
	}
}

// most is a limit in the size that the engine has: more than there may be in any case.
func most(n uint32) int { return int(min(n, math.MaxInt32)) }

// reserved reports whether a GUID is of those of a peer, which nobody else gets as an alias.
func (d *Directory) reserved(g mad.GUID) bool {
	return slices.ContainsFunc(d.cfg.Hosts(), func(h mad.GUID) bool { return h&ownRange == g&ownRange })
}
