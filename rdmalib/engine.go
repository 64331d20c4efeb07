package rdmalib

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
	"github.com/ironwarp/ironwarp/verbs"
)

// Config says what an Engine reaches.
type Config struct {
	// Protector vouches for all flows.
	Protector transport.Protector
	// Ports are those at which a program may listen that asks for an address, and for any port if that is 0; or why it
	// may not. Nil: what it asks for.
	Ports func(at netip.AddrPort) ([]uint16, error)
	// Log takes what a program's errno can't say, refusals as warnings; nil: nothing is said.
	Log *slog.Logger
	// SCTP has connections be streams of SCTP in UDP (RFC 5043, RFC 6951), each host's UDP port being the port that is
	// dialled; otherwise they are TCP.
	SCTP bool
	// NoCRC does without MPA's CRC where the peer agrees.
	NoCRC bool
}

// Engine is an RNIC. Its methods return 0 or the errno that the C library hands to the program; they may be called
// from any thread.
type Engine struct {
	log *slog.Logger
	dev *verbs.Device
	ulp *verbs.ULP
	tc  *transport.Config
	set verbs.Setup

	ports func(netip.AddrPort) ([]uint16, error)
	said  refusals

	ctx  context.Context
	stop context.CancelFunc

	pds  table[pd]
	mrs  table[mr]
	mws  table[mw]
	cqs  table[cq]
	srqs table[srq]
	qps  table[qp]

	cm cmDevice

	async func(kind, handle uint32) // an asynchronous event of the object
}

// limits are what a program may have: it runs for one user, whose memory bounds it.
var limits = verbs.Limits{
	Streams: 1 << 15, HalfOpen: 1 << 12, Dials: 1 << 12, PDs: MaxPD, MRs: MaxMR, MWs: MaxMR, Bytes: 1 << 46,
	CQEntries: MaxCQ * onTheWay, QueueEntries: 1 << 29, SRQEntries: 1 << 27, IRRQEntries: 1 << 22,
}

// What ibv_query_device says.
const (
	MaxQP    = 1 << 14
	MaxWR    = 1 << 14 // of each queue
	MaxCQ    = 1 << 14
	MaxCQE   = 1 << 20
	MaxPD    = 1 << 14
	MaxMR    = 1 << 16
	MaxSRQ   = 1 << 10
	MaxDepth = 128 // Reads and Atomics of a queue pair, each way
)

// maxPending is how many connections may be starting up at a listener; half of them from one host. A program with
// thousands of queue pairs connects them at once.
const maxPending = 1 << 12

// New makes an Engine. It fails as verbs.Open does.
func New(cfg Config) (*Engine, error) {
	dev, err := verbs.Open(verbs.Config{Limits: limits})
	if err != nil {
		return nil, err
	}
	// A program is one principal, and so is what it connects to: it says itself whom it trusts.
	ulp, err := dev.NewULP("libibverbs", verbs.ULPConfig{Trust: verbs.ST, Privileged: true})
	if err != nil {
		return nil, err
	}
	e := &Engine{log: cfg.Log, ports: cfg.Ports, dev: dev, ulp: ulp, tc: &transport.Config{Protector: cfg.Protector, OneFamily: true, MaxPending: maxPending}, set: verbs.Setup{NoCRC: cfg.NoCRC}}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.ports == nil {
		e.ports = func(at netip.AddrPort) ([]uint16, error) { return []uint16{at.Port()}, nil }
	}
	if cfg.SCTP { // a daemon ends one association by its socket, and no other
		e.tc.Kind, e.tc.OwnSockets = transport.SCTPUDP, true
	}
	e.cm.init()
	e.ctx, e.stop = context.WithCancel(context.Background())
	return e, nil
}

// Close ends all streams and what belongs to them.
func (e *Engine) Close() {
	e.stop()
	e.cm.close()
	e.dev.Close()
}

// Events has report told of asynchronous events (enum ibv_event_type) and the handle of the object, from then on, in a
// goroutine.
func (e *Engine) Events(report func(kind, handle uint32)) {
	e.async = report
	go e.watch()
}

// Numbers of enum ibv_event_type.
const (
	eventCQError   = 0
	eventQPFatal   = 1
	eventQPRequest = 2 // the peer's request was invalid
	eventQPAccess  = 3
	eventSRQLimit  = 15
)

func (e *Engine) watch() {
	for {
		ev, err := e.dev.Event(e.ctx)
		if err != nil {
			return
		}
		e.log.Debug("event", "kind", ev.Kind, "peer", ev.Peer, "flow", ev.Flow, "reason", ev.Err)
		switch ev.Kind {
		case verbs.EventSRQLimit:
			if s, ok := e.srqs.find(func(s *srq) bool { return s.srq == ev.SRQ }); ok {
				e.async(eventSRQLimit, s)
			}
		case verbs.EventPeerFault, verbs.EventTerminated:
			if q, ok := e.qps.find(func(q *qp) bool { return q.id() == ev.QP }); ok {
				kind := uint32(eventQPFatal)
				if ev.Kind == verbs.EventPeerFault {
					kind = eventQPRequest
					if isAccessFault(ev.Err) {
						kind = eventQPAccess
					}
				}
				e.async(kind, q)
			}
		}
	}
}

