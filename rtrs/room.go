package rtrs

import (
	"cmp"
	"fmt"
	"maps"
	"syscall"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// SessionMemory is how many bytes of registered memory a server takes for a session of
// this queue depth and with this much data in one I/O; 0 means the defaults.
func SessionMemory(queueDepth, maxIO int) int64 {
	slots := cmp.Or(queueDepth, DefaultQueueDepth) + controlChunks
	return int64(slots)*int64(cmp.Or(maxIO, DefaultMaxIO)+chunkHeader) + int64(svcLen(slots))
}

// ConnEntries is how many work requests, and completions, each of the two hosts keeps room
// for on a connection of a session of this queue depth.
func ConnEntries(queueDepth int) int {
	slots := queueDepth + controlChunks
	return recvSlots(slots) + sendSlots(slots)
}

// svcLen is the memory for INFO_REQ and INFO_RSP.
func svcLen(slots int) int { return infoReqLen + infoRspLen(slots) }

// KeepRoom names the peers that always find room for a session, in place of those named
// before: while one of them has none, a place and a session's part of the ULP's memory are
// kept for it, whatever anybody else holds. MaxSessions is at least their number.
//
// It fails with a *verbs.QuotaError where the ULP can't have so much memory as of now.
// Nothing is taken away then: as long as it is so, nobody gets a second session.
func (s *Server) KeepRoom(peers []transport.Identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.kept = make(map[transport.Identity]struct{}, len(peers))
	for _, p := range peers {
		s.kept[p] = struct{}{}
	}
	n, absent := len(s.all), s.absentLocked()
	err := s.guaranteeLocked(n + absent)
	if err != nil {
		_ = s.guaranteeMostLocked(n, absent)
	}
	return err
}

// Rooms is how many sessions each peer has, those included that are being set up or not
// yet wholly closed, and who has a place kept.
func (s *Server) Rooms() (sessions map[transport.Identity]int, kept map[transport.Identity]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pathsBy), s.kept // which is never changed, only replaced
}

// absentLocked is how many of the peers that have a place kept have no session.
func (s *Server) absentLocked() int {
	n := 0
	for p := range s.kept {
		if s.pathsBy[p] == 0 {
			n++
		}
	}
	return n
}

// guaranteeLocked keeps memory for n sessions, those that there are included.
func (s *Server) guaranteeLocked(n int) error {
	slots := s.cfg.QueueDepth + controlChunks
	return s.cfg.ULP.Guarantee(verbs.Limits{Bytes: int64(n) * SessionMemory(s.cfg.QueueDepth, s.cfg.MaxIO), MRs: int64(n * (slots + 1))})
}

// guaranteeMostLocked keeps memory for n sessions, and for as many as it can of those who are
// absent. It fails where there is none for the n.
func (s *Server) guaranteeMostLocked(n, absent int) (err error) {
	for ; absent >= 0; absent-- {
		if err = s.guaranteeLocked(n + absent); err == nil {
			return nil
		}
	}
	return err
}

// keepRoomLocked keeps memory for what there is after a session has gone, or was not made.
func (s *Server) keepRoomLocked() {
	_ = s.guaranteeMostLocked(len(s.all), s.absentLocked()) // no more than before
}

// makeRoomLocked makes room for one more session of a peer. The first of a peer that has a
// place kept takes what is kept for it, any other leaves what is kept for others.
func (s *Server) makeRoomLocked(peer transport.Identity) (syscall.Errno, error) {
	mine, n, absent := s.pathsBy[peer], len(s.all)+1, s.absentLocked()
	most := max(s.cfg.MaxSessions, len(s.kept))
	_, first := s.kept[peer]
	first = first && mine == 0
	if first {
		absent--
	}
	switch {
	case mine >= s.cfg.MaxSessionsPerPeer:
		return syscall.EUSERS, fmt.Errorf("rtrs: the peer has %d sessions open, the limit", mine)
	case mine > 0 && n > most/2:
		return syscall.EUSERS, fmt.Errorf("rtrs: %d sessions are open, and the other half of %d is kept for peers that have none", n-1, most)
	case n > most:
		return syscall.ENOMEM, fmt.Errorf("rtrs: %d sessions are open, the limit", n-1)
	case !first && n+absent > most:
		return syscall.ENOMEM, fmt.Errorf("rtrs: %d sessions are open, and %d more of %d are kept for peers that have none", n-1, absent, most)
	}
	var err error
	if first {
		err = s.guaranteeMostLocked(n, absent)
	} else {
		err = s.guaranteeLocked(n + absent)
	}
	if err != nil {
		return syscall.ENOMEM, fmt.Errorf("rtrs: %d sessions are open, and there is no memory for another beside what is kept for %d peers that have none: %w", n-1, absent, err)
	}
	return 0, nil
}
