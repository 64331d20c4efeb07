package rnbd

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/transport"
)

// Token is a client's right to write to a disk, which its attachment names. The client has
// it from when it opens the disk for writing until it is fenced, or another preempts it.
type Token struct {
	Attachment block.ID           `json:"attachment"`
	Peer       transport.Identity `json:"peer"`
	// Name is the peer's name in the server's configuration when it was let in, "" if it
	// had none: a host that has another identity by now is still known by it.
	Name string `json:"name,omitempty"`
	// Generation is the disk's when the token was given, or when it was fenced.
	Generation uint64 `json:"generation"`
	// Left reports that the writer has closed the disk, or its export was removed: it has
	// no grace period. It may return as long as it has the token.
	Left bool `json:"left,omitempty"`
}

// Reservation is who may write to a disk. It outlives sessions, re-added exports, and servers.
type Reservation struct {
	Disk block.ID `json:"disk"`
	// Generation counts the fences.
	Generation uint64 `json:"generation,omitempty"`
	// Writers have a token. Of an export with one writer there is one, and another that is
	// let in preempts it. They are in the order in which they were let in last.
	Writers []Token `json:"writers"`
	// Fenced are the tokens that were void last, in that order. None that neither list has
	// is accepted either: this one is there to name the reason.
	Fenced []Token `json:"fenced,omitempty"`
}

func indexOf(tokens []Token, attachment block.ID) int {
	return slices.IndexFunc(tokens, func(t Token) bool { return t.Attachment == attachment })
}

// without returns tokens without that of an attachment. It does not change them, since
// a Reservation's lists may be in use elsewhere.
func without(tokens []Token, attachment block.ID) []Token {
	i := indexOf(tokens, attachment)
	if i < 0 {
		return tokens
	}
	return slices.Delete(slices.Clone(tokens), i, i+1)
}

func (p *Reservation) allLeft() bool {
	return !slices.ContainsFunc(p.Writers, func(t Token) bool { return !t.Left })
}

// token returns the token of a device's client, of generation 0.
func (d *device) token() Token {
	return Token{Attachment: d.attachment, Peer: d.sess.info.Peer, Name: d.name}
}

// errTakenOut means that an export was taken out since it was looked up.
var errTakenOut = errors.New("rnbd: the export was taken out")

// admitDevice attaches a device to its export, and gives a writing device a token. had reports
// whether its attachment claims to have one. refused is the answer if it is refused,
// otherwise nil. It fails with errTakenOut, and with what the peer is to get.
func (s *Server) admitDevice(d *device, had bool) (refused *openRsp, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exports[d.exp.cfg.Name] != d.exp {
		return nil, errTakenOut
	}
	if peer := d.sess.info.Peer; !d.exp.mayOpen(peer) || !d.readOnly && d.exp.onlyReads(peer) {
		return nil, syscall.EACCES // it was allowed when it asked: whoever disallows and then fences it has nothing left to fence
	}
	was, known := s.reservations[d.exp.disk]
	d.migrates = d.migrates || had && indexOf(was.Writers, d.attachment) >= 0
	// A client that was fenced before it had its answer does not know yet that it had a token.
	i, last := indexOf(was.Fenced, d.attachment), len(was.Writers)-1
	if fenced := i >= 0 && !d.attachment.IsZero(); (had || fenced) && d.hasLostReservation(&was) {
		switch {
		case i >= 0:
			return &openRsp{Result: openFenced, Detail: fmt.Sprintf("in generation %d", was.Fenced[i].Generation)}, nil
		case s.storeReservations == nil && d.exp.writers() != OneWriter: // nobody knows who had one before the server
		case known && last >= 0:
			return &openRsp{Result: openPreempted, Detail: printable.Text(string(was.Writers[last].Peer))}, nil
		case s.storeReservations != nil:
			return &openRsp{Result: openPreempted, Detail: "no longer known there"}, nil
		}
	}
	switch w, err := d.exp.attach(d); {
	case err != nil:
		return nil, err
	case w != nil:
		return &openRsp{Result: openInUse, Detail: w.String()}, nil
	}
	if !d.readOnly {
		s.reserveLocked(d)
	}
	d.closed.Store(false)
	return nil, nil
}

