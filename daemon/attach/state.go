package attach

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
)

// Disk names a peer's export, as a local consumer has it attached.
type Disk struct {
	ULP    string `json:"ulp,omitempty"` // "": root
	Peer   string `json:"peer"`
	Export string `json:"export"`
}

// String is PEER/EXPORT: whose it is, its owner knows.
func (k Disk) String() string { return k.Peer + "/" + k.Export }

func (k Disk) compare(o Disk) int {
	return cmp.Or(cmp.Compare(k.Peer, o.Peer), cmp.Compare(k.Export, o.Export), cmp.Compare(k.ULP, o.ULP))
}

// Saved is an attached disk, the user of its ULP who attached it, and the identity of
// the peer that it was attached from.
type Saved struct {
	Disk
	UID      uint32             `json:"uid,omitempty"`
	Identity transport.Identity `json:"identity,omitempty"` // "": of before it was kept
	Claim    rnbd.Claim         `json:"claim"`
	// Device is the name of its block device, "" if it is on an NBD socket.
	Device string `json:"device,omitempty"`
	// VhostUser is its vhost-user socket, "" if it has none.
	VhostUser string `json:"vhost_user,omitempty"`
	// Service is the name by which the fabric's directory was asked for it, "" if none was.
	Service string `json:"service,omitempty"`
	// Partition is that in which it is attached, "": none. Label is the security label of who attached it, as the kernel
	// reported it; "": it reported none.
	Partition string `json:"partition,omitempty"`
	Label     string `json:"label,omitempty"`
}

// suspended is a disk that waits for its peer, or its ULP, and the attachment of it that is
// ending, if any.
type suspended struct {
	Saved
	before *Attachment
	moving bool // Move restores it
}

// toSave returns the disk as it is to be saved.
func (w suspended) toSave() Saved {
	if w.before != nil {
		w.Claim = w.before.currentClaim()
	}
	return w.Saved
}

// state is what outlives the daemon: which disks are attached.
type state struct {
	Version     int     `json:"version"`
	Attachments []Saved `json:"attachments"`
}

const stateVersion = 1

func stateFile(dir string) string { return filepath.Join(dir, "attachments.json") }

// Load reads which disks are attached from a daemon's state directory, none from one without
// the file. It fails for a file that cannot be read.
func Load(dir string) ([]Saved, error) {
	var s state
	data, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Version != stateVersion {
		err = fmt.Errorf("version %d, this daemon knows %d", s.Version, stateVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("read which disks are attached from %s: %w; remove the file and attach them again", stateFile(dir), err)
	}
	return s.Attachments, nil
}

// SaveOrLog saves which disks are attached. It only logs a failure.
func (a *Attacher) SaveOrLog() {
	if err := a.save(); err != nil {
		a.log.Error("cannot write down which disks are attached; the daemon keeps trying", "error", err)
	}
}

// Retry saves what could not be saved before.
func (a *Attacher) Retry() {
	if a.unsaved.Load() && a.save() == nil {
		a.log.Info("which disks are attached could be written down at last")
	}
}

// save saves which disks are attached. Retry tries again what cannot be written. Callers that come while
// the file is being written share the next write, so that many disks at once do not take one each.
func (a *Attacher) save() *api.Error {
	mine := a.toSave.Add(1)
	a.saving.Lock()
	defer a.saving.Unlock()
	if a.saved >= mine {
		return nil
	}
	upTo := a.toSave.Load()
	all := map[Disk]Saved{}
	a.mu.Lock()
	for k, w := range a.suspended {
		all[k] = w.toSave()
	}
	for k, at := range a.disks {
		all[k] = at.saved()
	}
	a.mu.Unlock()
	s := state{Version: stateVersion, Attachments: slices.SortedFunc(maps.Values(all), func(x, y Saved) int { return x.compare(y.Disk) })}
	dir := a.cfg.Config().StateDir
	err := wholefile.WriteJSON(stateFile(dir), s)
	a.unsaved.Store(err != nil)
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot write down which disks are attached: %v", err),
			Fix: fmt.Sprintf("make room in %s, or repair what the error says", dir)}
	}
	a.saved = upTo
	return nil
}
