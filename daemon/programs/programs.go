package programs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	// maxSessions of one account: programs at a time.
	maxSessions = 256
	// admitTime bounds the admission of a flow: an SA may be made anew meanwhile.
	admitTime = 30 * time.Second
)

// Config is what programs need from the rest of the host.
type Config struct {
	Log       *slog.Logger
	Config    func() *config.Config
	Consumers *local.Consumers
	Protector transport.Protector
	// Check fails for an address that is no peer's, or a peer's that is blocked or not set up.
	Check func(netip.Addr) error
	// Peer finds the peer of an address.
	Peer func(netip.Addr) (config.Peer, bool)
	// Peers are all peers, by name.
	Peers func() map[string][]netip.Addr
	// MayUse fails unless a security label may use a partition; "" is the default label.
	MayUse func(label, partition string) error
	// Created is told of attempts at a stream by a peer that have failed.
	Created func(peer string, err error)
}

// Programs are the flows of all programs.
type Programs struct {
	cfg Config

	mu       sync.Mutex // guards the fields below it
	closing  bool
	sessions map[*session]struct{}
	flows    map[transport.Flow]*flow
	accounts map[string]*delegate.Account
}

// New returns no flows.
func New(cfg Config) *Programs {
	return &Programs{cfg: cfg, sessions: map[*session]struct{}{}, flows: map[transport.Flow]*flow{}, accounts: map[string]*delegate.Account{}}
}

// session is one program's connection.
type session struct {
	p       *Programs
	user    local.User
	name    string // of the program, as it calls itself
	serving *delegate.Serving

	telling sync.Mutex // held while terms are made and told; outermost

	mu  sync.Mutex // guards the fields below it; taken after Programs.mu
	who local.Caller
}

// flow is one that was admitted.
type flow struct {
	transport.Protection

	id       uint64
	s        *session
	ulp      string // "": root
	outgoing bool
	sock     *delegate.Socket
	since    time.Time
	release  func()
	once     sync.Once
	gone     chan struct{} // closed when it is released
}

// Release ends the protection of the flow.
func (f *flow) Release() {
	f.once.Do(func() {
		p := f.s.p
		p.mu.Lock()
		delete(p.flows, f.sock.Flow())
		p.mu.Unlock()
		f.Protection.Release()
		f.release()
		close(f.gone)
	})
}

// Serve answers a program until its connection, or ctx, ends. who.Requests is held by the caller.
func (p *Programs) Serve(ctx context.Context, conn *net.UnixConn, user local.User, who local.Caller) {
	s := &session{p: p, user: user, name: nameOf(user.PID), who: who}
	account := p.accountOf(who.Name)
	s.serving = delegate.NewServing(conn, s, account)
	if err := p.enter(s, account); err != nil {
		p.cfg.Log.Warn("a program is refused", "program", s.name, "pid", user.PID, "ulp", who.Name, "error", err)
		s.serving.Close()
		return
	}
	defer p.leave(s)
	stop := context.AfterFunc(ctx, func() { s.serving.Close() })
	defer stop()
	s.tellTerms()
	p.cfg.Log.Debug("a program has connected", "program", s.name, "pid", user.PID, "ulp", who.Name)
	if err := s.serving.Run(ctx, func() bool { return p.isClosing() || !endsWithSession() }); err != nil {
		p.cfg.Log.Warn("a program's connection is ended, and its streams", "program", s.name, "pid", user.PID, "ulp", who.Name, "error", err)
	}
}

func (p *Programs) accountOf(name string) *delegate.Account {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accounts[name] == nil {
		p.accounts[name] = new(delegate.Account)
	}
	return p.accounts[name]
}

// enter counts a session among those that Reconsider looks at, with the rights that its user has by now.
func (p *Programs) enter(s *session, account *delegate.Account) error {
	was := s.caller()
	consumer := was.Consumer
	p.mu.Lock()
	defer p.mu.Unlock()
	who, ok := p.cfg.Consumers.Identify(s.user)
	n := 0
	for o := range p.sessions {
		if o.caller().Consumer == consumer {
			n++
		}
	}
	switch {
	case p.closing:
		return net.ErrClosed
	case !ok || who.Consumer != consumer:
		return was.ErrRightsChanged()
	case account.IsFull():
		return errors.New("what programs of that account have handed over cannot be closed")
	case n >= maxSessions:
		return fmt.Errorf("%d programs of that account are connected, which is the most", n)
	}
	s.mu.Lock()
	s.who = who
	s.mu.Unlock()
	p.sessions[s] = struct{}{}
	return nil
}

