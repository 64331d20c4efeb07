package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/wholefile"
)

// Host is what volumes need from the rest of the host. Its methods are called with no lock held.
type Host interface {
	// Apply makes a volume's export what Exports says of it now.
	Apply(ctx context.Context, name string)
	// Await waits until the storage of an export was opened or could not be, and AwaitClosed until that of exports that are gone
	// was closed, or is known to hang.
	Await(name string)
	AwaitClosed()
	// Freeze holds back what changes an export, see export.Exporter.Freeze. It fails as that does.
	Freeze(ctx context.Context, name string) (thaw func(), err error)
	// Grown is called when an export's storage has been made larger.
	Grown(name string)
	// Fence makes sure that nothing of a peer reaches an export's storage any more. It fails as export.Exporter.Fence does.
	Fence(ctx context.Context, name string, q api.FenceRequest) (api.Fenced, error)
	// Describe describes an export; ok is false if there is none.
	Describe(name string) (v api.Export, ok bool)
	// IsDeclared reports whether the configuration declares an export of a name.
	IsDeclared(name string) bool
	// Peer finds a peer by its name, or by its IKE identity behind config.AllowIdentity: its name, and how config.Export.Allow has it.
	Peer(nameOrIdentity string) (name, allow string, ok bool)
}

// Config describes the volumes of a host.
type Config struct {
	Log      *slog.Logger
	StateDir string
	Host     Host

	step func(string) // called after each step, in tests; nil: nobody is
}

// Volumes are the pools and volumes of a host. All methods are safe for concurrent use.
type Volumes struct {
	cfg  Config
	log  *slog.Logger
	host Host
	dir  string // of the records
	life context.Context
	end  context.CancelFunc

	mu         sync.Mutex // guards the fields below it
	pools      map[string]*pool
	records    map[string]*record
	unreadable map[string]error         // records that are not understood, by name, whose volumes are left alone
	checked    map[block.ID]bool        // volumes whose storage has the size that is recorded
	busy       map[string]chan struct{} // names that somebody works on; closed when that is over
}

// New returns the volumes that are recorded in a state directory. It fails if that cannot be read.
func New(cfg Config) (*Volumes, error) {
	x := &Volumes{cfg: cfg, log: cfg.Log, host: cfg.Host, dir: recordsDir(cfg.StateDir), pools: map[string]*pool{}, checked: map[block.ID]bool{}, busy: map[string]chan struct{}{}}
	x.life, x.end = context.WithCancel(context.Background())
	if x.cfg.step == nil {
		x.cfg.step = func(string) {}
	}
	for _, dir := range []string{x.dir, poolsDir(cfg.StateDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of volumes: %w", err)
		}
		if err := wholefile.RemoveTemporary(dir); err != nil {
			return nil, err
		}
	}
	var err error
	if x.records, x.unreadable, err = loadRecords(x.dir); err != nil {
		return nil, fmt.Errorf("read the records of volumes: %w", err)
	}
	for name, err := range x.unreadable {
		x.log.Error("a volume's record is not understood: the volume is left alone, and its name stays taken", "volume", name, "file", recordFile(x.dir, name), "error", err)
	}
	return x, nil
}

// SetPools makes the pools those of a configuration.
func (x *Volumes) SetPools(pools []config.Pool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	next := map[string]*pool{}
	for _, c := range pools {
		if p := x.pools[c.Name]; p != nil && p.sameStorage(c) {
			p.setConfig(c)
			next[c.Name] = p
			continue
		}
		next[c.Name] = newPool(c)
	}
	x.pools = next
}

// Exports are the exports that the volumes are, by name.
func (x *Volumes) Exports() (all []config.Export) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(x.records)) {
		if e, ok := x.exportLocked(x.records[name]); ok {
			all = append(all, e)
		}
	}
	return all
}

// Export is the export that a volume is; ok is false if it is none.
func (x *Volumes) Export(name string) (e config.Export, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.records[name]; r != nil {
		return x.exportLocked(r)
	}
	return e, false
}

