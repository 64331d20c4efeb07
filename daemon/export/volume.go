package export

import (
	"context"
	"fmt"

	"github.com/ironwarp/ironwarp/block/gate"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// ApplyOne makes one export that of the configuration, as Apply does with all. It is called as Apply is.
func (r *Exporter) ApplyOne(next *config.Config, name string) {
	e := r.find(name)
	c, ok := next.Export(name)
	switch {
	case e == nil && ok:
		r.open(r.add(c, false))
	case e != nil && !ok:
		r.removeExport(e)
	case e != nil && !c.Equal(r.declared(e)):
		r.changeExport(e, c)
	}
}

// AwaitClosed waits until the storage of exports that are no longer offered was closed, or is known to hang.
func (r *Exporter) AwaitClosed() { awaitAll(r.closingStorage()) }

// Describe describes an export; ok is false if there is none of the name.
func (r *Exporter) Describe(name string) (v api.Export, ok bool) {
	e := r.find(name)
	if e == nil {
		return v, false
	}
	info, _ := r.server.Export(name)
	return e.describe(r.declared(e), info), true
}

// Openers are the identities that have an export open.
func (r *Exporter) Openers(name string) (ids []transport.Identity) {
	info, _ := r.server.Export(name)
	for _, o := range info.Openers {
		ids = append(ids, o.Peer)
	}
	return ids
}

// Freeze holds back what changes a volume, until thaw is called, and makes durable what was written before: a copy of the storage that is made
// meanwhile is what a crash would leave. It fails with ctx's error if that does not come to an end, and with the storage's. A volume
// whose storage is not open is written by nobody.
func (r *Exporter) Freeze(ctx context.Context, name string) (thaw func(), err error) {
	e := r.find(name)
	if e == nil {
		return nil, errUnknown(name)
	}
	store, g := e.openGate()
	if store == nil {
		return func() {}, nil
	}
	return freeze(ctx, store, g)
}

// freeze is Freeze of a storage behind its gate.
func freeze(ctx context.Context, store storeOfVolume, g *gate.Storage) (thaw func(), err error) {
	thaw, err = g.Hold(ctx)
	if err != nil {
		return nil, err
	}
	flushed := make(chan error, 1)
	go func() { flushed <- store.Flush() }()
	select {
	case err = <-flushed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		thaw()
		return nil, fmt.Errorf("flush %s: %w", store.Path(), err)
	}
	return thaw, nil
}

// Grown takes over the size of a volume's storage, which has been made larger.
func (r *Exporter) Grown(name string) {
	if e := r.find(name); e != nil {
		r.offerGrowth(e)
	}
}

// openGate is what stands before the storage that is open, nil while none is.
func (e *export) openGate() (store storeOfVolume, g *gate.Storage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.store == nil {
		return nil, nil
	}
	return e.store, e.gate
}

// storeOfVolume is what Freeze needs of a storage.
type storeOfVolume interface {
	Flush() error
	Path() string
}
