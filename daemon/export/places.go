package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/rnbd"
)

// places is who may write to which exported disk.
type places struct {
	Version int          `json:"version"`
	Disks   []rnbd.Place `json:"disks"`
}

const placesVersion = 2

func placesFile(dir string) string { return filepath.Join(dir, "writers.json") }

// loadPlaces reads who wrote to the disks that an earlier daemon exported. A file that
// cannot be read is logged, and begun anew: then whoever attaches a disk first writes to it,
// and peers have to attach their disks anew.
func (r *Exporter) loadPlaces() []rnbd.Place {
	var p places
	data, err := os.ReadFile(placesFile(r.cfg.StateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	switch {
	case err != nil:
	case p.Version == 1:
		p.Disks, err = placesOfBefore(data)
	case p.Version != placesVersion:
		err = fmt.Errorf("version %d, this daemon knows %d", p.Version, placesVersion)
	}
	if err != nil {
		r.log.Warn("who was writing to the exports is not known: their places are not kept, and peers have to attach anew what they have attached for writing", "file", placesFile(r.cfg.StateDir), "error", err)
		return nil
	}
	return p.Disks
}

// placesOfBefore reads version 1: one writer of each disk, whose place is its token.
func placesOfBefore(data []byte) (all []rnbd.Place, err error) {
	var p struct {
		Writers []struct {
			Disk block.ID `json:"disk"`
			rnbd.Token
		} `json:"writers"`
	}
	err = json.Unmarshal(data, &p)
	for _, w := range p.Writers {
		all = append(all, rnbd.Place{Disk: w.Disk, Writers: []rnbd.Token{w.Token}})
	}
	return all, err
}

// savePlaces records who writes to the exports.
func (r *Exporter) savePlaces(all []rnbd.Place) error {
	err := wholefile.WriteJSON(placesFile(r.cfg.StateDir), places{placesVersion, all})
	if err != nil {
		r.log.Error("cannot record who writes to the exports: no new writer is let in", "error", err)
	}
	return err
}
