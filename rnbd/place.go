package rnbd

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/transport"
)

// Place is the place of a disk's writer: the client that last opened it for writing. It
// outlives sessions, re-added exports, and servers, until another takes it. The
// attachment is its generation: a returning writer finds its own, or has been replaced.
type Place struct {
	Disk       block.ID           `json:"disk"`
	Peer       transport.Identity `json:"peer"`
	Attachment block.ID           `json:"attachment"`
	// Left reports that the writer has closed the disk, or its export was removed: the
	// place is not kept for it.
	Left bool `json:"left,omitempty"`
}

// place returns the place of a device's client.
func (d *device) place() Place {
	return Place{Disk: d.exp.disk, Peer: d.sess.info.Peer, Attachment: d.attachment}
}

// admit attaches a device to its export, and makes a writing device the disk's writer.
// had reports whether its attachment claims to have been the writer. refused is the
// answer if it is refused, otherwise nil.
func (s *Server) admit(d *device, had bool) (refused *openRsp, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.places[d.exp.disk]
	if had && d.hasLost(was) {
		switch {
		case known:
			return &openRsp{Result: openTaken, Detail: printable.Text(string(was.Peer))}, nil
		case s.keepPlaces != nil:
			return &openRsp{Result: openTaken, Detail: "no longer known there"}, nil
		}
	}
	switch w, err := d.exp.attach(d); {
	case err != nil:
		return nil, err
	case w != nil:
		return &openRsp{Result: openInUse, Detail: w.String()}, nil
	}
	if !d.readOnly {
		s.takeLocked(d)
	}
	return nil, nil
}

// takeLocked makes a device the disk's writer.
func (s *Server) takeLocked(d *device) {
	p := d.place()
	was := s.places[p.Disk]
	if was == p {
		return
	}
	d.overtakes = &was
	for disk, o := range s.places {
		if len(s.places) < maxPlaces {
			break
		}
		if o.Left {
			delete(s.places, disk)
		}
	}
	s.places[p.Disk], s.unwritten = p, true
}

// undoTake undoes takeLocked, because the place could not be stored.
func (s *Server) undoTake(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unwritten = true
	p := d.place()
	switch {
	case s.places[p.Disk] != p:
	case d.overtakes.Disk.IsZero():
		delete(s.places, p.Disk)
	default:
		s.places[p.Disk] = *d.overtakes
	}
}

// leavePlace vacates the place of a device that its client closes.
func (s *session) leavePlace(id uint32) {
	if d := s.device(id); d != nil {
		p := d.place()
		s.srv.vacate(p.Disk, &p)
	}
}

// vacate records that the writer of a disk has left its place; if whom is not nil, only
// if that is the writer.
func (s *Server) vacate(disk block.ID, whom *Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.places[disk]; ok && !p.Left && (whom == nil || *whom == p) {
		p.Left = true
		s.places[disk], s.unwritten = p, true
		s.saveLater()
	}
}

// keepPlaceLocked reserves the place of the client that had a disk open for writing
// before its export was added.
func (s *Server) keepPlaceLocked(e *export) {
	if p, ok := s.places[e.disk]; ok && !p.Left && e.mayOpen(p.Peer) && !e.cfg.SharedWriters {
		e.kept = &writer{peer: p.Peer, until: time.Now().Add(s.writerGrace)}
	}
}

// saveLater stores the places in the background.
func (s *Server) saveLater() { s.saves.Go(func() { _ = s.savePlaces() }) }

// savePlaces stores the current places, unless that has already been done.
func (s *Server) savePlaces() error {
	if s.keepPlaces == nil {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	if !s.unwritten {
		s.mu.Unlock()
		return nil
	}
	all := slices.SortedFunc(maps.Values(s.places), func(a, b Place) int { return bytes.Compare(a.Disk[:], b.Disk[:]) })
	s.unwritten = false
	s.mu.Unlock()
	err := s.keepPlaces(all)
	if err != nil {
		s.mu.Lock()
		s.unwritten = true
		s.mu.Unlock()
	}
	return err
}
