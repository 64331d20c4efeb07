package ksctp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	lksctp "github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

const (
	optPathParams = lksctp.SCTP_PEER_ADDR_PARAMS
	statusLen     = 176 // struct sctp_status
	paddrinfoLen  = 152 // struct sctp_paddrinfo
	statsLen      = 256 // struct sctp_assoc_stats
)

// status is struct sctp_status (RFC 6458 section 8.2.1). It is an error when the
// kernel has no association any more.
func (a *Assoc) status() (b [statusLen]byte, err error) {
	err = control(a.conn, func(fd int) error {
		_, err := getOption(fd, unix.IPPROTO_SCTP, lksctp.SCTP_STATUS, b[:])
		return err
	})
	return b, err
}

// refresh asks how long a message may be.
func (a *Assoc) refresh() error {
	b, err := a.status()
	if err != nil {
		return fmt.Errorf("ask for the association's status: %w", err)
	}
	a.max.Store(int64(native.Uint32(b[20:])))
	a.asked.Store(time.Now().UnixNano())
	return nil
}

// refreshIfOld does so when what is known is old; a.mu is held.
func (a *Assoc) refreshIfOld() {
	if time.Now().UnixNano()-a.asked.Load() > int64(refreshEvery) && !a.ending {
		_ = a.refresh() // what else is wrong shows in sending
	}
}

// queuedMemory is how much of a socket's send buffer is in use, in bytes.
func queuedMemory(fd int) (int, error) {
	var b [36]byte // SK_MEMINFO_VARS of linux/sock_diag.h
	n, err := getOption(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, b[:])
	if err == nil && n < 24 {
		err = errors.New("SO_MEMINFO is short")
	}
	return int(native.Uint32(b[20:])), err // SK_MEMINFO_WMEM_QUEUED
}

// setEvent has a kind of notification sent or not (RFC 6458 section 6.2.2).
func setEvent(fd int, kind uint16, on bool) error {
	b := make([]byte, 8)
	native.PutUint16(b[4:], kind)
	if on {
		b[6] = 1
	}
	return setOption(fd, optEvent, b)
}

// PathState is how a path is (RFC 9260 section 5.4 and 8.2).
type PathState uint8

// The states of a path.
const (
	PathDown        PathState = 0 // it has not answered for long
	PathFailing     PathState = 1 // it did not answer last (RFC 7829)
	PathUp          PathState = 2
	PathUnconfirmed PathState = 3 // it has never answered, and carries no data
)

func (s PathState) String() string {
	switch s {
	case PathDown:
		return "down"
	case PathFailing:
		return "failing"
	case PathUp:
		return "up"
	case PathUnconfirmed:
		return "unconfirmed"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Path is what the kernel knows of the way to one address of the peer.
type Path struct {
	Remote  netip.AddrPort
	State   PathState
	Primary bool          // data goes here as long as it is up
	Window  int           // cwnd in bytes
	RTO     time.Duration // retransmission timeout
	MTU     int           // in bytes
}

// Paths are those to all addresses of the peer. It fails with the kernel's error, for
// example when the association is over.
func (a *Assoc) Paths() ([]Path, error) {
	st, err := a.status()
	if err != nil {
		return nil, a.wrap("ask for the paths", err)
	}
	primary, err := sockaddr(st[28 : 28+sockaddrStorage])
	if err != nil {
		return nil, a.wrap("ask for the paths", err)
	}
	out := make([]Path, 0, len(a.peer))
	for _, r := range a.peer {
		var b [paddrinfoLen]byte
		putSockaddr(b[4:], r, a.v6)
		err := control(a.conn, func(fd int) error {
			_, err := getOption(fd, unix.IPPROTO_SCTP, lksctp.SCTP_GET_PEER_ADDR_INFO, b[:])
			return err
		})
		p := Path{Remote: r, Primary: r.Addr() == primary.Addr()}
		switch v := b[4+sockaddrStorage:]; {
		case errors.Is(err, unix.EACCES): // the kernel keeps a failing path's state to itself
			p.State = PathFailing
		case err != nil:
			return nil, a.wrap(fmt.Sprintf("ask for the path to %v of", r), err)
		default:
			p.State = PathState(native.Uint32(v))
			p.Window = int(native.Uint32(v[4:]))
			p.RTO = time.Duration(native.Uint32(v[12:])) * time.Millisecond
			p.MTU = int(native.Uint32(v[16:]))
		}
		out = append(out, p)
	}
	return out, nil
}

// SetPrimary makes the path to one of the peer's addresses the one that data takes as
// long as it is up (RFC 6458 section 8.1.9). It fails with the kernel's error where the
// address is not one of the peer's, or the association is over.
func (a *Assoc) SetPrimary(peer netip.AddrPort) error {
	b := make([]byte, 4+sockaddrStorage) // struct sctp_prim
	putSockaddr(b[4:], peer, a.v6)
	err := control(a.conn, func(fd int) error { return setOption(fd, lksctp.SCTP_PRIMARY_ADDR, b) })
	return a.wrap(fmt.Sprintf("make %v the primary path of", peer), err)
}

// pathChanged tells the Receiver of a path that fails or answers again, and starts
// the clock of Config.DeadAfter when none is left that works.
func (a *Assoc) pathChanged(path netip.AddrPort, state uint32) {
	var kind assoc.EventKind
	switch state {
	case pathUnreachable:
		kind = assoc.EventPathDown
		if a.c.DeadAfter > 0 && !a.anyPath() {
			a.startDying()
		}
	case pathAvailable, pathConfirmed:
		kind = assoc.EventPathUp
		a.mu.Lock()
		a.ups++
		if a.death != nil {
			a.death.Stop()
			a.death = nil
		}
		a.mu.Unlock()
	case pathAdded:
		if !slices.ContainsFunc(a.peer, func(p netip.AddrPort) bool { return p.Addr() == path.Addr() }) {
			a.mu.Lock()
			a.fail(fmt.Errorf("the peer has added the address %v to the association", path.Addr()))
			a.mu.Unlock()
		}
	}
	if kind != 0 {
		a.rx.recv.Event(assoc.Event{Kind: kind, Path: path})
	}
}

// anyPath tells whether there is a path that works, as far as the kernel knows. One
// that was never confirmed does not count.
func (a *Assoc) anyPath() bool {
	ps, err := a.Paths()
	return err == nil && slices.ContainsFunc(ps, func(p Path) bool { return p.State == PathUp || p.State == PathFailing })
}

func (a *Assoc) startDying() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.death == nil && !a.ending {
		a.death = time.AfterFunc(a.c.DeadAfter, a.die)
	}
}

// die ends an association none of whose paths has worked for Config.DeadAfter.
func (a *Assoc) die() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.death != nil {
		a.fail(fmt.Errorf("%w for %v", assoc.ErrPeerUnreachable, a.c.DeadAfter))
	}
}