func (x *Volumes) exportLocked(r *record) (e config.Export, ok bool) {
	p := x.pools[r.Pool]
	if r.State != ready || r.Kind != api.KindVolume || p == nil {
		return e, false
	}
	limits, err := config.LimitsOf(r.QoS)
	if err != nil {
		x.log.Warn("the limits of a volume are not understood: it has none", "volume", r.Name, "error", err)
	}
	e = config.Export{Name: r.Name, Path: p.driver.path(r.storage()), Writers: config.ParseWriters(r.Writers), QoS: limits,
		Volume: true, InDirectory: p.config().Driver == api.DriverFile, Origin: config.Pos{File: recordFile(x.dir, r.Name)}}
	for _, l := range r.Leases {
		if l.Leaving {
			continue
		}
		e.Allow = append(e.Allow, l.Allow)
		if l.ReadOnly {
			e.Readers = append(e.Readers, l.Allow)
		}
		if l.Shared {
			e.Writers = config.SharedWriters
		}
	}
	slices.Sort(e.Allow)
	slices.Sort(e.Readers)
	return e, true
}

// Has reports whether a volume or snapshot has a name.
func (x *Volumes) Has(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.records[name] != nil || x.unreadable[name] != nil
}

// PoolOf is the pool of a volume; ok is false if there is no such volume.
func (x *Volumes) PoolOf(name string) (pool string, ok bool) {
	r := x.find(name)
	if r == nil {
		return "", false
	}
	return r.Pool, true
}

// find is the record of a volume, nil if there is none.
func (x *Volumes) find(name string) *record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.records[name]
}

// errUnknownVolume is the answer where there is no volume.
func errUnknownVolume(name string) error {
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no volume %s", name), Fix: "`ironwarp volume ls` lists them"}
}

// findReady is the record of a volume that is neither being made nor removed.
func (x *Volumes) findReady(name string) (*record, error) {
	r := x.find(name)
	if r == nil || r.State == creating {
		x.mu.Lock()
		err := x.unreadable[name]
		x.mu.Unlock()
		if err != nil {
			return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the record of volume %s is not understood: %v", name, err), Fix: "see to " + recordFile(x.dir, name)}
		}
		return nil, errUnknownVolume(name)
	}
	if r.State == removing {
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("volume %s is being removed", name), Fix: "`ironwarp volume rm " + name + "` goes on with it"}
	}
	return r, nil
}

// store makes a record the volume's, durably.
func (x *Volumes) store(r *record) error {
	if err := x.saveRecord(r); err != nil {
		return err
	}
	x.know(r)
	return nil
}

// know has a record take the place of the one before it, until the daemon ends.
func (x *Volumes) know(r *record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.records[r.Name] = r
}

// forget removes the record of a volume whose storage is gone.
func (x *Volumes) forget(name string) error {
	if err := x.dropRecord(name); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.records, name)
	return nil
}

// lock keeps other requests from volumes, until unlock. It waits for those that work on them, and fails if that takes long, and with
// ctx's error.
func (x *Volumes) lock(ctx context.Context, names ...string) (unlock func(), err error) {
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == "" })
	ctx, cancel := context.WithTimeout(ctx, busyTime)
	defer cancel()
	var mine []string
	unlock = func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, name := range mine {
			close(x.busy[name])
			delete(x.busy, name)
		}
	}
	for _, name := range names {
		for {
			over := x.tryLock(name)
			if over == nil {
				mine = append(mine, name)
				break
			}
			select {
			case <-over:
			case <-ctx.Done():
				unlock()
				return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("another request works on volume %s", name), Fix: "try again"}
			}
		}
	}
	return unlock, nil
}

// tryLock takes a name, or returns what is closed when it is free.
func (x *Volumes) tryLock(name string) (over <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.busy[name]; c != nil {
		return c
	}
	x.busy[name] = make(chan struct{})
	return nil
}

