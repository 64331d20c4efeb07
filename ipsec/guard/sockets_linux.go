package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	xfrm "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

// A guard that goes lets out what the kernel still has to send by its link: the
// end of a connection with data on its way leaves a socket that no program has,
// which the kernel sends from for up to twenty minutes. So all sockets of the link
// are ended first (SOCK_DESTROY), and only when sock_diag shows none any more, the
// guard goes. Datagrams have met the policies when they were sent: what UDP has
// queued is in ESP already, or was stopped. But a program that does SCTP in UDP
// repeats what was not acknowledged, even one that was stopped meanwhile (SIGSTOP).
// Its associations have sockets that are connected to the peer (transport's
// OwnSockets), which end as TCP's do: the kernel disconnects them, and their packets
// name no address. An unconnected socket is of no link.

const (
	// endWait is how long the sockets of a link are given to end before its guard
	// stays, and endPoll how often they are looked at.
	endWait = 2 * time.Second
	endPoll = 10 * time.Millisecond
)

// LinkSocket is a connection of the kernel's, or an association, that belongs to a
// link, whoever has its socket.
type LinkSocket struct {
	Protocol      transport.Protocol
	Local, Remote netip.AddrPort
	State         string // as in RFC 9293, or RFC 9260
	Queued        uint64 // bytes that were not acknowledged, or not sent yet
	Orphan        bool   // no program has it

	family, state byte
	id            []byte // of sock_diag
}

func (s LinkSocket) String() string {
	text := fmt.Sprintf("%v from %v to %v, %s", s.Protocol, s.Local, s.Remote, s.State)
	if s.Orphan {
		text += ", of no program"
	}
	return text
}

// HeldError means that a guard stays, since the kernel still owns sockets of its
// link.
type HeldError struct {
	Spec    Spec
	Sockets []LinkSocket
	Why     error // they could not be ended
}

func (e *HeldError) Error() string {
	var queued uint64
	for _, s := range e.Sockets {
		queued += s.Queued
	}
	text := fmt.Sprintf("the guard of %v stays, since the kernel still has %d socket%s of it, with %d bytes to send, that would leave in clear: %v",
		e.Spec, len(e.Sockets), map[bool]string{true: "s"}[len(e.Sockets) != 1], queued, e.Sockets[0])
	if e.Why != nil {
		text += fmt.Sprintf(" (it cannot be ended: %v)", e.Why)
	}
	return text
}

func (e *HeldError) Unwrap() error { return e.Why }

// sock_diag(7): struct inet_diag_req_v2 and inet_diag_msg.
const (
	diagRequestSize = 56
	diagMessageSize = 72
	diagID          = 4 // in the message; in the request it is at 8
	diagIDSize      = 48
	diagWriteQueue  = 60
	diagInode       = 68

	sockDestroy = 21
)

// States of sockets (net/tcp_states.h).
var tcpStates = []string{1: "ESTABLISHED", "SYN-SENT", "SYN-RECEIVED", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "CLOSED", "CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING", "SYN-RECEIVED", "CLOSED"}

// States of associations (net/sctp/constants.h).
var sctpStates = []string{"CLOSED", "COOKIE-WAIT", "COOKIE-ECHOED", "ESTABLISHED", "SHUTDOWN-PENDING", "SHUTDOWN-SENT", "SHUTDOWN-RECEIVED", "SHUTDOWN-ACK-SENT"}

const (
	tcpEstablished = 1 // and a UDP socket that is connected

	tcpFinWait2  = 5
	tcpTimeWait  = 6
	tcpClosed    = 7
	tcpListen    = 10
	tcpBoundOnly = 13
	// holding are the states of sockets that may have data to send. Those in
	// FIN-WAIT-2 and TIME-WAIT had all of theirs acknowledged, the rest has no peer.
	holding = 1<<32 - 1 - (1<<tcpFinWait2 | 1<<tcpTimeWait | 1<<tcpClosed | 1<<tcpListen | 1<<tcpBoundOnly)
)

func (s LinkSocket) request(states uint32) []byte {
	b := make([]byte, diagRequestSize)
	b[0], b[1] = s.family, byte(s.Protocol)
	binary.NativeEndian.PutUint32(b[4:], states)
	copy(b[8:], s.id)
	return b
}

