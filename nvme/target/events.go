package target

import (
	"slices"

	"github.com/ironwarp/ironwarp/nvme"
)

// events are what a controller tells its host of, guarded by controller.mu. Each kind goes
//
//	quiet ──raise──▶ raised ──a request takes it──▶ told ──its log page is read──▶ quiet
//
// and while it is not quiet, raising it again changes nothing: the log page has all by the time it is read.
type events struct {
	waiting []*command // Asynchronous Event Requests
	mask    uint32     // FeatureAsyncEvents
	state   [eventKinds]eventState

	changed []uint32 // namespaces, in the order in which they changed
	many    bool     // more than a list has
	notices []notice
	noticed uint64 // of all times, as LogReservation counts
	muted   map[uint32]uint32
}

type eventState uint8

const (
	quiet eventState = iota
	raised
	told
)

// The kinds of events.
const (
	eventNamespaces = iota
	eventDiscovery
	eventReservations
	eventKinds
)

var eventResults = [eventKinds]nvme.AsyncEvent{nvme.EventNamespaceChanged, nvme.EventDiscoveryChanged, nvme.EventReservationChanged}

// notice is a notice of a reservation.
type notice struct {
	what nvme.ReservationNotice
	nsid uint32
}

// asyncEvent keeps an Asynchronous Event Request until there is an event.
func (k *command) asyncEvent(x *controller) {
	x.mu.Lock()
	if x.ended || len(x.events.waiting) == maxEvents {
		x.mu.Unlock()
		k.fail(nvme.AsyncEventLimit | nvme.DNR)
		return
	}
	x.events.waiting = append(x.events.waiting, k)
	x.mu.Unlock()
	x.tell()
}

// raiseLocked raises an event.
func (x *controller) raiseLocked(kind int) {
	if x.events.state[kind] == quiet {
		x.events.state[kind] = raised
	}
}

// tell answers requests for events that are raised.
func (x *controller) tell() {
	for {
		x.mu.Lock()
		kind := slices.Index(x.events.state[:], raised)
		if kind < 0 || len(x.events.waiting) == 0 {
			x.mu.Unlock()
			return
		}
		k := x.events.waiting[0]
		x.events.waiting = x.events.waiting[1:]
		x.events.state[kind] = told
		x.mu.Unlock()
		k.result = uint64(eventResults[kind])
		k.endLater(nvme.Success)
	}
}

// heardOf is called when a log page has been read to clear its event.
func (x *controller) heardOf(kind int) {
	x.mu.Lock()
	x.events.state[kind] = quiet
	if kind == eventReservations && len(x.events.notices) > 0 {
		x.raiseLocked(kind)
	}
	x.mu.Unlock()
	x.tell()
}

// namespaceChanged notes that a namespace has come, gone, or has another size.
func (x *controller) namespaceChanged(nsid uint32) {
	x.mu.Lock()
	e := &x.events
	switch {
	case slices.Contains(e.changed, nsid) || e.many:
	case len(e.changed) == nvme.MaxActive:
		e.changed, e.many = nil, true
	default:
		e.changed = append(e.changed, nsid)
	}
	if e.mask&nvme.EventNamespaces != 0 {
		x.raiseLocked(eventNamespaces)
	}
	x.mu.Unlock()
	x.tell()
}

// discoveryChanged notes that the discovery log has changed.
func (x *controller) discoveryChanged() {
	x.mu.Lock()
	if x.events.mask&nvme.EventDiscovery != 0 {
		x.raiseLocked(eventDiscovery)
	}
	x.mu.Unlock()
	x.tell()
}

// reservationChanged notes what has become of a registration or a reservation.
func (x *controller) reservationChanged(nsid uint32, what nvme.ReservationNotice) {
	x.mu.Lock()
	e := &x.events
	if e.muted[nsid]&(1<<what) == 0 {
		e.noticed++
		if len(e.notices) == maxNotices {
			e.notices = e.notices[1:]
		}
		e.notices = append(e.notices, notice{what, nsid})
		x.raiseLocked(eventReservations)
	}
	x.mu.Unlock()
	x.tell()
}

// changedNamespaces is the log of these, which begins anew.
func (x *controller) changedNamespaces(clear bool) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := &x.events
	list := slices.Sorted(slices.Values(e.changed))
	if e.many {
		list = []uint32{nvme.AllNamespaces}
	}
	if clear {
		e.changed, e.many = nil, false
	}
	return nvme.AppendActive(nil, list)
}

// reservationLog is the oldest notice, which is then forgotten.
func (x *controller) reservationLog(clear bool) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := &x.events
	if len(e.notices) == 0 {
		return nvme.AppendReservationLog(nil, e.noticed, 0, 0, 0)
	}
	n := e.notices[0]
	left := len(e.notices) - 1
	b := nvme.AppendReservationLog(nil, e.noticed-uint64(left), n.what, uint8(left), n.nsid)
	if clear {
		e.notices = e.notices[1:]
	}
	return b
}
