package verbs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// ErrClosed is returned by operations on a closed device or object.
var ErrClosed = errors.New("verbs: closed")

// Config describes a Device.
type Config struct {
	Limits Limits // of the device; 0 fields take defaults
	Peer   Quota  // of each authenticated peer; 0 fields: no limit but the device's
}

// Device is a userspace RNIC. All methods are safe for concurrent use.
type Device struct {
	prm    manager
	stags  stagTable
	pool   *mpa.Pool // buffers of all streams
	stage  rdmap.StagePool
	events eventQueue
	assocs associations

	mu     sync.Mutex
	closed bool
	qps    map[uint64]*QP // idle ones too
	lns    map[*Listener]struct{}
	wg     sync.WaitGroup // streams' goroutines
}

// Open makes a Device.
func Open(cfg Config) (*Device, error) {
	limit := cfg.Limits.array()
	for i, def := range defaultLimits.array() {
		if limit[i] < 0 {
			return nil, fmt.Errorf("verbs: open a device: the limit of %s is %d, it can't be negative", resourceNames[i], limit[i])
		}
		if limit[i] == 0 {
			limit[i] = def
		}
	}
	d := &Device{pool: new(mpa.Pool), qps: make(map[uint64]*QP), lns: make(map[*Listener]struct{})}
	d.prm = manager{
		device: account{name: "the device", limit: limit},
		peers:  make(map[transport.Identity]*account),
		quota:  cfg.Peer.array(),
	}
	d.stags.init()
	d.events.init()
	d.assocs.init()
	return d, nil
}

// Close aborts every stream, those that are starting up included, and ends the
// device. It returns when no goroutine of the device is left.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	qps := make([]*QP, 0, len(d.qps))
	for _, qp := range d.qps {
		qps = append(qps, qp)
	}
	lns := make([]*Listener, 0, len(d.lns))
	for l := range d.lns {
		lns = append(lns, l)
	}
	d.mu.Unlock()
	for _, l := range lns {
		l.Close()
	}
	for _, qp := range qps {
		qp.Abort(ErrClosed)
	}
	d.assocs.close()
	d.wg.Wait()
	return nil
}

// QPs lists the queue pairs that have a live stream.
func (d *Device) QPs() []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	qps := make([]*QP, 0, len(d.qps))
	for _, qp := range d.qps {
		if qp.stream.Load() != nil {
			qps = append(qps, qp)
		}
	}
	return qps
}

// Usage is what of the device's resources is in use.
func (d *Device) Usage() Limits { return d.prm.usage(&d.prm.device) }

// ULP is a local consumer of the device, a principal with a quota (RFC 5042
// section 2.2). What one ULP has allocated, another can't use.
type ULP struct {
	dev  *Device
	name string
	acct account
}

// NewULP registers a consumer.
func (d *Device) NewULP(name string, quota Quota) (*ULP, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	return &ULP{dev: d, name: name, acct: account{name: "ULP " + name, limit: quota.array()}}, nil
}

// Name is the name given to NewULP.
func (u *ULP) Name() string { return u.name }

// Device is the device that the ULP uses.
func (u *ULP) Device() *Device { return u.dev }

// Usage is what the ULP has allocated.
func (u *ULP) Usage() Limits { return u.dev.prm.usage(&u.acct) }

// PD is a protection domain: queue pairs reach only memory regions of their own
// PD (RFC 5042 section 2.2.3).
type PD struct {
	ulp    *ULP
	charge charge

	mu     sync.Mutex
	users  int // memory regions, memory windows, queue pairs and shared receive queues
	closed bool
}

// AllocPD allocates a protection domain.
func (u *ULP) AllocPD() (*PD, error) {
	pd := &PD{ulp: u, charge: charge{ulp: &u.acct}}
	pd.charge.n[resPDs] = 1
	if err := u.dev.prm.take(&pd.charge); err != nil {
		return nil, err
	}
	return pd, nil
}

// ULP is the owner.
func (pd *PD) ULP() *ULP { return pd.ulp }

// ErrInUse is returned when an object that others depend on is to be freed.
var ErrInUse = errors.New("verbs: still in use")

// Dealloc frees the protection domain. It fails with ErrInUse while memory
// regions, memory windows, queue pairs or shared receive queues belong to it.
func (pd *PD) Dealloc() error {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	switch {
	case pd.closed:
		return nil
	case pd.users > 0:
		return fmt.Errorf("verbs: free a protection domain with %d memory regions, memory windows, queue pairs and shared receive queues: %w", pd.users, ErrInUse)
	}
	pd.closed = true
	pd.ulp.dev.prm.give(&pd.charge)
	return nil
}

func (pd *PD) enter() error {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.closed {
		return fmt.Errorf("verbs: use a freed protection domain: %w", ErrClosed)
	}
	pd.users++
	return nil
}

func (pd *PD) leave() {
	pd.mu.Lock()
	pd.users--
	pd.mu.Unlock()
}

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
)

func (k EventKind) String() string {
	if k < EventStreamUp || k > EventSRQHighWater {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return [...]string{"stream up", "stream down", "peer fault", "terminated by peer", "CQ overflow", "quota exceeded",
		"SRQ limit", "SRQ high water"}[k-1]
}

// Event is an asynchronous event (RFC 5042 section 2.2.7).
type Event struct {
	Time time.Time
	Kind EventKind
	QP   uint64 // 0: none
	CQ   *CQ    // EventCQOverflow
	SRQ  *SRQ   // EventSRQLimit, EventSRQHighWater
	Peer transport.Identity
	Flow transport.Flow
	Err  error
}

// eventQueue is bounded and never blocks the data path; what does not fit is
// counted.
type eventQueue struct {
	mu      sync.Mutex
	ch      chan Event
	dropped uint64
}

func (q *eventQueue) init() { q.ch = make(chan Event, eventDepth) }

func (q *eventQueue) emit(e Event) {
	e.Time = time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case q.ch <- e:
	default:
		q.dropped++
	}
}

// Events is the device's asynchronous event queue. It holds 1,024 events; more
// are dropped and counted.
func (d *Device) Events() <-chan Event { return d.events.ch }

// EventsDropped is the number of events that found the queue full.
func (d *Device) EventsDropped() uint64 {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	return d.events.dropped
}
