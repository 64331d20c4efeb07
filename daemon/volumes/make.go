package volumes

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// Create makes a volume, see api.VolumeCreate. It fails with an *api.Error.
func (x *Volumes) Create(ctx context.Context, q api.VolumeCreate) (api.Volume, error) {
	if err := checkCreate(q); err != nil {
		return api.Volume{}, err
	}
	r := &record{Version: recordVersion, Name: q.Name, Pool: q.Pool, ID: block.NewID(), Kind: api.KindVolume, State: creating, Source: q.From, Size: q.Size, Asked: q, QoS: q.QoS, Writers: q.Writers}
	return x.make(ctx, r, q.From, func(have *record) bool { return have.Kind == api.KindVolume && have.Asked == q })
}

func checkCreate(q api.VolumeCreate) error {
	if err := checkVolumeName(q.Name); err != nil {
		return err
	}
	switch {
	case q.Size < 0 || q.Size%sectorSize != 0, q.Size == 0 && q.From == "":
		return errSize(q.Size)
	case q.Writers != "" && config.CheckWriters(q.Writers) != nil:
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("writers %q %s", q.Writers, config.CheckWriters(q.Writers))}
	}
	_, err := config.LimitsOf(q.QoS)
	return err
}

func checkVolumeName(name string) error {
	if err := config.CheckExportName(name); err != nil {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("volume name %q %s", name, err)}
	}
	return nil
}

func errSize(size int64) error {
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("a volume of %d bytes", size), Fix: fmt.Sprintf("a size is a multiple of %d bytes, above 0", sectorSize)}
}

// Snapshot makes a snapshot of a volume, see api.VolumeSnapshot. It fails with an *api.Error.
func (x *Volumes) Snapshot(ctx context.Context, volume string, q api.VolumeSnapshot) (api.Volume, error) {
	if err := checkVolumeName(q.Name); err != nil {
		return api.Volume{}, err
	}
	of, err := x.findReady(volume)
	if err == nil && !x.manages(ctx, of) {
		err = errUnknownVolume(volume)
	}
	if err != nil {
		return api.Volume{}, err
	}
	if of.Kind != api.KindVolume {
		return api.Volume{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is a snapshot, which does not change", volume), Fix: fmt.Sprintf("`ironwarp volume clone %s NAME` makes a volume of it", volume)}
	}
	r := &record{Version: recordVersion, Name: q.Name, Pool: of.Pool, ID: block.NewID(), Kind: api.KindSnapshot, State: creating, Source: volume, Asked: api.VolumeCreate{From: of.ID.String()}}
	return x.make(ctx, r, volume, func(have *record) bool {
		return have.Kind == api.KindSnapshot && have.Source == volume && have.Asked == r.Asked
	})
}

// make makes what a record describes: of zeroes, or a copy of another volume. If there is one of its name, that is the answer if it is the same.
func (x *Volumes) make(ctx context.Context, r *record, from string, isSame func(*record) bool) (v api.Volume, err error) {
	unlock, err := x.lock(ctx, r.Name, from)
	if err != nil {
		return v, err
	}
	defer unlock()
	if !x.manages(ctx, r) {
		return v, errNoPool(r.Pool)
	}
	ctx, cancel := x.finishing()
	defer cancel()
	p, err := x.openPool(ctx, r.Pool)
	if err != nil {
		return v, err
	}
	if have := x.find(r.Name); have != nil && have.State == creating && have.Pool == r.Pool {
		if err := x.undo(ctx, p, have); err != nil { // of a request that has failed, or of a daemon that was killed
			return v, err
		}
	}
	switch have := x.find(r.Name); {
	case have != nil && have.State == ready && isSame(have):
		return x.Show(ctx, r.Name)
	case have != nil || x.Has(r.Name):
		return v, &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("another volume or snapshot is called %s", r.Name), Fix: "choose another name; `ironwarp volume ls` lists those that are taken"}
	case x.host.IsDeclared(r.Name):
		return v, &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("an export is called %s", r.Name), Fix: "choose another name: a volume is an export by itself"}
	}
	source, err := x.source(p, r, from)
	if err == nil {
		err = checkRoom(ctx, p, r)
	}
	if err != nil {
		return v, err
	}
	r.PoolID, r.Created = p.poolID(), time.Now().UTC().Truncate(time.Second)
	if err := x.begin(p, r); err != nil {
		return v, err
	}
	x.cfg.step("recorded")
	err = x.build(ctx, p, r, source)
	if err == nil {
		x.cfg.step("made")
		done := r.clone()
		done.State = ready
		err = x.store(done)
	}
	if err != nil {
		if uerr := x.undo(ctx, p, r); uerr != nil {
			x.log.Warn("what was made of a volume cannot be taken away now; that is tried again", "volume", r.Name, "error", uerr)
		}
		return v, err
	}
	x.cfg.step("ready")
	x.log.Info("a volume was made", "volume", r.Name, "kind", r.Kind, "pool", r.Pool, "bytes", r.Size, "source", r.Source)
	if r.Kind == api.KindVolume {
		x.host.Apply(ctx, r.Name)
		x.host.Await(r.Name)
	}
	return x.Show(ctx, r.Name)
}

