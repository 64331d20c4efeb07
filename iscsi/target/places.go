package target

import "fmt"

// principal is who is behind a connection, as far as anybody knows: the peer, or else the host.
func (o Origin) principal() string {
	if o.Peer != "" {
		return "peer " + o.Peer
	}
	return "host " + o.Remote.Addr().String()
}

// places is how many of something there may be: all of them, and those of one principal. The last
// quarter is for principals that have none.
type places struct{ all, each int }

// none is why there is no place for one more, "" if there is one. all are there, mine are those of
// the principal.
func (p places) none(all, mine int) string {
	switch {
	case all >= p.all:
		return fmt.Sprintf("there are %d already", all)
	case mine >= p.each:
		return fmt.Sprintf("%d are of the same peer", mine)
	case mine > 0 && all >= p.all-p.all/4:
		return fmt.Sprintf("there are %d already, and the rest is kept for peers that have none", all)
	}
	return ""
}

// addLogin counts a connection that has not logged in, unless there are too many already.
func (s *Server) addLogin(o Origin) bool {
	who := o.principal()
	s.mu.Lock()
	all := 0
	for _, n := range s.logins {
		all += n
	}
	why := s.noLogin(all, s.logins[who])
	if why == "" {
		s.logins[who]++
	}
	s.mu.Unlock()
	if why != "" {
		s.log.Warn("target: a connection is refused: too many have not logged in", "address", o.Remote.String(), "peer", o.Peer, "why", why)
	}
	return why == ""
}

func (s *Server) loginEnded(o Origin) {
	who := o.principal()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logins[who]--; s.logins[who] == 0 {
		delete(s.logins, who)
	}
}

// noPlaceLocked is why there is no place for one more session, "" if there is one.
func (s *Server) noPlaceLocked(x *session) string {
	who := x.origin.principal()
	mine, named := 0, 0
	for _, o := range s.sessions {
		if o.origin.principal() != who {
			continue
		}
		if mine++; o.login.InitiatorName == x.login.InitiatorName {
			named++
		}
	}
	if why := s.noSession(len(s.sessions), mine); why != "" {
		return why
	}
	if named >= s.cfg.MaxOfInitiator {
		return fmt.Sprintf("%d are of the same initiator", named)
	}
	return ""
}
