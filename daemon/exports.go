package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// export is a configured export and the storage below it.
type export struct {
	cfg    config.Export
	repair bool     // begin a new life of a disk that has lost writes
	disk   block.ID // that it has, or is about to have; guarded by Daemon.mu
	meter  meter

	mu      sync.Mutex
	store   *backing.Store // nil while it cannot be opened
	problem *api.Error
	why     string // the problem, as peers are told

	opening asked[opened]
	looking asked[stated]
}

func (e *export) isReady() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.store != nil
}

// openBlocks opens the server of block sessions.
func (d *Daemon) openBlocks() error {
	d.exporter = rnbd.NewServer(rnbd.ServerConfig{Logger: d.log, Places: d.loadPlaces(), KeepPlaces: d.savePlaces})
	var err error
	d.blocks, err = rtrs.NewServer(rtrs.ServerConfig{
		ULP: d.ulps.server, QueueDepth: d.cfg.Limits.QueueSize, MaxSessionsPerPeer: d.cfg.Limits.Sessions,
		NewSession: d.exporter.NewSession, TrustOf: d.trustOf, Logger: d.log,
	})
	return err
}

// addExport offers an export that is not there yet. changing is held.
func (d *Daemon) addExport(c config.Export) {
	e := &export{cfg: c}
	d.mu.Lock()
	d.exports[c.Name] = e
	d.mu.Unlock()
	d.openExport(e)
}

// records is where disks have their records that cannot have them with themselves.
func (d *Daemon) records() string { return filepath.Join(d.config().StateDir, "disks") }

// beingOpened is why an export waits whose storage nothing is known to be wrong with.
const beingOpened = "it is being opened"

// openExport opens the storage and offers it. What fails is the export's
// problem and is tried again. changing is held.
func (d *Daemon) openExport(e *export) {
	e.mu.Lock()
	before := e.problem
	e.mu.Unlock()
	if before == nil {
		// Whoever has it attached waits meanwhile.
		d.exporter.Await(e.cfg.Name, d.identities(e.cfg.Allow), beingOpened)
	}
	admit := func(disk block.ID) error { return d.takeDisk(e, disk) }
	store, err := e.open(d.records(), admit)
	if err == nil {
		// It may have been waited for no longer, and have come now.
		if err = admit(store.Identity().Disk); err == nil {
			err = d.exporter.AddExport(rnbd.Export{Name: e.cfg.Name, Storage: store, ReadOnly: e.cfg.ReadOnly, Allow: d.identities(e.cfg.Allow),
				SharedWriters: e.cfg.Writers == config.SharedWriters, Trust: d.config().ExportTrust(e.cfg).Model()})
		}
		if err != nil {
			store.Close()
			store = nil
		}
	}
	problem := exportProblem(e.cfg.Name, err)
	if err != nil {
		d.leaveDisk(e)
		d.exporter.Await(e.cfg.Name, d.identities(e.cfg.Allow), forPeers(err))
	}
	e.mu.Lock()
	e.store, e.problem, e.why = store, problem, forPeers(err)
	e.mu.Unlock()
	switch {
	case problem == nil:
		d.log.Info("export is offered", "export", e.cfg.Name, "path", e.cfg.Path, "bytes", store.Size(), "read_only", e.cfg.ReadOnly, "allowed", e.cfg.Allow)
		d.logRecord(e.cfg.Name, store)
		if w := careless(e.cfg.Name, store); w != nil {
			d.log.Warn(w.Message, "fix", w.Fix)
		}
	case before == nil || before.Message != problem.Message:
		d.log.Warn("export cannot be offered", "export", e.cfg.Name, "error", problem)
	}
}

func exportProblem(name string, err error) *api.Error {
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

// forPeers is what peers are told of an export that cannot be offered, "" if it can: no
// path of this host, and nothing of what else it has.
func forPeers(err error) string {
	var open *backing.OpenError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errSameDisk):
		return "its disk is offered under another name"
	case errors.Is(err, backing.ErrInUse):
		return "its storage is in use"
	case errors.Is(err, errHangs):
		return errHangs.Error()
	case errors.As(err, &open):
		return open.Reason
	}
	return "its storage cannot be opened"
}

// identities are those that IKE, or what stands in for it, has to have told of
// whoever an export allows. An identity that is named itself counts only where
// IKE is what tells.
func (d *Daemon) identities(allow []string) []transport.Identity {
	c := d.config()
	var ids []transport.Identity
	for _, a := range allow {
		if id, ok := strings.CutPrefix(a, config.AllowIdentity); ok {
			if slices.ContainsFunc(c.Peers, func(p config.Peer) bool { return p.Protection == config.ProtectIPsec && p.Identity() == id }) {
				ids = append(ids, transport.Identity(id))
			}
		} else if p, ok := c.Peer(a); ok {
			ids = append(ids, newPeer(p).identity)
		}
	}
	return ids
}

// dropExport stops offering an export. I/O of sessions that have it open fails
// from then on. changing is held.
func (d *Daemon) dropExport(e *export) {
	d.mu.Lock()
	delete(d.exports, e.cfg.Name)
	d.mu.Unlock()
	d.closeExport(e, d.exporter.RemoveExport)
}

func (d *Daemon) closeExports() {
	atOnce(d.exportList(), func(e *export) {
		d.closeExport(e, func(name string) error { return d.exporter.ReplaceExport(name, "the daemon is ending") })
	})
	if d.exporter != nil {
		// It has no exports left that could fail to close.
		_ = d.exporter.Close()
	}
}