// LinkSockets lists what the kernel has of a link, and no other guard stops: connections that may
// have to send, and SCTP's associations. It fails with the kernel's error, and where g is impossible.
func LinkSockets(g Spec) (out []LinkSocket, err error) {
	if err := g.validate(); err != nil {
		return nil, err
	}
	err = inNS(g.NetNS, func(k *kernel) error {
		out, err = k.sockets(g)
		return err
	})
	return out, err
}

func (k *kernel) sockets(g Spec) (all []LinkSocket, err error) {
	switch g.protocol() {
	case transport.ProtoTCP, transport.ProtoUDP:
		all, err = k.connections(g)
	case transport.ProtoSCTP:
		all, err = associations(g)
	}
	if err != nil || len(all) == 0 {
		return nil, err
	}
	policies, err := k.policies()
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(policies, func(p xfrmPolicy) bool { return !isBlock(&p) || concerns(&p, g) })
	return slices.DeleteFunc(all, func(s LinkSocket) bool {
		return slices.ContainsFunc(others, func(p xfrmPolicy) bool { return stops(&p, s) })
	}), nil
}

// stops reports whether a guard's policy is of what a socket gets: in IPv6 there may be none of what
// it sends, but routing rules.
func stops(p *xfrmPolicy, s LinkSocket) bool {
	_, _, source, ok := p.ports()
	port := s.Local.Port()
	if source {
		port = s.Remote.Port()
	}
	return ok && p.Dir == xfrm.XFRM_DIR_IN && guards(p, LinkKey{s.Remote.Addr(), s.Protocol, port})
}

