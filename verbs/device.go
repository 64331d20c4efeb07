package verbs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/ddp/tap"
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
	Idle   IdlePolicy
	Slow   SlowPolicy
	// Partitions decides who may use which partitions; nil: there are none.
	Partitions Partitions
}

// Device is a userspace RNIC. All methods are safe for concurrent use.
type Device struct {
	prm     manager
	stags   stagTable
	memory  memoryMap // that is registered
	exposed memoryMap // windows of protection domains whose streams do not trust each other
	pool    *mpa.Pool // buffers of all streams
	stage   rdmap.StagePool
	events  eventQueue
	reaper  reaper
	assocs  associations
	below   transport.Endpoints // listeners' sockets, and what is known about paths
	slow    atomic.Pointer[SlowPolicy]
	tap     tap.Tap

	partitions Partitions

	// Lock order: Device, QP, window, SRQ, CQ, associations, PD. All others, the manager's above
	// all, are innermost.
	mu     sync.Mutex // guards the fields below it
	closed bool
	qps    map[uint64]*QP // idle ones too
	lns    map[*Listener]struct{}
	wg     sync.WaitGroup // streams' goroutines
}

// Open makes a Device. It fails if a limit or policy of cfg is invalid.
func Open(cfg Config) (*Device, error) {
	limit, err := cfg.Limits.check(defaultLimits.array())
	if err != nil {
		return nil, fmt.Errorf("verbs: open a device: %w", err)
	}
	quota, err := cfg.Peer.check(amounts{})
	if err != nil {
		return nil, fmt.Errorf("verbs: open a device: the quota of peers: %w", err)
	}
	d := &Device{partitions: cfg.Partitions, pool: new(mpa.Pool), qps: make(map[uint64]*QP), lns: make(map[*Listener]struct{})}
	d.prm.init(limit, quota)
	d.stags.init()
	d.reaper.wake = make(chan struct{}, 1)
	d.events.init()
	d.assocs.init()
	d.SetIdlePolicy(cfg.Idle)
	if err := d.SetSlowPolicy(cfg.Slow); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.reaper.stop = stop
	d.wg.Go(func() { d.reap(ctx) })
	return d, nil
}

// Close aborts every stream, including those in start-up, and ends the device. It always
// returns nil, once no goroutine of the device is left.
func (d *Device) Close() error {
	d.reaper.stop()
	d.mu.Lock()
	d.closed = true
	qps := slices.Collect(maps.Values(d.qps))
	lns := slices.Collect(maps.Keys(d.lns))
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

// PD is a protection domain: queue pairs reach only memory regions of their own
// PD (RFC 5042 section 2.2.3). Everything made with it is charged to its ULP.
type PD struct {
	ulp    *ULP
	model  TrustModel
	trust  Trust
	charge charge

	mu      sync.Mutex // guards the fields below it
	users   int        // memory regions, memory windows, queue pairs and shared receive queues
	streams int        // queue pairs
	closed  bool
}

// AllocPD allocates a protection domain with the ULP's trust model. It fails with a
// *QuotaError, and with ErrClosed when the ULP is closed.
func (u *ULP) AllocPD() (*PD, error) { return u.AllocPDAs(u.Trust()) }

// AllocPDAs allocates a protection domain with a trust model at least as strict as the
// ULP's. By calling it the ULP declares that the streams of the domain may be
// trusted that much (RFC 5042 section 3). It fails with ErrTrust for a model that
// trusts more, and as AllocPD does.
func (u *ULP) AllocPDAs(m TrustModel) (*PD, error) {
	if most := u.Trust(); m.isMoreThan(most) {
		return nil, trustError(most, "3", fmt.Sprintf("allocate a protection domain of model %v for ULP %s", m, u.name))
	}
	pd := &PD{ulp: u, model: m, trust: m.Trust(), charge: charge{ulp: &u.acct}}
	pd.charge.n[resPDs] = 1
	if err := u.dev.prm.take(&pd.charge); err != nil {
		return nil, err
	}
	return pd, nil
}

// ULP is the owner.
func (pd *PD) ULP() *ULP { return pd.ulp }

// ErrInUse is returned by an attempt to free an object that others depend on.
var ErrInUse = errors.New("still in use")

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
		return &closedError{what: "use a freed protection domain"}
	}
	pd.users++
	return nil
}

func (pd *PD) leave() {
	pd.mu.Lock()
	pd.users--
	pd.mu.Unlock()
}

// enterStream is enter for a queue pair.
func (pd *PD) enterStream() error {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	switch {
	case pd.closed:
		return &closedError{what: "use a freed protection domain"}
	case pd.streams > 0 && pd.isForOneStream():
		return trustError(pd.model, "3", "create a second queue pair in a protection domain for one stream: allocate another, or one of a model that shares")
	}
	pd.users++
	pd.streams++
	return nil
}

func (pd *PD) leaveStream() {
	pd.mu.Lock()
	pd.users--
	pd.streams--
	pd.mu.Unlock()
}

// Trust is the protection domain's trust model.
func (pd *PD) Trust() TrustModel { return pd.model }