// changeExport applies a different declaration. Peers that may not attach it any
// more lose their streams, so that they cannot go on with what they have open.
func (d *Daemon) changeExport(e *export, n config.Export) {
	if n.Path != e.cfg.Path || n.ReadOnly != e.cfg.ReadOnly {
		d.reopenExport(e, n, false)
		return
	}
	next := &export{cfg: n, store: e.store, problem: e.problem, why: e.why}
	d.mu.Lock()
	next.disk = e.disk
	d.exports[n.Name] = next
	d.mu.Unlock()
	if next.store == nil {
		e.opening.forget(opened.discard)
		return
	}
	allow := d.identities(n.Allow)
	if err := d.exporter.SetAllow(n.Name, allow, false); err != nil {
		d.log.Warn("cannot change who may attach an export", "export", n.Name, "error", err)
	}
	if err := d.exporter.SetWriters(n.Name, n.Writers == config.SharedWriters); err != nil {
		d.log.Warn("cannot change how many may write to an export", "export", n.Name, "error", err)
	}
	for _, id := range d.identities(e.cfg.Allow) {
		if !slices.Contains(allow, id) {
			d.abortStreams(id, fmt.Errorf("export %s is no longer allowed for this peer", n.Name))
		}
	}
}

// allowAgain tells the exports the identities of their peers, which a change of
// the peers may have changed, and how much sessions may be trusted.
func (d *Daemon) allowAgain() {
	for _, e := range d.exportList() {
		e.mu.Lock()
		ready, why := e.store != nil, e.why
		e.mu.Unlock()
		if !ready && why != "" {
			d.exporter.Await(e.cfg.Name, d.identities(e.cfg.Allow), why)
		}
		if !ready {
			continue
		}
		err := errors.Join(d.exporter.SetAllow(e.cfg.Name, d.identities(e.cfg.Allow), false), d.exporter.SetTrust(e.cfg.Name, d.config().ExportTrust(e.cfg).Model()))
		if err != nil {
			d.log.Warn("cannot change who may attach an export", "export", e.cfg.Name, "error", err)
		}
	}
}

func (d *Daemon) exportList() []*export {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*export, 0, len(d.exports))
	for _, e := range d.exports {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *export) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) })
	return list
}

// Exports describes all exports.
func (d *Daemon) Exports() []api.Export {
	info := map[string]rnbd.ExportInfo{}
	for _, i := range d.exporter.Exports() {
		info[i.Name] = i
	}
	out := []api.Export{}
	for _, e := range d.exportList() {
		out = append(out, e.describe(info[e.cfg.Name]))
	}
	return out
}

// exportNamed describes one that was declared. changing is held.
func (d *Daemon) exportNamed(name string) (api.Export, error) {
	for _, e := range d.Exports() {
		if e.Name == name {
			return e, nil
		}
	}
	return api.Export{}, &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("export %s is not there after it was declared", name)}
}

func (e *export) describe(i rnbd.ExportInfo) api.Export {
	e.mu.Lock()
	store, problem := e.store, e.problem
	e.mu.Unlock()
	v := api.Export{
		ExportSpec: specOfExport(e.cfg),
		Source:     e.cfg.Origin.String(), State: api.ExportReady, Problem: problem, Opens: len(i.Openers), Size: int64(i.Size),
	}
	if store != nil {
		v.UUID, v.Warning = store.Identity().Disk.String(), careless(e.cfg.Name, store)
	}
	v.IO = ioOf(i.Stats)
	e.meter.rates(&v.IO)
	switch {
	case store == nil:
		v.State = api.ExportProblem
	case problem == nil:
		v.Problem = cmp.Or(faulty(e.cfg.Name, store), e.shrunk(store.Size()))
		if v.Problem != nil {
			v.State = api.ExportProblem
		}
	}
	return v
}

// shrunk says whether the file has become shorter than it was when it was
// opened, or is gone.
func (e *export) shrunk(opened int64) *api.Error {
	c := e.cfg
	st, err := e.stat()
	switch {
	case errors.Is(err, errHangs):
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: %s: %v", c.Name, c.Path, err), Fix: "its I/O waits; see the kernel's log"}
	case err == nil && e.exchanged():
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: another file stands at %s; peers still have the one before", c.Name, c.Path),
			Fix: "run `ironwarp reload` to offer the new one: what peers have attached of the one before fails then; its data is lost when the daemon ends, if it has no other name"}
	case err == nil && st.Mode().IsRegular() && st.Size() > opened:
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: %s has grown from %d to %d bytes; peers have the size that it had", c.Name, c.Path, opened, st.Size()),
			Fix: "it is offered with its new size as soon as nobody has it attached; have peers detach it and attach it again"}
	case errors.Is(err, os.ErrNotExist):
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("export %s: %s has been removed; peers still have what was there", c.Name, c.Path),
			Fix: "run `ironwarp export rm " + c.Name + "` if that was meant; the data is lost when the daemon ends"}
	case err != nil || !st.Mode().IsRegular() || st.Size() >= opened:
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: %s has shrunk from %d to %d bytes; I/O beyond its end fails with EIO", c.Name, c.Path, opened, st.Size()),
		Fix: "restore its size with `truncate -s " + fmt.Sprint(opened) + " " + c.Path + "`, or remove the export and add it again"}
}
