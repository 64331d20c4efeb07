package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/wholefile"
)

// pool is a configured pool.
type pool struct {
	driver driver

	opening sync.Mutex // held while the pool is being opened; outermost

	mu       sync.Mutex // guards the fields below it; innermost
	cfg      config.Pool
	id       block.ID // zero: it has not been opened
	features []string
	problem  *api.Error // of the last look
	usage    usage      // at the last look
	alarm    int        // the highest threshold that was crossed then
}

func newPool(c config.Pool) *pool {
	p := &pool{cfg: c}
	if c.Driver == api.DriverLVMThin {
		p.driver = newThinPool(c.VG, c.ThinPool)
	} else {
		p.driver = directory{dir: c.Path}
	}
	return p
}

func (p *pool) config() config.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg
}

func (p *pool) setConfig(c config.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg = c
}

func (p *pool) sameStorage(c config.Pool) bool {
	have := p.config()
	return have.Driver == c.Driver && have.Where() == c.Where()
}

// can reports whether an open pool has a feature.
func (p *pool) can(feature string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.features, feature)
}

// knownPool is what is kept of a pool.
type knownPool struct {
	Version int      `json:"version"`
	ID      block.ID `json:"id"`
}

const knownPoolVersion = 1

func errNoPool(name string) error {
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no pool %q", name), Fix: "`ironwarp pool ls` lists them; `pools:` in the configuration declares them"}
}

func (x *Volumes) pool(name string) (*pool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.pools[name]; p != nil {
		return p, nil
	}
	return nil, errNoPool(name)
}

// openPool finds a pool, and opens it at its first use. It fails with an *api.Error.
func (x *Volumes) openPool(ctx context.Context, name string) (*pool, error) {
	p, err := x.pool(name)
	if err != nil {
		return nil, err
	}
	return p, x.open(ctx, p)
}

func (x *Volumes) open(ctx context.Context, p *pool) error {
	p.opening.Lock()
	defer p.opening.Unlock()
	name := p.config().Name
	file := filepath.Join(poolsDir(x.cfg.StateDir), name+".json")
	var known knownPool
	if err := readJSON(file, &known); err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && known.Version != knownPoolVersion {
		return p.note(block.ID{}, nil, storageError("pool "+name+": what is known of it cannot be read from "+file, cmp.Or(err, fmt.Errorf("version %d", known.Version))))
	}
	// It is looked at each time: a file system may have been unmounted since.
	id, features, err := p.driver.open(ctx, known.ID)
	if err != nil {
		return p.note(block.ID{}, nil, storageError("pool "+name, err))
	}
	if known.ID.IsZero() {
		if err := wholefile.WriteJSON(file, knownPool{knownPoolVersion, id}); err != nil {
			return p.note(block.ID{}, nil, storageError("pool "+name+": what is known of it cannot be written to "+file, err))
		}
	}
	return p.note(id, features, nil)
}

// note notes what a look at the pool has found.
func (p *pool) note(id block.ID, features []string, problem *api.Error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem = problem
	if problem != nil {
		return problem
	}
	p.id, p.features = id, features
	return nil
}

func (p *pool) poolID() block.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Pools describes all pools, by name.
func (x *Volumes) Pools(ctx context.Context) []api.Pool {
	return x.PoolsOf(ctx, func(config.Pool) bool { return true })
}

// PoolsOf describes some pools.
func (x *Volumes) PoolsOf(ctx context.Context, of func(config.Pool) bool) []api.Pool {
	x.mu.Lock()
	var all []*pool
	for _, p := range x.pools {
		if of(p.config()) {
			all = append(all, p)
		}
	}
	x.mu.Unlock()
	out := make([]api.Pool, 0, len(all))
	for _, p := range all {
		out = append(out, x.describePool(ctx, p))
	}
	slices.SortFunc(out, func(a, b api.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// ShowPool describes one pool. It fails with an *api.Error.
func (x *Volumes) ShowPool(ctx context.Context, name string) (api.Pool, error) {
	p, err := x.pool(name)
	if err != nil {
		return api.Pool{}, err
	}
	return x.describePool(ctx, p), nil
}

func (x *Volumes) describePool(ctx context.Context, p *pool) api.Pool {
	u, err := p.driver.usage(ctx)
	n := x.count(p.config().Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.stateLocked(u, n)
	if err != nil && v.Problem == nil {
		v.Problem = apiError(err)
	}
	return v
}

// States describes all pools by the last look at each, without asking their storage, by name.
func (x *Volumes) States() []api.Pool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]api.Pool, 0, len(x.pools))
	for _, p := range x.pools {
		out = append(out, p.state(x.countLocked(p.config().Name)))
	}
	slices.SortFunc(out, func(a, b api.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (p *pool) state(volumes int) api.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stateLocked(p.usage, volumes)
}

func (p *pool) stateLocked(u usage, volumes int) api.Pool {
	return api.Pool{Name: p.cfg.Name, Driver: p.cfg.Driver, Where: p.cfg.Where(), Quota: p.cfg.MaxVolumes, Manage: append([]string{}, p.cfg.Manage...), Features: append([]string{}, p.features...),
		Problem: p.problem, Size: u.size, Free: u.free, Used: u.size - u.free, Alarm: crossed(u.percent(), p.cfg.Alarms), Volumes: volumes}
}

// count is how many volumes and snapshots of a pool there are, those included that are being made or removed.
func (x *Volumes) count(pool string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.countLocked(pool)
}

func (x *Volumes) countLocked(pool string) (n int) {
	for _, r := range x.records {
		if r.Pool == pool {
			n++
		}
	}
	return n
}

// crossed is the highest of some thresholds that a percentage has come to, 0 if none.
func crossed(percent float64, alarms []int) (highest int) {
	for _, a := range alarms {
		if percent >= float64(a) {
			highest = max(highest, a)
		}
	}
	return highest
}
