package daemon

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/directory"
	"github.com/ironwarp/ironwarp/internal/rate"
)

// How disks follow the services by whose names they are attached. The directory's events are a reason to look, and whoever keeps it may
// tell as many as it likes: so they only mark services, and one goroutine looks for these, one after another.
//
//	onFabricEvent -> following.due -> followServices -> followService: ask the directory -> attach.Move

// followPause is between two looks at services, and linesEach and linesBurst say how many events are a line of the log each before like
// ones of a manager are counted instead: a line each ten seconds, and those of a fabric that comes up.
const (
	followPause = time.Second
	linesEach   = 10 * time.Second // see followPause
	linesBurst  = 200              // see followPause
)

// following is the services that are to be looked for.
type following struct {
	once sync.Once
	wake chan struct{} // capacity 1: there are some; made by once

	mu    sync.Mutex // guards the fields below it
	due   map[string]bool
	lines rate.Bucket // of the log
}

func (f *following) waits() chan struct{} {
	f.once.Do(func() { f.wake = make(chan struct{}, 1) })
	return f.wake
}

// add marks a service.
func (f *following) add(name string) {
	f.mu.Lock()
	if f.due == nil {
		f.due = map[string]bool{}
	}
	f.due[name] = true
	f.mu.Unlock()
	select {
	case f.waits() <- struct{}{}:
	default:
	}
}

// take returns the services that are marked, and unmarks them.
func (f *following) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := slices.Sorted(maps.Keys(f.due))
	f.due = nil
	return names
}

// isLine reports whether an event is a line of the log by itself.
func (f *following) isLine() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lines.Take(rate.Limit{PerSecond: 1 / linesEach.Seconds(), Burst: linesBurst}, time.Now())
}

// onFabricEvent logs what the directory says has happened, and has the disks of services that may have come looked for.
func (d *Daemon) onFabricEvent(e directory.Event) {
	attrs := []any{"event", e.Kind}
	if e.Host != 0 {
		attrs = append(attrs, "host", d.hostName(e.Host))
	}
	if e.To != 0 {
		attrs = append(attrs, "to", d.hostName(e.To))
	}
	if !d.fabric.follow.isLine() {
		attrs = append(attrs, "peer", d.hostName(e.From))
	}
	d.log.Info("fabric", attrs...)
	switch e.Kind {
	case directory.ExportCome, directory.HostUp, directory.PathBack, directory.Connected, directory.EventsLost:
	default:
		return
	}
	for _, name := range d.disks.Services() {
		if e.Kind != directory.ExportCome || e.Service == directory.IDOf(directory.Export, name) {
			d.fabric.follow.add(name)
		}
	}
}

// followServices looks for the services that are marked, until ctx ends.
func (d *Daemon) followServices(ctx context.Context) {
	said := map[string]string{} // of the services whose disks stay, why
	for {
		select {
		case <-d.fabric.follow.waits():
		case <-ctx.Done():
			return
		}
		for _, name := range d.fabric.follow.take() {
			err := d.followService(ctx, name)
			switch {
			case err == nil:
				delete(said, name)
			case said[name] != err.Error():
				d.log.Info("fabric: a service's disk stays as it is", "service", name, "error", err)
				said[name] = err.Error()
			}
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return
		}
	}
}

// followService attaches the disks of a service from where it is now, if they are not to be had where they were. It fails as findService does.
func (d *Daemon) followService(ctx context.Context, name string) error {
	peer, export, err := d.findService(ctx, d.local.AsRoot(), name)
	if err != nil {
		return err
	}
	for _, k := range d.disks.Move(ctx, name, peer, export) {
		d.log.Info("fabric: a disk is attached from where its service is now", "service", name, "disk", k.String())
	}
	return nil
}