// finishing is a context for what is carried through once it has begun, also if whoever asked has gone. The end of the host ends it: the next
// one recovers what was not finished.
func (x *Volumes) finishing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(x.life, operationTime)
}

// Close gives up what is being done. It is idempotent.
func (x *Volumes) Close() { x.end() }

// List describes all volumes and snapshots, by name.
func (x *Volumes) List(ctx context.Context) []api.Volume {
	return x.ListOf(ctx, func(config.Pool) bool { return true })
}

// ListOf is List of some pools.
func (x *Volumes) ListOf(ctx context.Context, of func(config.Pool) bool) []api.Volume {
	byPool := map[*pool][]*record{}
	out := []api.Volume{}
	x.mu.Lock()
	for _, r := range x.records {
		p := x.pools[r.Pool]
		if r.State != creating && (p == nil && of(config.Pool{}) || p != nil && of(p.config())) {
			byPool[p] = append(byPool[p], r)
		}
	}
	x.mu.Unlock()
	for p, records := range byPool {
		all := make([]storage, len(records))
		for i, r := range records {
			all[i] = r.storage()
		}
		var problem error = errNoPool(records[0].Pool)
		measures := map[block.ID]measure{}
		if p != nil {
			measures, problem = p.driver.measureAll(ctx, all)
		}
		for _, r := range records {
			m, ok := measures[r.ID]
			v := x.describe(r, m)
			switch {
			case problem != nil:
				v.Problem = apiError(problem)
			case !ok && v.Problem == nil:
				v.Problem = &api.Error{Code: api.CodeNotFound, Message: p.driver.path(r.storage()) + " is not there", Fix: "is the pool's storage there, and was nothing removed by hand?"}
			}
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b api.Volume) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Show describes one volume or snapshot. It fails with an *api.Error.
func (x *Volumes) Show(ctx context.Context, name string) (api.Volume, error) {
	r := x.find(name)
	if r == nil || r.State == creating || !x.manages(ctx, r) {
		_, err := x.findReady(name)
		return api.Volume{}, cmp.Or(err, errUnknownVolume(name))
	}
	p, err := x.pool(r.Pool)
	if err != nil {
		v := x.describe(r, measure{})
		v.Problem = apiError(err)
		return v, nil
	}
	m, err := p.driver.measure(ctx, r.storage())
	v := x.describe(r, m)
	if err != nil && v.Problem == nil {
		v.Problem = apiError(err)
	}
	return v, nil
}

func (x *Volumes) describe(r *record, m measure) api.Volume {
	v := api.Volume{Name: r.Name, Pool: r.Pool, UUID: r.ID.String(), Kind: r.Kind, Source: r.Source, Size: cmp.Or(m.size, r.Size), Used: m.used,
		QoS: r.QoS, Writers: r.Writers, Allow: []api.PeerLease{}, Created: r.Created}
	for _, l := range r.Leases {
		v.Allow = append(v.Allow, api.PeerLease{Peer: l.Peer, ReadOnly: l.ReadOnly, Shared: l.Shared, Generation: l.Generation, Leaving: l.Leaving})
	}
	if r.State == removing {
		v.Problem = &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("volume %s is being removed", r.Name), Fix: "`ironwarp volume rm " + r.Name + "` goes on with it"}
		return v
	}
	if r.Kind != api.KindVolume {
		return v
	}
	e, ok := x.host.Describe(r.Name)
	switch {
	case ok && x.host.IsDeclared(r.Name), !ok && x.host.IsDeclared(r.Name):
		v.Problem = &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("the configuration declares an export %s, which has this volume's name", r.Name), Fix: "remove or rename that export; the volume is offered then"}
	case ok:
		v.Export, v.State, v.Problem, v.Generation = r.Name, e.State, e.Problem, e.Generation
	}
	return v
}

// apiError is an error as the API has it.
func apiError(err error) *api.Error {
	var known *api.Error
	if errors.As(err, &known) {
		return known
	}
	return storageError("the storage", err)
}
