package verbs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// EventKind classifies an asynchronous event.
type EventKind uint8

// The kinds of events.
const (
	EventStreamUp      EventKind = iota + 1 // a stream was established
	EventStreamDown                         // a stream ended; Err says why, nil is graceful
	EventPeerFault                          // the peer broke a rule and was sent a Terminate, RDMAP's or that of the SCTP session
	EventTerminated                         // the peer sent a Terminate
	EventCQOverflow                         // a completion queue overflowed, its streams are aborted
	EventQuotaExceeded                      // a peer's connection was refused for want of resources
	EventSRQLimit                           // fewer receives are left in a shared receive queue than it was armed for
	EventSRQHighWater                       // a queue pair holds HighWater receives of a shared receive queue
	EventSlowPath                           // a stream was ended since its peer drove slow paths, see SlowPolicy
	EventPartition                          // a queue pair was ended since it may not use its partition any more

	eventKinds // one more than there are
)

func (k EventKind) String() string {
	if k < EventStreamUp || k > EventPartition {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return [...]string{"stream up", "stream down", "peer fault", "terminated by peer", "CQ overflow", "quota exceeded",
		"SRQ limit", "SRQ high water", "slow path", "partition denied"}[k-1]
}

// Event is an asynchronous event (RFC 5042 section 2.2.7).
type Event struct {
	Time time.Time
	Kind EventKind
	// Count is how many events of this kind and peer, or ULP, it stands for: 1, or more if
	// they came faster than they were taken; this is then the last of them.
	Count int
	QP    uint64 // 0: none
	CQ    *CQ    // EventCQOverflow
	SRQ   *SRQ   // EventSRQLimit, EventSRQHighWater
	Peer  transport.Identity
	Flow  transport.Flow
	Err   error
}

// eventQueue is bounded, whatever peers do, and never blocks the data path (RFC
// 5042 section 2.2.7). A source has eventsPerPeer entries to itself; events beyond
// that are counted in its last entry of that kind. In a full queue the source with the
// most entries gives way.
type eventQueue struct {
	signal chan struct{} // one slot: there is something

	mu      sync.Mutex  // guards the fields below it
	head    *eventEntry // oldest
	tail    *eventEntry
	n       int
	sources map[eventSource]*eventEntries // those that have entries
	dropped uint64
}

type eventEntry struct {
	Event
	prev, next *eventEntry
}

// eventSource is the source of an event: a peer, or a ULP.
type eventSource struct {
	peer transport.Identity
	ulp  *ULP
}

func (e *Event) source() eventSource {
	if e.Peer == "" && e.SRQ != nil {
		return eventSource{ulp: e.SRQ.pd.ulp}
	}
	return eventSource{peer: e.Peer}
}

// eventEntries are those of one source.
type eventEntries struct {
	n    int
	last [eventKinds]*eventEntry // of each kind
}

func (q *eventQueue) init() {
	q.signal = make(chan struct{}, 1)
	q.sources = make(map[eventSource]*eventEntries)
}

func (q *eventQueue) emit(e Event) {
	e.Time = time.Now()
	e.Count = 1
	q.mu.Lock()
	defer q.mu.Unlock()
	from := e.source()
	p := q.sources[from]
	if p == nil {
		p = new(eventEntries)
		q.sources[from] = p
	}
	if last := p.last[e.Kind]; last != nil && p.hasItsShare() {
		e.Count += last.Count
		last.Event = e
		return
	}
	if q.n == eventDepth && !q.givesWayLocked(p) {
		q.dropped++
		if p.n == 0 {
			delete(q.sources, from)
		}
		return
	}
	n := &eventEntry{Event: e, prev: q.tail}
	if q.tail != nil {
		q.tail.next = n
	} else {
		q.head = n
	}
	q.tail = n
	q.n++
	p.n++
	p.last[e.Kind] = n
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// makeRoomLocked drops the oldest entry of the source that has most, if it has more than
// n, the newcomer's number.
func (q *eventQueue) makeRoomLocked(n int) bool {
	most := n
	var from eventSource
	for id, p := range q.sources {
		if p.n > most {
			most, from = p.n, id
		}
	}
	if most == n {
		return false
	}
	for e := q.head; e != nil; e = e.next {
		if e.source() == from {
			q.dropped += uint64(e.Count)
			q.removeLocked(e)
			break
		}
	}
	return true
}

func (q *eventQueue) removeLocked(e *eventEntry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		q.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		q.tail = e.prev
	}
	q.n--
	p := q.sources[e.source()]
	if p.n--; p.n == 0 {
		delete(q.sources, e.source())
	} else if p.last[e.Kind] == e {
		p.last[e.Kind] = nil
	}
}

func (q *eventQueue) take() (e Event, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == nil {
		return e, false
	}
	e = q.head.Event
	q.removeLocked(q.head)
	if q.head != nil {
		select {
		case q.signal <- struct{}{}:
		default:
		}
	}
	return e, true
}

// TryEvent takes the oldest asynchronous event, if there is one. Events that are
// not taken are bounded in number: beyond a number for each peer and each ULP they
// are counted in one (Event.Count), and those that do not fit at all are dropped and
// counted (EventsDropped).
func (d *Device) TryEvent() (e Event, ok bool) { return d.events.take() }

// Event takes the oldest asynchronous event, and waits for one if there is none. The error
// is ctx's.
func (d *Device) Event(ctx context.Context) (Event, error) {
	for {
		if e, ok := d.events.take(); ok {
			return e, nil
		}
		select {
		case <-d.events.signal:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// EventsDropped is the number of events that found no room in the queue.
func (d *Device) EventsDropped() uint64 {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	return d.events.dropped
}
