package sctp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Endpoint is an SCTP endpoint on a UDP socket, with any number of associations.
type Endpoint struct {
	cfg     atomic.Pointer[map[netip.Addr]*Config] // by local address
	sock    carrier
	start   time.Time
	window  int // for Config.RecvWindow 0
	blocks  blockPool
	senders senderPool
	signer  signer

	accepted chan *Assoc
	closed   chan struct{}
	stop     sync.Once
	wg       sync.WaitGroup

	mu     sync.RWMutex // guards the fields below it
	over   bool         // no association begins any more
	byTag  map[uint32]*Assoc
	byAddr map[addrKey]*Assoc
	ending map[*Assoc]bool // out of the other maps, and not over: their Receivers are being told

	counts counters
}

// addrKey identifies an association by addresses. RFC 6951 section 5.4 ignores the UDP
// port; here it is included to distinguish peers behind one NAT with the same SCTP port.
// A peer whose UDP port changes is found by its Verification Tag.
type addrKey struct {
	remote      netip.AddrPort
	local, peer uint16 // SCTP ports
}

// ErrNotAdmitted wraps the error of Config.Admit.
var ErrNotAdmitted = errors.New("the address is not admitted")

// EndpointStats counts since the endpoint began.
type EndpointStats struct {
	BadPackets  uint64 // too short, or with a wrong checksum
	Strays      uint64 // packets of no association (RFC 9260 section 8.4)
	NotAdmitted uint64 // strays from addresses that Config.Admit refuses
	Inits       uint64 // INITs answered
	Excess      uint64 // strays dropped unseen because there were too many
	BadCookies  uint64 // COOKIE ECHOs with a cookie that is not ours or has expired
	NoRoom      uint64 // associations refused because too many others wait for Accept or exist
	Assocs      int    // current associations
}

type counters struct {
	bad, strays, notAdmitted, excess, inits, badCookies, noRoom atomic.Uint64
}