// source finds what a volume is to begin with, nil for zeroes, and gives the volume its size.
func (x *Volumes) source(p *pool, r *record, from string) (*record, error) {
	if from == "" {
		return nil, nil
	}
	s, err := x.findReady(from)
	if err != nil {
		return nil, err
	}
	feature := map[string]string{api.KindVolume: api.FeatureClones, api.KindSnapshot: api.FeatureSnapshots}[r.Kind]
	switch {
	case r.Kind == api.KindSnapshot && r.Asked.From != s.ID.String(): // it is another one since the request came
		return nil, errUnknownVolume(from)
	case s.Pool != r.Pool:
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is in pool %s, and not in %s", from, s.Pool, r.Pool), Fix: "a volume begins with what is in its own pool"}
	case !p.can(feature):
		return nil, &api.Error{Code: api.CodeUnsupported, Message: fmt.Sprintf("pool %s makes no %s: the file system at %s cannot share extents between files", r.Pool, feature, p.config().Where()),
			Fix: "have the pool on XFS (mkfs.xfs makes it with reflink=1) or btrfs, or in a thin pool of LVM"}
	}
	r.Size = cmp.Or(r.Size, s.Size)
	if r.Size < s.Size {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s has %s, and a volume of %s cannot begin with it", from, config.FormatSize(s.Size), config.FormatSize(r.Size)), Fix: "ask for that size, or more"}
	}
	return s, nil
}

// checkRoom fails for a volume that is larger than its pool.
func checkRoom(ctx context.Context, p *pool, r *record) error {
	u, err := p.driver.usage(ctx)
	if err != nil {
		return storageError("pool "+r.Pool, err)
	}
	if r.Size > u.size {
		return &api.Error{Code: api.CodeNoSpace, Message: fmt.Sprintf("volume %s of %s is larger than pool %s, which has %s", r.Name, config.FormatSize(r.Size), r.Pool, config.FormatSize(u.size)), Fix: "enlarge the pool, or ask for less"}
	}
	return nil
}

// begin records that a volume is being made, if the pool may have one more.
func (x *Volumes) begin(p *pool, r *record) error {
	most := p.config().MaxVolumes
	x.mu.Lock()
	full := isFull(x.countLocked(r.Pool), most)
	if !full {
		x.records[r.Name] = r // it counts from now on
	}
	x.mu.Unlock()
	if full {
		return &api.Error{Code: api.CodeNoSpace, Message: fmt.Sprintf("pool %s has %d volumes and snapshots, as many as it may have", r.Pool, most), Fix: "remove some, or raise max_volumes of the pool in the configuration"}
	}
	if err := x.saveRecord(r); err != nil {
		x.mu.Lock()
		delete(x.records, r.Name)
		x.mu.Unlock()
		return err
	}
	return nil
}

// build makes a volume's storage.
func (x *Volumes) build(ctx context.Context, p *pool, r, source *record) error {
	if source == nil {
		return p.driver.create(ctx, r.storage(), r.Size)
	}
	if err := x.copyOf(ctx, p, r, source); err != nil {
		return err
	}
	x.cfg.step("copied")
	if r.Size > source.Size {
		return p.driver.expand(ctx, r.storage(), r.Size)
	}
	return nil
}

// copyOf makes a volume's storage a copy of another one's. If that may be in use, its writes are held back meanwhile.
func (x *Volumes) copyOf(ctx context.Context, p *pool, r, source *record) error {
	if source.Kind == api.KindVolume {
		fctx, cancel := context.WithTimeout(ctx, freezeTime)
		defer cancel()
		thaw, err := x.host.Freeze(fctx, source.Name)
		if err != nil {
			return storageError(fmt.Sprintf("volume %s does not come to a rest, and goes on", source.Name), err)
		}
		defer thaw()
		x.cfg.step("frozen")
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, copyTime)
		defer end()
	}
	return p.driver.clone(ctx, source.storage(), r.storage())
}

// undo takes away what was made of a volume that did not come to be ready.
func (x *Volumes) undo(ctx context.Context, p *pool, r *record) error {
	if err := p.driver.remove(ctx, r.storage()); err != nil {
		return err
	}
	x.cfg.step("undone")
	return x.forget(r.Name)
}
