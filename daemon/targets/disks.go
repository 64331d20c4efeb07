package targets

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// stateDir is the directory, in that of the daemon's state, for what is kept of LUNs.
const stateDir = "iscsi"

// disks remembers which disk each LUN is, since initiators that log in again do not look whether it is
// the same; and where reservations are kept. Guarded by Targets.mu.
type disks struct {
	dir string
	log *slog.Logger
	of  map[string]string // by LUN
}

func lunKey(iqn string, lun uint16) string { return fmt.Sprintf("%s,%d", iqn, lun) }

func (d *disks) file() string { return filepath.Join(d.dir, "disks.json") }

// reservations is the file of a LUN's persistent reservations, and sanitize the one that knows whether it
// is being erased.
func (d *disks) reservations(iqn string, lun uint16) string {
	return d.ofLUN(iqn, lun, ".reservations")
}
func (d *disks) sanitize(iqn string, lun uint16) string { return d.ofLUN(iqn, lun, ".sanitize") }

func (d *disks) ofLUN(iqn string, lun uint16, what string) string {
	sum := sha256.Sum256([]byte(lunKey(iqn, lun)))
	return filepath.Join(d.dir, hex.EncodeToString(sum[:8])+what)
}

// load reads what an earlier daemon has saved. A file that cannot be read is logged, and begun anew.
func (d *disks) load(dir string, log *slog.Logger) {
	d.dir, d.log, d.of = dir, log, map[string]string{}
	data, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(data, &d.of)
	}
	if err != nil {
		d.of = map[string]string{}
		log.Warn("which disks LUNs were is not known: a disk that stands in the place of another is not noticed once", "error", err)
	}
}

func (d *disks) save() {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		d.log.Warn("cannot make the directory for what is kept of LUNs", "error", err)
	}
	if err := wholefile.WriteJSON(d.file(), d.of); err != nil {
		d.log.Warn("cannot write down which disks LUNs are", "error", err)
	}
}

// record notes that a LUN is a disk. It reports false, and the other one, if it was another.
func (d *disks) record(iqn string, lun uint16, disk block.ID) (was string, ok bool) {
	k := lunKey(iqn, lun)
	if was, known := d.of[k]; known {
		return was, was == disk.String()
	}
	d.of[k] = disk.String()
	d.save()
	return "", true
}

// forget forgets a LUN, and its reservations.
func (d *disks) forget(iqn string, lun uint16) {
	if _, known := d.of[lunKey(iqn, lun)]; !known {
		return
	}
	delete(d.of, lunKey(iqn, lun))
	d.save()
	for _, file := range []string{d.reservations(iqn, lun), d.sanitize(iqn, lun)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("cannot remove what is kept of a LUN", "iqn", iqn, "lun", lun, "error", err)
		}
	}
}

// thick is a medium whose blocks are not given back.
type thick struct{ lu.Medium }

// Geometry is that of the medium, but for unmapping.
func (t thick) Geometry() block.Geometry {
	g := t.Medium.Geometry()
	g.CanTrim = false
	return g
}
