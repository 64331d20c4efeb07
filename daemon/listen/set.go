package listen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// Place is where others are awaited, and with what.
type Place struct {
	Kind transport.Kind
	Addr netip.AddrPort // of TCP or SCTP
	UDP  uint16         // port of SCTP in UDP
	More string         // further addresses of the kernel's SCTP, with spaces between
	// Partition is the name of the partition whose streams come here, "": of none.
	Partition string
}

// String is for messages.
func (at Place) String() string {
	if at.Partition != "" {
		of := at.Partition
		at.Partition = ""
		return at.String() + " of partition " + of
	}
	switch {
	case at.Kind == transport.SCTPUDP:
		return fmt.Sprintf("%s (%s, UDP port %d)", at.Addr, at.Kind, at.UDP)
	case at.More != "":
		return fmt.Sprintf("%s (%s, and at %s)", at.Addr, at.Kind, at.More)
	case at.Kind != transport.TCP:
		return fmt.Sprintf("%s (%s)", at.Addr, at.Kind)
	}
	return at.Addr.String()
}

func (at Place) compare(b Place) int {
	return cmp.Or(at.Addr.Compare(b.Addr), cmp.Compare(at.Kind.String(), b.Kind.String()), cmp.Compare(at.UDP, b.UDP), cmp.Compare(at.More, b.More), cmp.Compare(at.Partition, b.Partition))
}

// SetConfig says what a Set listens for. All but Open is for messages.
type SetConfig[L any] struct {
	// Open begins to listen. It fails where that is not possible.
	Open func(context.Context, Place) (L, error)
	// For is whom the listeners are for, such as " for initiators".
	For string
	// OtherPort and OtherAddress say what to do when another program has the port, and when this host
	// does not have the address.
	OtherPort, OtherAddress string
}

// Set keeps a listener at each place where one is wanted, as far as one can be opened. What changes it,
// CloseBut and Open, is for one goroutine at a time.
type Set[L interface {
	comparable
	io.Closer
}] struct {
	cfg SetConfig[L]

	mu  sync.Mutex // guards the fields below it
	all map[Place]*listener[L]
}

// listener is guarded by Set.mu.
type listener[L any] struct {
	ln      L // the zero value while it cannot listen
	problem *api.Error
}

// NewSet returns a set without listeners.
func NewSet[L interface {
	comparable
	io.Closer
}](cfg SetConfig[L]) *Set[L] {
	return &Set[L]{cfg: cfg, all: map[Place]*listener[L]{}}
}

// CloseBut closes the listeners that are not wanted, and returns where they were.
func (s *Set[L]) CloseBut(want map[Place]bool) (closed []Place) {
	var none L
	var stale []L
	s.mu.Lock()
	for at, one := range s.all {
		if !want[at] {
			delete(s.all, at)
			closed = append(closed, at)
			if one.ln != none {
				stale = append(stale, one.ln)
			}
		}
	}
	s.mu.Unlock()
	for _, ln := range stale {
		ln.Close()
	}
	return closed
}

// Open opens a listener at a place, unless there is one. It returns the listener if it is a new one,
// and otherwise why it cannot be opened, if that is another reason than before.
func (s *Set[L]) Open(ctx context.Context, at Place) (opened L, changed *api.Error) {
	var none L
	s.mu.Lock()
	one := s.all[at]
	if one == nil {
		one = &listener[L]{}
		s.all[at] = one
	}
	up := one.ln != none
	s.mu.Unlock()
	if up {
		return none, nil
	}
	ln, err := s.cfg.Open(ctx, at)
	problem := s.cfg.problemAt(at, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if problem != nil && (one.problem == nil || one.problem.Message != problem.Message) {
		changed = problem
	}
	one.ln, one.problem = ln, problem
	return ln, changed
}

// Each calls f for each place, by address, with what keeps its listener from serving, which f may change. up reports
// whether there is a listener.
func (s *Set[L]) Each(f func(at Place, up bool, problem **api.Error)) {
	var none L
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range slices.SortedFunc(maps.Keys(s.all), Place.compare) {
		one := s.all[at]
		f(at, one.ln != none, &one.problem)
	}
}

// States describes the listeners, by address.
func (s *Set[L]) States() []api.Listener {
	out := []api.Listener{}
	s.Each(func(at Place, up bool, problem **api.Error) {
		v := api.Listener{Address: at.Addr.String(), Transport: at.Kind.String(), UDPPort: at.UDP, More: strings.Fields(at.More), Partition: at.Partition, State: "listening", Problem: *problem}
		if *problem != nil || !up {
			v.State = api.PeerProblem
		}
		out = append(out, v)
	})
	return out
}

// NoKernelSCTP and GetKernelSCTP are what users read about a kernel without SCTP, and what to do.
const (
	NoKernelSCTP  = "this host's kernel has no SCTP"
	GetKernelSCTP = "load it with `modprobe sctp`, or say transport: sctp-udp or auto for the peer on both hosts"
)

// problemAt describes why nothing listens at a place, and what to do; nil without an error.
func (c *SetConfig[L]) problemAt(at Place, err error) *api.Error {
	if err == nil {
		return nil
	}
	what, port, find := "TCP port", at.Addr.Port(), "-ltnp"
	switch at.Kind {
	case transport.SCTP:
		what, find = "SCTP port", "-lSnp"
	case transport.SCTPUDP:
		what, port, find = "UDP port", at.UDP, "-lunp"
	}
	code, why, fix := api.CodeUnavailable, err.Error(), ""
	switch {
	case errors.Is(err, ksctp.ErrUnavailable):
		why, fix = NoKernelSCTP, GetKernelSCTP
	case errors.Is(err, syscall.EADDRINUSE):
		code, why = api.CodeInUse, fmt.Sprintf("another program has %s %d", what, port)
		fix = fmt.Sprintf("find it with `ss %s 'sport = :%d'` and stop it, or %s", find, port, c.OtherPort)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why, fix = "no interface of this host has that address", "see `ip address`; "+c.OtherAddress
	}
	if fix != "" {
		fix += ". The daemon keeps trying"
	}
	return &api.Error{Code: code, Message: fmt.Sprintf("cannot listen%s at %s: %s", c.For, at, why), Fix: fix}
}