func (p *Programs) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s)
}

func (p *Programs) isClosing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing
}

// Close ends the connections and leaves the flows to their programs, which declare them to the next daemon.
func (p *Programs) Close() {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	for _, s := range p.all() {
		s.serving.Close()
	}
}

func (p *Programs) all() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*session
	for s := range p.sessions {
		all = append(all, s)
	}
	return all
}

// nameOf is the name of a process, as it has given itself.
func nameOf(pid int32) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.TrimSuffix(string(b), "\n"))
}

// terms are what an account's programs may have.
func (p *Programs) terms(who local.Caller) delegate.Terms {
	t := delegate.Terms{Account: who.Name, Ports: []delegate.Ports{}, Listen: listens(who)}
	blocks := who.Declared().Ports
	if who.Privileged {
		blocks = nil
		for _, u := range p.cfg.Config().ULPs {
			blocks = append(blocks, u.Ports...)
		}
	}
	for _, b := range blocks {
		t.Ports = append(t.Ports, delegate.Ports{Low: b.First, High: b.Last(), UDP: b.UDP})
	}
	t.Peers = p.peersOf(who)
	slices.SortFunc(t.Ports, func(a, b delegate.Ports) int { return cmp.Compare(a.Low, b.Low) })
	return t
}

// tellTerms tells the program what it may have now. What it is told last is what it may have, whoever else tells it.
func (s *session) tellTerms() {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.serving.Tell(s.p.terms(s.caller()))
}

// peersOf are the addresses of peers with which an account's programs may have streams; nil: too many to tell.
func (p *Programs) peersOf(who local.Caller) []netip.Addr {
	out := []netip.Addr{}
	for name, at := range p.cfg.Peers() {
		if who.Privileged || slices.Contains(who.Declared().Peers, name) {
			out = append(out, at...)
		}
	}
	if len(out) > delegate.MaxPeers {
		return nil
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func listens(who local.Caller) bool { return who.Privileged || who.Declared().Listen }

// ownsPort reports whether an account's programs may have streams with a peer at a port, which that peer's SAs cover.
func ownsPort(who local.Caller, peer string, protocol transport.Protocol, port uint16) bool {
	u := who.Declared()
	return who.Privileged || slices.Contains(u.Peers, peer) && slices.ContainsFunc(u.Ports, func(b config.PortBlock) bool { return b.Carries(protocol, port) })
}

// Reconsider ends the flows that their accounts may not have any more, by the configuration as it is now, and tells the
// programs what they may have.
func (p *Programs) Reconsider() {
	for _, s := range p.all() {
		who, ok := p.cfg.Consumers.Identify(s.user)
		s.mu.Lock()
		same := ok && who.Consumer == s.who.Consumer
		if same {
			s.who = who
		}
		s.mu.Unlock()
		if !same {
			s.serving.Close()
			continue
		}
		s.serving.End(func(sock *delegate.Socket) error {
			f := sock.Flow()
			if _, err := s.decide(f, true); err == nil {
				return nil
			}
			_, err := s.decide(f, false)
			return err
		})
		s.tellTerms()
	}
}

// EndPeer ends the flows with a peer, by one of some addresses; nil: by any.
func (p *Programs) EndPeer(id transport.Identity, at []netip.Addr, why error) {
	p.endFlows(why, func(f *flow) bool {
		return f.Peer() == id && (at == nil || slices.Contains(at, f.sock.Flow().Remote.Addr()))
	})
}

// Kill ends a flow, and reports whether there is one of that number.
func (p *Programs) Kill(id uint64, why error) bool {
	return p.endFlows(why, func(f *flow) bool { return f.id == id })
}

// endFlows ends some flows, and reports whether there is one. It waits for programs to end associations, as long as they
// are given for that: whoever takes down a guard next finds them over.
func (p *Programs) endFlows(why error, which func(*flow) bool) bool {
	of := map[*session]map[*delegate.Socket]bool{}
	var slow []*flow
	for _, f := range p.allFlows() {
		if which(f) {
			if f.sock.Flow().Protocol == transport.ProtoUDP {
				slow = append(slow, f)
			}
			if of[f.s] == nil {
				of[f.s] = map[*delegate.Socket]bool{}
			}
			of[f.s][f.sock] = true
			f.sock.Finish() // its session may not have it yet
		}
	}
	for s, socks := range of {
		s.serving.End(func(sock *delegate.Socket) error {
			if socks[sock] {
				return why
			}
			return nil
		})
	}
	late := time.After(delegate.EndTime)
	for _, f := range slow {
		select {
		case <-f.gone:
		case <-late:
			return true
		}
	}
	return len(of) > 0
}

func (p *Programs) allFlows() []*flow {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.flows))
}

