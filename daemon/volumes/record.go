package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/wholefile"
)

// States of a record.
const (
	creating = "creating"
	ready    = "ready"
	removing = "removing"
)

const recordVersion = 1

// record is what is kept of a volume. One that has been stored is not changed: a changed copy takes its place.
type record struct {
	Version int              `json:"version"`
	Name    string           `json:"name"`
	Pool    string           `json:"pool"`
	PoolID  block.ID         `json:"pool_id"`
	ID      block.ID         `json:"id"` // that of its storage: what a name stands for changes, this does not
	Kind    string           `json:"kind"`
	State   string           `json:"state"`
	Source  string           `json:"source,omitempty"` // the name of the volume that it was made of
	Size    int64            `json:"size_bytes"`       // that it is to have
	Asked   api.VolumeCreate `json:"asked,omitzero"`   // the request that made it
	QoS     api.QoS          `json:"qos,omitzero"`
	Writers string           `json:"writers,omitempty"`
	Leases  []lease          `json:"leases,omitempty"` // by peer
	Created time.Time        `json:"created"`
}

// lease lets a peer attach a volume.
type lease struct {
	Peer       string `json:"peer"`  // its name
	Allow      string `json:"allow"` // as of config.Export: its IKE identity, if it has one
	ReadOnly   bool   `json:"read_only,omitempty"`
	Shared     bool   `json:"shared,omitempty"`
	Generation uint64 `json:"generation"`
	// Leaving: the peer may not attach the volume any more, and it is not known yet that nothing of it is under way.
	Leaving bool `json:"leaving,omitempty"`
}

func (r *record) clone() *record {
	c := *r
	c.Leases = slices.Clone(r.Leases)
	return &c
}

// check fails if a record that was read cannot be one of ours.
func (r *record) check(name string) error {
	switch {
	case r.Version != recordVersion:
		return fmt.Errorf("version %d, this daemon knows %d", r.Version, recordVersion)
	case r.Name != name || config.CheckExportName(r.Name) != nil || config.CheckExportName(r.Pool) != nil:
		return fmt.Errorf("it is of volume %q of pool %q", r.Name, r.Pool)
	case r.ID.IsZero() || r.PoolID.IsZero():
		return errors.New("it has no UUID")
	case r.Kind != api.KindVolume && r.Kind != api.KindSnapshot, r.State != creating && r.State != ready && r.State != removing:
		return fmt.Errorf("kind %q, state %q", r.Kind, r.State)
	case r.Size <= 0 || r.Size%sectorSize != 0 || len(r.Leases) > maxLeases:
		return fmt.Errorf("%d bytes, published to %d peers", r.Size, len(r.Leases))
	}
	return nil
}

// recordsDir is the directory of the records, and poolsDir that of what is known of pools.
func recordsDir(stateDir string) string { return filepath.Join(stateDir, "volumes") }
func poolsDir(stateDir string) string   { return filepath.Join(stateDir, "pools") }

func recordFile(dir, name string) string { return filepath.Join(dir, name+".json") }

// loadRecords reads all records. Those that cannot be read are unreadable, by name.
func loadRecords(dir string) (found map[string]*record, unreadable map[string]error, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	found, unreadable = map[string]*record{}, map[string]error{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(name, ".") {
			continue
		}
		var r record
		err := readJSON(filepath.Join(dir, e.Name()), &r)
		if err == nil {
			err = r.check(name)
		}
		if err != nil {
			unreadable[name] = err
			continue
		}
		found[name] = &r
	}
	return found, unreadable, nil
}

// readJSON reads a small regular file that nobody else could have put there.
func readJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return err
	} else if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return err
	}
	if len(data) > maxRecord {
		return fmt.Errorf("%s has more than %d bytes", path, maxRecord)
	}
	return json.Unmarshal(data, v)
}

// saveRecord makes a record durable.
func (x *Volumes) saveRecord(r *record) error {
	if err := wholefile.WriteJSON(recordFile(x.dir, r.Name), r); err != nil {
		return storageError(fmt.Sprintf("volume %s: its record cannot be written", r.Name), err)
	}
	return nil
}

// dropRecord removes a record for good.
func (x *Volumes) dropRecord(name string) error {
	err := os.Remove(recordFile(x.dir, name))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = wholefile.SyncDir(x.dir)
	}
	if err != nil {
		return storageError(fmt.Sprintf("volume %s: its record cannot be removed", name), err)
	}
	return nil
}