// connections are the TCP sockets, or the connected UDP sockets, of a link.
func (k *kernel) connections(g Spec) ([]LinkSocket, error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	defer c.Close()
	var out []LinkSocket
	// A socket of IPv6 may have an IPv4-mapped peer.
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		ask, states := LinkSocket{Protocol: g.protocol(), family: family}, uint32(holding)
		if ask.Protocol == transport.ProtoUDP {
			states = 1 << tcpEstablished
		}
		all, err := c.Execute(netlink.Message{Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump}, Data: ask.request(states)})
		if errors.Is(err, syscall.ENOENT) && ask.Protocol == transport.ProtoUDP {
			return datagramSockets(g)
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		for _, m := range all {
			if s, ok := parseSocket(ask.Protocol, m.Data); ok && g.has(s.Local, s.Remote) {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// parseSocket reads what sock_diag says of a socket of a protocol; ok is false for what is none.
func parseSocket(protocol transport.Protocol, b []byte) (s LinkSocket, ok bool) {
	if len(b) < diagMessageSize || int(b[1]) >= len(tcpStates) {
		return s, false
	}
	id := b[diagID : diagID+diagIDSize]
	address := func(at int) (a netip.Addr) {
		if b[0] == unix.AF_INET6 {
			return netip.AddrFrom16([16]byte(id[at:])).Unmap()
		}
		return netip.AddrFrom4([4]byte(id[at:]))
	}
	return LinkSocket{
		Protocol: protocol,
		Local:    netip.AddrPortFrom(address(4), binary.BigEndian.Uint16(id)),
		Remote:   netip.AddrPortFrom(address(20), binary.BigEndian.Uint16(id[2:])),
		State:    tcpStates[b[1]],
		Queued:   uint64(binary.NativeEndian.Uint32(b[diagWriteQueue:])),
		Orphan:   binary.NativeEndian.Uint32(b[diagInode:]) == 0,
		family:   b[0], state: b[1], id: slices.Clone(id),
	}, true
}

// has reports whether a connection is one of the guard's link.
func (g Spec) has(local, remote netip.AddrPort) bool {
	return slices.Contains(g.Addresses(), remote.Addr()) && (g.hasPort(local.Port()) || g.hasPort(remote.Port()))
}

// associations are those of the kernel's SCTP, which sock_diag cannot end, with
// any address of the peer's.
func associations(g Spec) ([]LinkSocket, error) {
	b, err := os.ReadFile("/proc/thread-self/net/sctp/assocs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no SCTP
	}
	if err != nil {
		return nil, fmt.Errorf("list associations: %w", err)
	}
	return parseAssociations(g, string(b)), nil
}

func parseAssociations(g Spec, text string) (out []LinkSocket) {
	for line := range strings.Lines(text) {
		// ASSOC SOCK STY SST ST HBKT ASSOC-ID TX_QUEUE RX_QUEUE UID INODE LPORT RPORT LADDRS <-> RADDRS ...
		f := strings.Fields(line)
		between := slices.Index(f, "<->")
		if between < 13 {
			continue
		}
		local, err1 := strconv.ParseUint(f[11], 10, 16)
		remote, err2 := strconv.ParseUint(f[12], 10, 16)
		queued, err3 := strconv.ParseUint(f[7], 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			continue
		}
		first, _ := netip.ParseAddr(strings.TrimPrefix(f[min(13, between)], "*"))
		for _, w := range f[between+1:] {
			a, err := netip.ParseAddr(strings.TrimPrefix(w, "*"))
			if err != nil {
				break
			}
			s := LinkSocket{Protocol: transport.ProtoSCTP, Local: netip.AddrPortFrom(first.Unmap(), uint16(local)), Remote: netip.AddrPortFrom(a.Unmap(), uint16(remote)),
				State: associationState(f[4]), Queued: queued, Orphan: f[10] == "0"}
			if g.has(s.Local, s.Remote) {
				out = append(out, s)
				break
			}
		}
	}
	return out
}

func associationState(number string) string {
	if n, err := strconv.Atoi(number); err == nil && 0 <= n && n < len(sctpStates) {
		return sctpStates[n]
	}
	return "state " + number
}

// EndSockets ends all sockets of a link while its guard is in place, so that no
// reset of theirs leaves in clear either, and returns when none is left. The error
// is a *HeldError if there are some after endWait.
func EndSockets(g Spec) error { return endSocketsBy(g, endWait, LinkSocket.end) }

// endSocketsBy tries each socket at least once, however slow the machine is.
func endSocketsBy(g Spec, wait time.Duration, end func(LinkSocket) error) error {
	if err := g.validate(); err != nil {
		return err
	}
	return inNS(g.NetNS, func(k *kernel) error {
		var why error
		until := time.Now().Add(wait)
		for tried := false; ; tried = true {
			left, err := k.sockets(g)
			if err != nil {
				return fmt.Errorf("the guard of %v stays, since it is not known what the kernel has to send by it: %w", g, err)
			}
			if len(left) == 0 {
				return nil
			}
			if tried && time.Now().After(until) {
				return &HeldError{g, left, why}
			}
			why = nil
			for _, s := range left {
				err := end(s)
				if errors.Is(err, errLocked) {
					return &HeldError{g, left, err}
				}
				if why == nil {
					why = err
				}
			}
			time.Sleep(endPoll)
		}
	})
}

// ends are sockets that are being ended. That takes a socket's lock, which a program that sends from memory whose pages do
// not come (FUSE) holds for as long as it likes. A thread waits for it, one for each socket, and nobody for that thread.
type ends struct {
	mu sync.Mutex // guards the fields below it
	of map[string]chan error
}

// maxEnds is how many threads may wait.
const maxEnds = 256

var (
	underWay  ends
	errLocked = errors.New("its program keeps it locked")
)

// run has f end a socket of an id, and returns its error, or errLocked if it takes longer than endWait. What f needs is
// released by over, at once where f is running already.
func (e *ends) run(id string, f func() error, over func()) error {
	e.mu.Lock()
	ended := e.of[id]
	switch {
	case ended != nil:
		over()
	case len(e.of) >= maxEnds:
		over()
		e.mu.Unlock()
		return errLocked
	default:
		ended = make(chan error, 1)
		if e.of == nil {
			e.of = map[string]chan error{}
		}
		e.of[id] = ended
		go func() {
			err := f()
			over()
			e.mu.Lock()
			delete(e.of, id)
			e.mu.Unlock()
			ended <- err
			close(ended)
		}()
	}
	e.mu.Unlock()
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return errLocked
	}
}

// end has the kernel drop a connection with all that it has queued.
func (s LinkSocket) end() error {
	if s.id == nil {
		return errors.New("the kernel ends no sockets of others of that kind")
	}
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return err
	}
	err = underWay.run(string(s.id), func() error {
		_, err := c.Execute(netlink.Message{Header: netlink.Header{Type: sockDestroy, Flags: netlink.Request | netlink.Acknowledge}, Data: s.request(1 << s.state)})
		return err
	}, func() { c.Close() })
	switch {
	case errors.Is(err, syscall.ENOENT): // it has ended
		return nil
	case errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("%w: this kernel ends no sockets of others (CONFIG_INET_DIAG_DESTROY)", err)
	}
	return err
}