// Streams describes the flows. ID is a number that no other has, and Peer the peer's identity.
func (p *Programs) Streams() []Stream {
	out := []Stream{}
	for _, f := range p.allFlows() {
		o, i := f.sock.Bytes()
		if f.outgoing && f.sock.Flow().Protocol == transport.ProtoTCP {
			o -= min(o, 1) // its SYN
		}
		port := f.sock.Flow().Local.Port()
		if f.outgoing {
			port = f.sock.Flow().Remote.Port()
		}
		partition, label := f.s.partitionAt(f.sock.Flow().Protocol, port)
		out = append(out, Stream{Partition: partition, Label: label, ID: f.id, Peer: f.Peer(), ULP: f.ulp, Program: f.s.name, PID: f.s.user.PID, Flow: f.sock.Flow(), Protection: f.Kind(), Paused: f.Paused(), Since: f.since, BytesIn: i, BytesOut: o})
	}
	return out
}

// Stream is a flow of a program.
type Stream struct {
	ID                uint64
	Peer              transport.Identity
	ULP               string // "": root
	Partition, Label  string // "": of none
	Program           string // as it calls itself
	PID               int32
	Flow              transport.Flow
	Protection        string
	Paused            bool
	Since             time.Time
	BytesIn, BytesOut uint64 // of TCP by the kernel's count, of an association by the program's
}

func (s *session) caller() local.Caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.who
}

// decide finds the peer of a flow that the program may have.
func (s *session) decide(f transport.Flow, outgoing bool) (config.Peer, error) {
	who := s.caller()
	port := f.Local.Port()
	if outgoing {
		port = f.Remote.Port()
	}
	account := "root"
	if who.Name != "" {
		account = "ULP " + who.Name
	}
	refuse := func(format string, a ...any) (config.Peer, error) {
		return config.Peer{}, fmt.Errorf("%w: %s", transport.ErrNotProtected, fmt.Sprintf(format, a...))
	}
	peer, known := s.p.cfg.Peer(f.Remote.Addr())
	if !known || who.MayUse(peer.Name) != nil {
		return refuse("%s is not the address of a peer that %s may use", f.Remote.Addr(), account)
	}
	covers := func(port uint16) bool {
		return slices.ContainsFunc(peer.Programs, func(b config.PortBlock) bool { return b.Carries(f.Protocol, port) })
	}
	from := f.Remote.Port() // of one that was taken
	served := covers(from) && !mayUsePort(who, peer.Name, f.Protocol, from) || slices.Contains(servedBy(peer, f.Protocol), from)
	switch {
	case f.Protocol != transport.ProtoTCP && f.Protocol != transport.ProtoUDP:
		return refuse("programs have streams over TCP and SCTP in UDP, and this is %v", f.Protocol)
	case !covers(port) || !mayUsePort(who, peer.Name, f.Protocol, port):
		t := s.p.terms(who)
		return refuse("port %d%s is none of those that %s has with peer %s: %s", port, overWords(f.Protocol, t), account, peer.Name, portsOf(t.Ports))
	case !outgoing && !mayListen(who):
		return refuse("%s takes no connections: `ironwarp ulp set --listen` with its name allows it", account)
	case !outgoing && served && !who.Privileged: // the kernel does not tell who has dialled, and nobody dials from such a port
		return refuse("port %d of peer %s is dialled, and %s has none there", from, peer.Name, account)
	}
	return peer, s.inPartition(f.Protocol, port)
}

// overWords says what carries a stream, where a program has ports of another kind as well, or of that alone.
func overWords(p transport.Protocol, t delegate.Terms) string {
	if p == transport.ProtoUDP {
		return " over " + transport.SCTPUDP.String()
	}
	if len(t.Of(transport.ProtoUDP)) > 0 {
		return " over " + transport.TCP.String()
	}
	return ""
}

// servedBy are the ports at which a peer's daemon is dialled.
func servedBy(peer config.Peer, protocol transport.Protocol) (ports []uint16) {
	for _, q := range peer.Partitions {
		ports = append(ports, q.Port, q.ISCSIPort)
	}
	if protocol == transport.ProtoUDP {
		return append(ports, peer.UDPPort)
	}
	return append(ports, peer.Port, peer.ISCSIPort, peer.NVMePort)
}