// errnoOf is what a program is told of an error.
func (e *Engine) errnoOf(what string, err error) syscall.Errno {
	if err == nil {
		return 0
	}
	e.log.Debug(what, "error", err)
	var quota *verbs.QuotaError
	var number syscall.Errno
	switch {
	case errors.Is(err, verbs.ErrQueueFull), errors.As(err, &quota):
		return syscall.ENOMEM
	case errors.Is(err, verbs.ErrInUse):
		return syscall.EBUSY
	case errors.Is(err, verbs.ErrIdle):
		return syscall.ENOTCONN
	case errors.Is(err, context.DeadlineExceeded):
		return syscall.ETIMEDOUT
	case errors.Is(err, transport.ErrAway):
		e.warn(what+" fails", err)
		return syscall.EHOSTUNREACH
	case errors.Is(err, transport.ErrNotProtected):
		e.warn(what+" is refused", err)
		return syscall.EACCES
	case errors.Is(err, delegate.ErrShort):
		return syscall.ENOMEM
	case errors.As(err, &number):
		return number
	}
	return syscall.EINVAL
}

// refusals are those that the log was told of: each once, and some at the most, as a program may try again for ever.
type refusals struct {
	mu    sync.Mutex // guards the fields below it; taken after a queue pair's
	known map[string]bool
}

const maxRefusals = 32

func (e *Engine) warn(what string, err error) {
	r := &e.said
	r.mu.Lock()
	if r.known == nil {
		r.known = map[string]bool{}
	}
	text := err.Error()
	news := !r.known[text] && len(r.known) < maxRefusals
	if news {
		r.known[text] = true
	}
	r.mu.Unlock()
	if news {
		e.log.Warn(what, "reason", text)
	}
}

// table hands out handles, each once in a long time; lookups take no lock. Handle 0 is nothing.
type table[T any] struct {
	mu   sync.Mutex // guards the fields below it
	free []uint32   // slots
	used int        // slots that have been used

	slot [1 << slotBits]atomic.Pointer[held[T]]
}

const slotBits = 16

// held is an object under a handle: the slot in the lower bits, and a number that its next object has not.
type held[T any] struct {
	handle uint32
	v      *T
}

// add returns the handle of v, 0 if there are too many.
func (t *table[T]) add(v *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i, turn uint32
	switch {
	case t.used+1 < len(t.slot): // slots are used again as late as possible
		t.used++
		i, turn = uint32(t.used), 1
	case len(t.free) > 0:
		last := t.free[0]
		t.free = t.free[1:]
		i, turn = last&(1<<slotBits-1), last>>slotBits+1
	default:
		return 0
	}
	h := i | turn<<slotBits
	t.slot[i].Store(&held[T]{h, v})
	return h
}

// get returns the object of a handle, nil if there is none.
func (t *table[T]) get(handle uint32) *T {
	if h := t.slot[handle&(1<<slotBits-1)].Load(); h != nil && h.handle == handle {
		return h.v
	}
	return nil
}

// remove takes a handle back. It returns nil if it is none.
func (t *table[T]) remove(handle uint32) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := handle & (1<<slotBits - 1)
	h := t.slot[i].Load()
	if h == nil || h.handle != handle {
		return nil
	}
	t.slot[i].Store(nil)
	t.free = append(t.free, handle)
	return h.v
}

// find returns the handle of an object of which is says true.
func (t *table[T]) find(is func(*T) bool) (uint32, bool) {
	for i := range t.slot {
		if h := t.slot[i].Load(); h != nil && is(h.v) {
			return h.handle, true
		}
	}
	return 0, false
}

// Lab returns the Protector of a lab: this host alone or, in clear, these others as well.
func Lab(log *slog.Logger, peers ...netip.Addr) transport.Protector {
	if len(peers) == 0 {
		return transport.LoopbackOnly()
	}
	return transport.Plaintext(log, append(peers, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback())...)
}

// TransportOf is what carries a program's streams when it does not say: TCP, unless all ports that it may have are of SCTP
// in UDP.
func TransportOf(t delegate.Terms) transport.Kind {
	if len(t.Of(transport.ProtoTCP)) == 0 && len(t.Of(transport.ProtoUDP)) > 0 {
		return transport.SCTPUDP
	}
	return transport.TCP
}

// Delegated returns the Protector of a program whose flows, over TCP or SCTP in UDP, the daemon protects, and the Ports of a
// Config for it. Within this host nothing is asked.
func Delegated(c *delegate.Client, kind transport.Kind) (transport.Protector, func(netip.AddrPort) ([]uint16, error)) {
	protector := transport.PerPeer(func(a netip.Addr) (transport.Protector, error) {
		if a.IsLoopback() {
			return transport.LoopbackOnly(), nil
		}
		return c, nil
	})
	return protector, func(at netip.AddrPort) ([]uint16, error) {
		t := c.Terms()
		switch {
		case at.Addr().IsLoopback():
			return []uint16{at.Port()}, nil
		case !t.Listen:
			return nil, fmt.Errorf("%w: ULP %[2]s takes no connections: `ironwarp ulp set --listen %[2]s`, by root, allows it", transport.ErrNotProtected, t.Account)
		case at.Port() != 0 && t.Has(kind.Protocol(), at.Port()):
			return []uint16{at.Port()}, nil
		}
		var all []uint16
		var words []string
		for _, p := range t.Of(kind.Protocol()) {
			words = append(words, p.String())
			for n := int(p.Low); n <= int(p.High); n++ {
				all = append(all, uint16(n))
			}
		}
		if at.Port() != 0 || len(all) == 0 {
			if len(words) == 0 {
				words = []string{"none over " + kind.String()}
			}
			return nil, fmt.Errorf("%w: port %d is none of those at which others may reach programs of yours (%s): choose one, or declare others by `ironwarp ulp` on both hosts", transport.ErrNotProtected, at.Port(), strings.Join(words, ", "))
		}
		rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		return all, nil
	}
}

// transportAt is how a connection to a port of a host is carried, or one that comes to a port of this host.
func (e *Engine) transportAt(port uint16) *transport.Config {
	tc := *e.tc
	tc.UDPPort = port
	return &tc
}