// Kick implements assoc.Association: all paths are probed by heartbeats. An answer ends
// their state of failure and measures the timeout anew. The kernel cannot be made to
// resend what waits for its timer, so a second Kick is of no use, and stuck is never
// true; Hurry keeps that timer short.
func (a *Assoc) Kick() (stuck bool) {
	_ = control(a.conn, func(fd int) error {
		for _, r := range a.peer {
			b := make([]byte, paddrparamsLen)
			native.PutUint32(b[paddrparamsAfter+14:], sppDemand)
			putSockaddr(b[4:], r, a.v6)
			_ = setOption(fd, optPathParams, b)
		}
		return nil
	})
	return false
}

// Hurry implements assoc.Association, by 250 ms at least. The kernel follows with its
// next timeout.
func (a *Assoc) Hurry(rtoMax time.Duration) {
	initial, most := a.c.RTOInitial, a.c.RTOMax
	if rtoMax > 0 {
		most = max(hurryMin, a.c.RTOMin)
		initial = most
	}
	_ = control(a.conn, func(fd int) error {
		return setOption(fd, lksctp.SCTP_RTOINFO, rtoInfo(initial, a.c.RTOMin, most))
	})
}

// Bytes implements assoc.Association.
func (a *Assoc) Bytes() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tx.bytes + a.rx.bytes.Load()
}

// vain is how often something was sent again since the peer was last heard of, by
// looks at the kernel's counts, which do not say when they grew.
type vain struct {
	mu      sync.Mutex
	packets uint64 // that have come
	again   uint64 // chunks that were sent again
	times   int
}

// look takes the counts as they are now. All chunks since the look before are one
// time: a single timeout has many of them sent again.
func (v *vain) look(packets, again uint64) (heard bool, times int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if heard = packets != v.packets; heard {
		v.times = 0
	} else if again != v.again {
		v.times++
	}
	v.packets, v.again = packets, again
	return heard, v.times
}

// Stats implements assoc.Association, as far as the kernel counts. That packets without
// messages have come, Silent knows from the Stats before, and so does Unanswered of what
// was sent again.
func (a *Assoc) Stats() assoc.Stats {
	var b [statsLen]byte
	_ = control(a.conn, func(fd int) error {
		_, err := getOption(fd, unix.IPPROTO_SCTP, optAssocStats, b[:])
		return err
	})
	at := func(i int) uint64 { return native.Uint64(b[136+8*i:]) }
	now := time.Now().UnixNano()
	heard, again := a.vain.look(at(4), at(5))
	if heard { // heartbeats, for instance
		a.heard.Store(now)
	}
	s := assoc.Stats{
		SacksIn: at(1), SacksOut: at(2),
		PacketsOut: at(3), PacketsIn: at(4),
		Retransmits: at(5),
		Duplicates:  at(7),
		MessagesIn:  a.rx.messages.Load(),
		BytesIn:     a.rx.bytes.Load(),
		HeldHere:    int(a.rx.held.Load()),
		Unanswered:  again,
		Silent:      time.Duration(now - a.heard.Load()),
		Idle:        time.Duration(now - a.used.Load()),
	}
	a.mu.Lock()
	s.MessagesOut, s.BytesOut = a.tx.messages, a.tx.bytes
	s.Queued, _ = a.queued()
	s.Queued += a.tx.keptBytes
	a.mu.Unlock()
	if st, err := a.status(); err == nil {
		p := st[28+sockaddrStorage:]
		s.PeerWindow = int(native.Uint32(st[8:]))
		s.Window = int(native.Uint32(p[4:]))
		s.RTO = time.Duration(native.Uint32(p[12:])) * time.Millisecond
		s.PathMTU = int(native.Uint32(p[16:]))
		s.LostMTU = a.narrow.lost
	}
	return s
}