// partitionAt is the partition of a port of programs, "": none, and the program's label there: that of the port's ULP, of its
// user's, or as the kernel reports it; "": the default one.
func (s *session) partitionAt(p transport.Protocol, port uint16) (name, label string) {
	u, _ := s.p.cfg.Config().ULPAt(p, port)
	if u.Partition == "" {
		return "", ""
	}
	return u.Partition, cmp.Or(u.Label, s.caller().Disks.Label(), s.user.Label)
}

// inPartition fails unless the label of a program may use the partition of a port.
func (s *session) inPartition(p transport.Protocol, port uint16) error {
	name, label := s.partitionAt(p, port)
	if name == "" {
		return nil
	}
	if err := mayUsePartition(s.p.cfg.MayUse, label, name); err != nil {
		return fmt.Errorf("%w: %w", transport.ErrNotProtected, err)
	}
	return nil
}

func portsOf(ports []delegate.Ports) string {
	if len(ports) == 0 {
		return "it has no ports; `ironwarp ulp add --ports` on both hosts declares some"
	}
	var words []string
	for _, p := range ports {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}

// LocalPorts implements delegate.Protector.
func (s *session) LocalPorts(ctx context.Context, f transport.Flow) (lo, hi uint16, err error) {
	if _, err := s.decide(f, true); err != nil {
		return 0, 0, err
	}
	if pc, ok := s.p.cfg.Protector.(transport.PortChooser); ok {
		return pc.LocalPorts(ctx, f)
	}
	return 0, 0, nil
}

// Prepare implements delegate.Protector.
func (s *session) Prepare(ctx context.Context, f transport.Flow) error {
	peer, err := s.decide(f, true)
	if err != nil {
		return err
	}
	return s.told(peer, s.p.cfg.Protector.Prepare(ctx, f))
}

// told is an error as the program's user may see it.
func (s *session) told(peer config.Peer, err error) error {
	who := s.caller()
	var quota *verbs.QuotaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &quota):
		if e := who.QuotaProblem(err); e != nil {
			return fmt.Errorf("%w: %s", delegate.ErrShort, e.Message)
		}
		return fmt.Errorf("%w: %w", delegate.ErrShort, err)
	case who.Privileged || errors.Is(err, context.Canceled):
		return err
	}
	shown := transport.ErrNotProtected
	if errors.Is(err, transport.ErrAway) {
		shown = transport.ErrAway
	}
	return fmt.Errorf("%w: %s", shown, who.Redact(peer.Name, &api.Error{Code: api.CodeUnavailable, Message: err.Error()}).Error())
}

// Admit implements delegate.Protector.
func (s *session) Admit(ctx context.Context, outgoing bool, sock *delegate.Socket) (transport.Protection, error) {
	f := sock.Flow()
	peer, err := s.decide(f, outgoing)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, admitTime)
	defer cancel()
	prot, err := s.admit(ctx, outgoing, sock)
	if err != nil {
		s.p.cfg.Log.Warn("a program's stream is refused", "program", s.name, "pid", s.user.PID, "ulp", s.caller().Name, "peer", peer.Name, "flow", f, "error", err)
		if !outgoing && believes(s.caller()) {
			s.p.cfg.Created(peer.Name, err)
		}
		return nil, s.told(peer, err)
	}
	// A peer that was cut off meanwhile has been searched for its flows.
	if _, err := s.decide(f, outgoing); err != nil {
		prot.Release()
		return nil, err
	}
	if err := s.p.cfg.Check(f.Remote.Addr()); err != nil {
		prot.Release()
		return nil, s.told(peer, err)
	}
	return prot, nil
}

func (s *session) admit(ctx context.Context, outgoing bool, sock *delegate.Socket) (*flow, error) {
	f := sock.Flow()
	prot, err := s.p.cfg.Protector.Admit(ctx, f, outgoing, sock.Monitored())
	if err != nil {
		return nil, err
	}
	who := s.caller()
	release := func() {}
	if counts(who.Disks) {
		if release, err = who.Disks.ChargeStream(prot.Peer()); err != nil {
			prot.Release()
			return nil, err
		}
	}
	out := &flow{Protection: prot, id: number(), s: s, ulp: who.Name, outgoing: outgoing, sock: sock, since: time.Now(), release: release, gone: make(chan struct{})}
	s.p.mu.Lock()
	_, known := s.p.flows[f]
	if !known {
		s.p.flows[f] = out
	}
	s.p.mu.Unlock()
	if known {
		prot.Release()
		release()
		return nil, fmt.Errorf("%w: the flow %s was admitted already", transport.ErrNotProtected, f)
	}
	return out, nil
}

func number() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