// reserveLocked gives a device's client a token, and makes it the disk's last writer.
func (s *Server) reserveLocked(d *device) {
	was := s.reservations[d.exp.disk]
	t := d.token()
	t.Generation = was.Generation
	i, last := indexOf(was.Writers, t.Attachment), len(was.Writers)-1
	if i >= 0 {
		t.Generation = was.Writers[i].Generation
	}
	mode := d.exp.writers()
	if i >= 0 && i == last && was.Writers[i] == t && (last == 0 || mode != OneWriter) {
		return
	}
	d.previous = &was
	p := Reservation{Disk: d.exp.disk, Generation: was.Generation, Fenced: without(was.Fenced, t.Attachment)}
	switch {
	case mode == SharedWriters:
		p.Writers = without(was.Writers, t.Attachment)
	case mode == MigrationWriters && d.migrates:
		p.Writers = slices.DeleteFunc(slices.Clone(without(was.Writers, t.Attachment)), func(o Token) bool { return o.Left })
		p.Writers = p.Writers[max(0, len(p.Writers)-1):]
	}
	if len(p.Writers) >= maxWriters {
		drop := max(0, slices.IndexFunc(p.Writers, func(t Token) bool { return t.Left }))
		p.Writers = without(p.Writers, p.Writers[drop].Attachment)
	}
	p.Writers = append(slices.Clip(p.Writers), t)
	for disk, o := range s.reservations {
		if len(s.reservations) < maxReservations {
			break
		}
		if o.allLeft() && o.Generation == 0 {
			delete(s.reservations, disk)
		}
	}
	s.reservations[p.Disk], s.unwritten = p, true
}

// undoReserve undoes reserveLocked, because the reservation could not be stored: the token is void, and
// those that it has replaced are not, unless they were fenced meanwhile.
func (s *Server) undoReserve(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unwritten = true
	p := s.reservations[d.exp.disk]
	if indexOf(p.Writers, d.attachment) < 0 {
		return
	}
	p.Writers = without(p.Writers, d.attachment)
	var back []Token
	for _, t := range d.previous.Writers {
		if indexOf(p.Writers, t.Attachment) < 0 && indexOf(p.Fenced, t.Attachment) < 0 {
			back = append(back, t)
		}
	}
	p.Writers = append(back, p.Writers...)
	s.reservations[p.Disk] = p
	if len(p.Writers) == 0 && p.Generation == 0 {
		delete(s.reservations, p.Disk)
	}
}

// releaseReservation gives up that of a device which its client closes. If it was one of the
// two of a migration, that is over: the other one writes from then on, and this one's token
// is void.
func (s *session) releaseReservation(id uint32) {
	d := s.device(id)
	if d == nil || d.readOnly {
		return
	}
	s.srv.releaseWriters(d.exp.disk, func(t Token) bool { return t.Attachment == d.attachment && t.Peer == s.info.Peer })
	if d.exp.writers() == MigrationWriters {
		s.srv.endMigration(d)
	}
}

func (s *Server) endMigration(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.reservations[d.exp.disk]; len(p.Writers) > 1 && indexOf(p.Writers, d.attachment) >= 0 {
		p.Writers = without(p.Writers, d.attachment)
		s.reservations[p.Disk], s.unwritten = p, true
		s.saveReservationsLater()
	}
}

// releaseWriters records that those writers of a disk have left.
func (s *Server) releaseWriters(disk block.ID, whom func(Token) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.reservations[disk]
	left := false
	p.Writers = slices.Clone(p.Writers)
	for i := range p.Writers {
		if t := &p.Writers[i]; !t.Left && whom(*t) {
			t.Left, left = true, true
		}
	}
	if left {
		s.reservations[disk], s.unwritten = p, true
		s.saveReservationsLater()
	}
}

func anyToken(Token) bool { return true }

// startGraceLocked keeps out others than the client that had a disk open for writing
// before its export was added.
func (s *Server) startGraceLocked(e *export) {
	p := s.reservations[e.disk]
	for _, t := range p.Writers {
		if !t.Left && e.mayOpen(t.Peer) && e.cfg.Writers != SharedWriters {
			e.inGrace = append(e.inGrace, &writer{token: t, until: time.Now().Add(s.writerGrace)})
		}
	}
}

// saveReservationsLater stores the reservations in the background.
func (s *Server) saveReservationsLater() { s.saves.Go(func() { _ = s.saveReservations() }) }

// saveReservations stores the current reservations, unless that has already been done.
func (s *Server) saveReservations() error {
	if s.storeReservations == nil {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	if !s.unwritten {
		s.mu.Unlock()
		return nil
	}
	all := slices.SortedFunc(maps.Values(s.reservations), func(a, b Reservation) int { return bytes.Compare(a.Disk[:], b.Disk[:]) })
	s.unwritten = false
	s.mu.Unlock()
	err := s.storeReservations(all)
	if err != nil {
		s.mu.Lock()
		s.unwritten = true
		s.mu.Unlock()
	}
	return err
}
