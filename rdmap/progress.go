package rdmap

import "github.com/ironwarp/ironwarp/ddp"

// Progresses reports whether Progress can do anything.
func (s *Stream) Progresses() bool {
	_, ok := s.llp.(ddp.Progresser)
	return ok
}

// Progress receives what can be had without waiting, in the calling goroutine, if Run waits; the Upper is called from
// there then. It reports whether anything had come. It does nothing over an LLP that is no ddp.Progresser. It is
// safe for concurrent use.
func (s *Stream) Progress() bool {
	p, ok := s.llp.(ddp.Progresser)
	return ok && p.Progress()
}

// Polled is ddp.Progresser's, and does nothing over another LLP.
func (s *Stream) Polled(on bool) (waited bool) {
	p, ok := s.llp.(ddp.Progresser)
	return ok && p.Polled(on)
}
