package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
)

// disk names a peer's export, as a local consumer has it attached.
type disk struct {
	ULP    string `json:"ulp,omitempty"` // "": root
	Peer   string `json:"peer"`
	Export string `json:"export"`
}

// String is PEER/EXPORT: whose it is, its owner knows.
func (d disk) String() string { return d.Peer + "/" + d.Export }

// saved is an attached disk, the user of its ULP who attached it, and the identity of
// the peer that it was attached from.
type saved struct {
	disk
	UID      uint32             `json:"uid,omitempty"`
	Identity transport.Identity `json:"identity,omitempty"` // "": of before it was kept
	Claim    rnbd.Claim         `json:"claim"`
}

// aside is a disk that waits for its ULP, and the attachment of it that is ending, if any.
type aside struct {
	saved
	before *attachment
}

// now is what is to be saved of the disk.
func (a aside) now() saved {
	if a.before != nil {
		a.Claim = a.before.claimed()
	}
	return a.saved
}

// state is what outlives the daemon: which disks are attached.
type state struct {
	Version     int     `json:"version"`
	Attachments []saved `json:"attachments"`
}

const stateVersion = 1

func stateFile(dir string) string { return filepath.Join(dir, "attachments.json") }

// loadState reads the state; a directory without one is an empty state.
func loadState(dir string) (state, error) {
	var s state
	data, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Version != stateVersion {
		err = fmt.Errorf("version %d, this daemon knows %d", s.Version, stateVersion)
	}
	if err != nil {
		return state{}, fmt.Errorf("read which disks are attached from %s: %w; remove the file and attach them again", stateFile(dir), err)
	}
	return s, nil
}

func (s state) save(dir string) error {
	s.Version = stateVersion
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Write(stateFile(dir), append(data, '\n'))
}

// rememberOrLog is remember where nobody is to be told but the log.
func (d *Daemon) rememberOrLog() {
	if err := d.remember(); err != nil {
		d.log.Error("cannot write down which disks are attached; the daemon keeps trying", "error", err)
	}
}

// remember writes down what is attached. What cannot be written is tried again
// by supervise. Those who come while it is being written share the next time, so that
// many disks at once are not written down once for each.
func (d *Daemon) remember() error {
	mine := d.toSave.Add(1)
	d.saving.Lock()
	defer d.saving.Unlock()
	if d.saved >= mine {
		return nil
	}
	upTo := d.toSave.Load()
	var s state
	for _, at := range d.attachmentList() {
		s.Attachments = append(s.Attachments, at.saved())
	}
	d.mu.Lock()
	for _, a := range d.aside {
		s.Attachments = append(s.Attachments, a.now())
	}
	d.mu.Unlock()
	dir := d.config().StateDir
	err := s.save(dir)
	d.unsaved.Store(err != nil)
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot write down which disks are attached: %v", err),
			Fix: fmt.Sprintf("make room in %s, or repair what the error says", dir)}
	}
	d.saved = upTo
	return nil
}
