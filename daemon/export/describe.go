package export

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rnbd"
)

// List describes all exports.
func (r *Exporter) List() []api.Export {
	info := map[string]rnbd.ExportInfo{}
	for _, i := range r.server.Exports() {
		info[i.Name] = i
	}
	out := []api.Export{}
	for _, e := range r.list() {
		c := r.declared(e)
		out = append(out, e.describe(c, info[c.Name]))
	}
	return out
}

// Meter samples the counters of all exports, for their rates.
func (r *Exporter) Meter(now time.Time) {
	stats := map[string]rnbd.Stats{}
	for _, i := range r.server.Exports() {
		stats[i.Name] = i.Stats
	}
	for _, e := range r.list() {
		e.meter.Sample(now, ioOf(stats[r.declared(e).Name]))
	}
}

func ioOf(s rnbd.Stats) api.IO {
	return api.IO{Reads: s.Reads, Writes: s.Writes, ReadBytes: s.ReadBytes, WriteBytes: s.WriteBytes, Errors: s.Errors}
}

func (e *export) describe(c config.Export, i rnbd.ExportInfo) api.Export {
	e.mu.Lock()
	store, problem, opening := e.store, e.problem, e.opening
	e.mu.Unlock()
	v := api.Export{
		ExportSpec: Spec(c),
		Source:     c.Origin.String(), LUN: c.LUN, State: api.ExportReady, Problem: problem, Opens: len(i.Openers), Size: int64(i.Size), Generation: i.Generation,
	}
	if store != nil {
		v.UUID, v.Warning = store.Identity().Disk.String(), errorPolicyWarning(c.Name, store)
	}
	v.IO, v.Latency = ioOf(i.Stats), api.Latencies(i.Stats.Latency)
	e.meter.Rates(&v.IO)
	switch {
	case store == nil && opening != nil && problem == nil:
		v.State = api.ExportOpening
	case store == nil:
		v.State = api.ExportProblem
	case problem == nil:
		v.Problem = cmp.Or(lostWrites(c.Name, store), e.fileProblem(c, store.Size()))
		if v.Problem != nil {
			v.State = api.ExportProblem
		}
	}
	return v
}

// fileProblem reports a file that is shorter than its export, was replaced, or is gone; nil if it
// is none of that.
func (e *export) fileProblem(c config.Export, opened int64) *api.Error {
	st, err := e.stat(c.Path)
	switch {
	case errors.Is(err, errHangs):
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: %s: %v", c.Name, c.Path, err), Fix: "its I/O waits; see the kernel's log"}
	case err == nil && e.isReplaced(c.Path):
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: another file stands at %s; peers still have the one before", c.Name, c.Path),
			Fix: "run `ironwarp reload` to offer the new one: what peers have attached of the one before fails then; its data is lost when the daemon ends, if it has no other name"}
	case errors.Is(err, os.ErrNotExist):
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("export %s: %s has been removed; peers still have what was there", c.Name, c.Path),
			Fix: "run `ironwarp export rm " + c.Name + "` if that was meant; the data is lost when the daemon ends"}
	case err != nil || !st.Mode().IsRegular() || st.Size() >= opened:
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: %s has shrunk from %d to %d bytes; I/O beyond its end fails with EIO", c.Name, c.Path, opened, st.Size()),
		Fix: "restore its size with `truncate -s " + fmt.Sprint(opened) + " " + c.Path + "`, or remove the export and add it again"}
}

// problemOf is why an export cannot be offered, nil if it can.
func problemOf(name string, err error) *api.Error {
	if err == nil {
		return nil
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot offer export %s: %v", name, err)}
	if errors.Is(err, errSameDisk) {
		e.Fix = "offer one of them only; of a device with several paths its multipath device. Of two files copy one: `cp FILE FILE.new && mv FILE.new FILE` makes it a disk of its own"
	}
	if errors.Is(err, os.ErrNotExist) {
		e.Code = api.CodeNotFound
	}
	return e
}

// reasonForPeers is what peers get as the state of an export that cannot be offered, "" if it can:
// no path of this host, and nothing about its other exports.
func reasonForPeers(err error) string {
	var open *backing.OpenError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errSameDisk):
		return "its disk is offered under another name"
	case errors.Is(err, backing.ErrInUse):
		return "its storage is in use"
	case errors.Is(err, errHangs):
		return errHanging(storageTime).Error()
	case errors.As(err, &open):
		return open.Reason
	}
	return "its storage cannot be opened"
}
