package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/rnbd"
)

// places is which peer's attachment writes to which of the disks that are exported.
type places struct {
	Version int          `json:"version"`
	Writers []rnbd.Place `json:"writers"`
}

const placesVersion = 1

func placesFile(dir string) string { return filepath.Join(dir, "writers.json") }

// loadPlaces reads who wrote to the disks that an earlier daemon exported. A file that
// cannot be read is said, and begun anew: the disks are everybody's then who attaches
// them, and those that are attached have to be so anew.
func (d *Daemon) loadPlaces() []rnbd.Place {
	var p places
	data, err := os.ReadFile(placesFile(d.cfg.StateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err == nil && p.Version != placesVersion {
		err = fmt.Errorf("version %d, this daemon knows %d", p.Version, placesVersion)
	}
	if err != nil {
		d.log.Warn("who was writing to the exports is not known: their places are not kept, and peers have to attach anew what they have attached for writing", "file", placesFile(d.cfg.StateDir), "error", err)
		return nil
	}
	return p.Writers
}

// savePlaces writes down who writes to the exports.
func (d *Daemon) savePlaces(all []rnbd.Place) error {
	data, err := json.MarshalIndent(places{placesVersion, all}, "", "  ")
	if err == nil {
		err = wholefile.Write(placesFile(d.config().StateDir), append(data, '\n'))
	}
	if err != nil {
		d.log.Error("cannot write down who writes to the exports: nobody is let in who would be the next", "error", err)
	}
	return err
}
