package rnbd

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/transport"
)

// Place is that of a disk's one writer. It outlives sessions, exports that come back, and
// servers, until the writer closes the disk or another takes it.
type Place struct {
	Disk       block.ID           `json:"disk"`
	Peer       transport.Identity `json:"peer"`
	Attachment block.ID           `json:"attachment"`
}

// takePlace notes who has the place of an export's writer, d having been let in. It
// reports whether that is to be written down before the client may write.
func (s *Server) takePlace(d *device) bool {
	p := Place{d.exp.disk, d.sess.info.Peer, d.attachment}
	if d.readOnly || d.exp.sharedWriters() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.places[p.Disk] == p {
		return false
	}
	s.places[p.Disk] = p
	return s.keepPlaces != nil
}

// leavePlace has a device that its client closes give the place up.
func (s *session) leavePlace(id uint32) {
	if d := s.device(id); d != nil {
		s.srv.vacate(d.exp.disk, &Place{d.exp.disk, s.info.Peer, d.attachment})
	}
}

// vacate forgets who has the place of a disk's writer, if it is whom, or whoever it is.
func (s *Server) vacate(disk block.ID, whom *Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.places[disk]; ok && (whom == nil || *whom == p) {
		delete(s.places, disk)
		s.saves.Go(s.savePlaces)
	}
}

// keepPlaceLocked keeps the place of who had a disk open for writing before its export
// was added.
func (s *Server) keepPlaceLocked(e *export) {
	if p, ok := s.places[e.disk]; ok && e.allows(p.Peer) && !e.cfg.SharedWriters {
		e.kept = &writer{peer: p.Peer, until: time.Now().Add(s.writerGrace)}
	}
}

// savePlaces has the places written down, as they are when it is its turn.
func (s *Server) savePlaces() {
	if s.keepPlaces == nil {
		return
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	all := slices.SortedFunc(maps.Values(s.places), func(a, b Place) int { return bytes.Compare(a.Disk[:], b.Disk[:]) })
	s.mu.Unlock()
	s.keepPlaces(all)
}