// Listen makes an Endpoint on conn, which it then owns, even if it fails. Of a
// *net.UDPConn it uses the kernel's calls for many packets at once. Another PacketConn, for
// example in memory for tests, has one address, which is a *net.UDPAddr, as are those of its
// packets, and loses what is longer than its path carries. Listen fails for an impossible
// Config and with the kernel's error.
func Listen(conn net.PacketConn, cfg Config) (*Endpoint, error) {
	err := cfg.check()
	var sock carrier
	if err == nil {
		sock, err = newCarrier(conn, cfg.NoOffload)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return newEndpoint(sock, cfg), nil
}

func newCarrier(conn net.PacketConn, plain bool) (sock carrier, err error) {
	if udp, ok := conn.(*net.UDPConn); ok {
		sock, err = newSocket(udp, plain)
	} else {
		sock, err = newPacketConn(conn)
	}
	if err != nil {
		return nil, fmt.Errorf("sctp: prepare the UDP socket %v: %w", conn.LocalAddr(), err)
	}
	return sock, nil
}

// carrier carries packets: a UDP socket, or another net.PacketConn.
type carrier interface {
	// send sends the packets of s.batch from s.from to one address.
	send(to netip.AddrPort, s *sender) error
	// read reads until close, and hands packets to r.
	read(r *demux) error
	local() netip.AddrPort
	recvBuffer() int // in bytes
	// mtu returns the MTU of the route in bytes, 0 if unknown. local may be invalid.
	mtu(local netip.Addr, remote netip.AddrPort) int
	close()
}

func newEndpoint(sock carrier, cfg Config) *Endpoint {
	e := &Endpoint{
		sock:     sock,
		start:    time.Now(),
		window:   min(max(sock.recvBuffer()/2, minWindow), maxWindow),
		accepted: make(chan *Assoc, cfg.Params.Filled().Backlog),
		closed:   make(chan struct{}),
		byTag:    make(map[uint32]*Assoc),
		byAddr:   make(map[addrKey]*Assoc),
		ending:   make(map[*Assoc]bool),
		signer:   signer{random: randomBytes},
	}
	e.cfg.Store(&map[netip.Addr]*Config{{}: &cfg})
	e.wg.Go(func() {
		if err := sock.read(newDemux(e)); err != nil {
			e.failAll(err)
		}
	})
	return e
}

func randomBytes(b []byte) {
	rand.Read(b) // never fails
}

func random32() uint32 {
	var b [4]byte
	randomBytes(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// randomTag returns a Verification Tag (RFC 9260 section 5.3.1).
func randomTag() uint32 {
	for {
		if t := random32(); t != 0 {
			return t
		}
	}
}

// now reads the endpoint's clock, which starts above 0.
func (e *Endpoint) now() time.Duration { return time.Since(e.start) + 1 }

// localAddr returns the UDP address of this end: a, or the socket's if a is invalid.
func (e *Endpoint) localAddr(a netip.Addr) netip.AddrPort {
	own := e.sock.local()
	if a.IsValid() {
		return netip.AddrPortFrom(a, own.Port())
	}
	return own
}

// Addr returns the UDP address of the endpoint.
func (e *Endpoint) Addr() netip.AddrPort { return e.sock.local() }

// Stats returns the counts as of now.
func (e *Endpoint) Stats() EndpointStats {
	e.mu.RLock()
	n := len(e.byTag)
	e.mu.RUnlock()
	c := &e.counts
	return EndpointStats{
		BadPackets:  c.bad.Load(),
		Strays:      c.strays.Load(),
		NotAdmitted: c.notAdmitted.Load(),
		Excess:      c.excess.Load(),
		Inits:       c.inits.Load(),
		BadCookies:  c.badCookies.Load(),
		NoRoom:      c.noRoom.Load(),
		Assocs:      n,
	}
}

// Reconfigure sets how associations begin from now on, and who may set them up, for each
// local address. The zero Addr stands for every address without a Config of its own.
// Packets to addresses without a Config are ignored unless they belong to an existing
// association. Backlog and NoOffload stay as they are. It fails for an impossible Config,
// and then changes nothing.
func (e *Endpoint) Reconfigure(at map[netip.Addr]Config) error {
	all := make(map[netip.Addr]*Config, len(at))
	for a, cfg := range at {
		if err := cfg.check(); err != nil {
			return err
		}
		all[a.Unmap()] = &cfg
	}
	e.cfg.Store(&all)
	return nil
}

// config returns the Config for a local address, nil if there is none.
func (e *Endpoint) config(local netip.Addr) *Config {
	all := *e.cfg.Load()
	if cfg := all[local]; cfg != nil {
		return cfg
	}
	return all[netip.Addr{}]
}

func (c *Config) admit(local, remote netip.AddrPort, outgoing bool) error {
	if c == nil || c.Admit == nil {
		return fmt.Errorf("%w: Config.Admit is not set", ErrNotAdmitted)
	}
	if err := c.Admit(local, remote, outgoing); err != nil {
		return fmt.Errorf("%w: %w", ErrNotAdmitted, err)
	}
	return nil
}

// DialConfig configures Dial.
type DialConfig struct {
	// Receiver makes the Receiver of the association, as Config.Accept does.
	Receiver func(*Assoc) assoc.Receiver

	RemotePort uint16 // the peer's SCTP port, 0 for 9899
	LocalPort  uint16 // our SCTP port, 0 for a free one
}

// Dial sets up an association with the endpoint at the UDP address remote and waits until
// it is established (RFC 9260 section 5.1). Errors are *assoc.Error.
func (e *Endpoint) Dial(ctx context.Context, remote netip.AddrPort, d DialConfig) (*Assoc, error) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	fail := func(err error) (*Assoc, error) {
		return nil, &assoc.Error{Op: "dial", Remote: remote, Err: err}
	}
	if d.Receiver == nil {
		return fail(errors.New("DialConfig.Receiver is not set"))
	}
	if !remote.IsValid() || remote.Port() == 0 {
		return fail(errors.New("the UDP address or port is missing"))
	}
	cfg := e.config(e.sock.local().Addr())
	if err := cfg.admit(e.sock.local(), remote, true); err != nil {
		return fail(err)
	}
	s := e.settings(cfg, remote.Addr(), e.sock.mtu(netip.Addr{}, remote))
	s.peerPort, s.localPort = or(d.RemotePort, DefaultPort), d.LocalPort
	a, err := e.lockNew(cfg, netip.Addr{}, remote, s, d.LocalPort == 0)
	if err != nil {
		return fail(err)
	}
	a.t.associate(e.now()) // one that has not begun would pass for one that has ended
	a.delivering = true    // not before there is a Receiver
	a.mu.Unlock()
	recv := d.Receiver(a)
	a.mu.Lock()
	a.recv, a.delivering = recv, false
	a.deliverAndUnlock(false)
	select {
	case <-a.up:
		return a, nil
	case <-a.done:
		// A handshake may be over so fast that both channels are closed.
		select {
		case <-a.up:
			return a, nil
		default:
		}
		return fail(a.err)
	case <-ctx.Done():
		a.Abort("the dialer has given up")
		return fail(a.gaveUp(ctx.Err()))
	}
}

// settings returns the settings of a new association, with random tags.
func (e *Endpoint) settings(cfg *Config, remote netip.Addr, route int) settings {
	s := cfg.settings(remote, or(cfg.RecvWindow, e.window), route)
	s.localTag, s.localTSN = randomTag(), random32()
	s.localTie, s.peerTie = randomTag(), randomTag()
	s.jitter = random32
	s.blocks = &e.blocks
	return s
}

// lockNew adds a new association to the maps and returns it locked. If anyPort, it chooses
// a free local port.
func (e *Endpoint) lockNew(cfg *Config, local netip.Addr, remote netip.AddrPort, s settings, anyPort bool) (*Assoc, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return nil, net.ErrClosed
	}
	if len(e.byTag) >= maxAssocs {
		return nil, errors.New("this endpoint has too many associations")
	}
	for try := 0; ; try++ {
		if anyPort {
			s.localPort = 49152 + uint16(random32()%(1<<14))
		}
		if e.byAddr[addrKey{remote, s.localPort, s.peerPort}] == nil {
			break
		}
		if !anyPort || try == 1<<10 {
			return nil, fmt.Errorf("there is an association from SCTP port %d to port %d already", s.localPort, s.peerPort)
		}
	}
	if e.byTag[s.localTag] != nil {
		return nil, errors.New("two associations have drawn the same tag: try again")
	}
	a := lockedAssoc(e, cfg, local, remote, s)
	e.byTag[s.localTag] = a
	e.byAddr[a.key] = a
	return a, nil
}

// shut lets no association begin any more, and returns those that are not over.
func (e *Endpoint) shut() []*Assoc {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	return slices.AppendSeq(slices.Collect(maps.Values(e.byTag)), maps.Keys(e.ending))
}

// Accept waits for the next association that a peer has set up and that has not ended
// yet. After Close it returns net.ErrClosed.
func (e *Endpoint) Accept(ctx context.Context) (*Assoc, error) {
	for {
		select {
		case a := <-e.accepted:
			select {
			case <-a.done: // its Receiver knows
				continue
			default:
				return a, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.closed:
			return nil, fmt.Errorf("sctp: accept on %v: %w", e.Addr(), net.ErrClosed)
		}
	}
}

// Close aborts all associations, closes the socket and waits until no goroutine of the
// endpoint is left. It is idempotent. A Receiver must not call it.
func (e *Endpoint) Close() error {
	e.stop.Do(func() {
		all := e.shut()
		for _, a := range all {
			a.Abort("the endpoint is closed")
		}
		close(e.closed)
		e.sock.close()
		for _, a := range all {
			<-a.done
		}
	})
	e.wg.Wait()
	return nil
}
