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

// savedReservations is who may write to which exported disk.
type savedReservations struct {
	Version int                `json:"version"`
	Disks   []rnbd.Reservation `json:"disks"`
}

const reservationsVersion = 2

func reservationsFile(dir string) string { return filepath.Join(dir, "writers.json") }

// loadReservations reads who wrote to the disks that an earlier daemon exported. A file that
// cannot be read is logged, and begun anew: then whoever attaches a disk first writes to it,
// and peers have to attach their disks anew.
func (r *Exporter) loadReservations() []rnbd.Reservation {
	var p savedReservations
	data, err := os.ReadFile(reservationsFile(r.cfg.StateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	switch {
	case err != nil:
	case p.Version == 1:
		p.Disks, err = reservationsOfVersion1(data)
	case p.Version != reservationsVersion:
		err = fmt.Errorf("version %d, this daemon knows %d", p.Version, reservationsVersion)
	}
	if err != nil {
		r.log.Warn("who was writing to the exports is not known: their places are not kept, and peers have to attach anew what they have attached for writing", "file", reservationsFile(r.cfg.StateDir), "error", err)
		return nil
	}
	return p.Disks
}

// reservationsOfVersion1 reads version 1: one writer of each disk, whose reservation is its token.
func reservationsOfVersion1(data []byte) (all []rnbd.Reservation, err error) {
	var p struct {
		Writers []struct {
			Disk block.ID `json:"disk"`
			rnbd.Token
		} `json:"writers"`
	}
	err = json.Unmarshal(data, &p)
	for _, w := range p.Writers {
		all = append(all, rnbd.Reservation{Disk: w.Disk, Writers: []rnbd.Token{w.Token}})
	}
	return all, err
}

// storeReservations records who writes to the exports.
func (r *Exporter) storeReservations(all []rnbd.Reservation) error {
	err := wholefile.WriteJSON(reservationsFile(r.cfg.StateDir), savedReservations{reservationsVersion, all})
	if err != nil {
		r.log.Error("cannot record who writes to the exports: no new writer is let in", "error", err)
	}
	return err
}
