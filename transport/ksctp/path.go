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

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

const (
	optPathParams = lksctp.SCTP_PEER_ADDR_PARAMS
	statusLen     = 176 // struct sctp_status
	paddrinfoLen  = 152 // struct sctp_paddrinfo
	statsLen      = 256 // struct sctp_assoc_stats
)

// status returns struct sctp_status (RFC 6458 section 8.2.1). It fails when the kernel no
// longer has the association.
func (a *Assoc) status() (b [statusLen]byte, err error) {
	err = control(a.conn, func(fd int) error {
		_, err := getOption(fd, unix.IPPROTO_SCTP, lksctp.SCTP_STATUS, b[:])
		return err
	})
	return b, err
}

// refresh asks the kernel how long a message may be.
func (a *Assoc) refresh() error {
	b, err := a.status()
	if err != nil {
		return fmt.Errorf("ask for the association's status: %w", err)
	}
	a.max.Store(int64(native.Uint32(b[20:])))
	a.asked.Store(time.Now().UnixNano())
	return nil
}

// refreshIfOldLocked refreshes a message size that is old.
func (a *Assoc) refreshIfOldLocked() {
	if time.Now().UnixNano()-a.asked.Load() > int64(refreshEvery) && !a.ending {
		_ = a.refresh() // errors show up when sending
	}
}

// queuedMemory returns how much of a socket's send buffer is in use, in bytes.
func queuedMemory(fd int) (int, error) {
	var b [36]byte // SK_MEMINFO_VARS of linux/sock_diag.h
	n, err := getOption(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, b[:])
	if err == nil && n < 24 {
		err = errors.New("SO_MEMINFO is short")
	}
	return int(native.Uint32(b[20:])), err // SK_MEMINFO_WMEM_QUEUED
}

// setEvent turns a kind of notification on or off (RFC 6458 section 6.2.2).
func setEvent(fd int, kind uint16, on bool) error {
	b := make([]byte, 8)
	native.PutUint16(b[4:], kind)
	if on {
		b[6] = 1
	}
	return setOption(fd, optEvent, b)
}

// PathState is the state of a path (RFC 9260 sections 5.4 and 8.2).
type PathState uint8

// The states of a path.
const (
	PathDown        PathState = 0 // it has stopped answering
	PathFailing     PathState = 1 // it did not answer the last time (RFC 7829)
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

// Path is what the kernel knows about the path to one address of the peer.
type Path struct {
	Remote  netip.AddrPort
	State   PathState
	Primary bool          // carries the data while it is up
	Window  int           // cwnd in bytes
	RTO     time.Duration // retransmission timeout
	MTU     int           // in bytes
}

// Paths returns the paths to all addresses of the peer. It fails with the kernel's error,
// for example when the association has ended.
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
		err := control(a.conn, func(fd int) error {
			if _, err := sockio.PutSockaddr(b[4:], r, a.v6); err != nil {
				return err
			}
			_, err := getOption(fd, unix.IPPROTO_SCTP, lksctp.SCTP_GET_PEER_ADDR_INFO, b[:])
			return err
		})
		p := Path{Remote: r, Primary: r.Addr() == primary.Addr()}
		switch v := b[4+sockaddrStorage:]; {
		case errors.Is(err, unix.EACCES): // the kernel does not report a failing path
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

// pathChanged reports to the Receiver that a path failed or answers again, and starts the
// timer of Config.DeadAfter when no path works any more.
func (a *Assoc) pathChanged(path netip.AddrPort, state uint32) {
	var kind assoc.EventKind
	switch state {
	case pathUnreachable:
		kind = assoc.EventPathDown
		if a.c.DeadAfter > 0 && !a.anyPath() {
			a.startDeadTimer()
		}
	case pathAvailable, pathConfirmed:
		kind = assoc.EventPathUp
		a.mu.Lock()
		a.ups++
		if a.deadTimer != nil {
			a.deadTimer.Stop()
			a.deadTimer = nil
		}
		a.mu.Unlock()
	case pathAdded:
		if !slices.ContainsFunc(a.peer, func(p netip.AddrPort) bool { return p.Addr() == path.Addr() }) {
			a.mu.Lock()
			a.failLocked(fmt.Errorf("the peer has added the address %v to the association", path.Addr()))
			a.mu.Unlock()
		}
	}
	if kind != 0 {
		a.rx.recv.Event(assoc.Event{Kind: kind, Path: path})
	}
}

// anyPath reports whether a path works, as far as the kernel knows. One that was never
// confirmed does not count.
func (a *Assoc) anyPath() bool {
	ps, err := a.Paths()
	return err == nil && slices.ContainsFunc(ps, func(p Path) bool { return p.State == PathUp || p.State == PathFailing })
}

func (a *Assoc) startDeadTimer() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadTimer == nil && !a.ending {
		ups := a.ups
		a.deadTimer = time.AfterFunc(a.c.DeadAfter, func() { a.expireDead(ups) })
	}
}

// expireDead ends an association none of whose paths has worked for Config.DeadAfter: none has
// come back up since that began, when ups had.
func (a *Assoc) expireDead(ups int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ups == ups {
		a.failLocked(fmt.Errorf("%w for %v", assoc.ErrPeerUnreachable, a.c.DeadAfter))
	}
}

// Kick implements assoc.Association: it probes all paths by heartbeats. An answer ends a
// path's failed state and measures the timeout anew. The kernel cannot be made to resend
// what waits for its timer, so a second Kick is useless, and stuck is always false;
// LimitRTO keeps that timer short.
func (a *Assoc) Kick() (stuck bool) {
	_ = control(a.conn, func(fd int) error {
		for _, r := range a.peer {
			b := make([]byte, paddrparamsLen)
			native.PutUint32(b[paddrparamsAfter+14:], sppDemand)
			if _, err := sockio.PutSockaddr(b[4:], r, a.v6); err == nil {
				_ = setOption(fd, optPathParams, b)
			}
		}
		return nil
	})
	return false
}

// LimitRTO implements assoc.Association, with a bound of at least 250 ms. The kernel
// follows with its next timeout.
func (a *Assoc) LimitRTO(rtoMax time.Duration) {
	initial, most := a.c.RTOInitial, a.c.RTOMax
	if rtoMax > 0 {
		most = max(minRTOLimit, a.c.RTOMin)
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

// resends counts retransmissions since the peer was last heard, by comparing the kernel's
// counts, which have no time stamps.
type resends struct {
	mu      sync.Mutex // guards the fields below it
	packets uint64     // received packets
	again   uint64     // retransmitted chunks
	times   int
}

// update takes the current counts. All chunks resent since the last update count as one
// time: a single timeout resends many.
func (r *resends) update(packets, again uint64) (heard bool, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if heard = packets != r.packets; heard {
		r.times = 0
	} else if again != r.again {
		r.times++
	}
	r.packets, r.again = packets, again
	return heard, r.times
}

// Stats implements assoc.Association, as far as the kernel counts. Silent and Unanswered
// are as exact as Stats is called often: packets without messages, and retransmissions,
// show only as a difference to the counts of the previous call.
func (a *Assoc) Stats() assoc.Stats {
	var b [statsLen]byte
	_ = control(a.conn, func(fd int) error {
		_, err := getOption(fd, unix.IPPROTO_SCTP, optAssocStats, b[:])
		return err
	})
	at := func(i int) uint64 { return native.Uint64(b[136+8*i:]) }
	now := time.Now().UnixNano()
	heard, again := a.resends.update(at(4), at(5))
	if heard { // for example by heartbeats
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
	s.Queued, _ = a.queuedLocked()
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
