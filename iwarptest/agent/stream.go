package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

// event is a line of the agent about a stream.
type event struct {
	kind string // of the line, without the plus sign
	wc   conformance.WC
	text string
}

// Of libibverbs' enum ibv_wc_status.
const (
	statusSuccess = 0
	statusFlushed = 5
)

var kinds = map[string]conformance.Op{"send": conformance.OpSend, "write": conformance.OpWrite, "read": conformance.OpRead, "recv": conformance.OpRecv}

// parseEvent reads the words of a line that begins with a plus sign.
func parseEvent(words []string) (e event, conn int, err error) {
	e.kind = words[0][1:]
	if e.kind == "async" {
		return e, 0, nil
	}
	var n []uint64
	for _, w := range words[1:] {
		if v, err := strconv.ParseUint(w, 10, 64); err == nil {
			n = append(n, v)
		}
	}
	want := map[string]int{"wc": 4, "cm": 1, "end": 2}[e.kind]
	if want == 0 || len(n) < want || e.kind == "wc" && len(words) < 6 {
		return e, 0, fmt.Errorf("agent: it says %q", words)
	}
	switch e.kind {
	case "wc":
		e.wc = conformance.WC{ID: n[1], Op: kinds[words[3]], Len: int(n[2])}
		switch n[3] {
		case statusSuccess:
		case statusFlushed:
			e.wc.Status = conformance.Flushed
		default:
			e.wc.Status = conformance.Failed
		}
	case "cm":
		e.text = words[2]
	}
	return e, int(n[0]), nil
}

// stream records what has happened on one of the agent's streams. When the stream ends
// siw may lose what was posted last, complete it twice, or complete what it has
// refused. Here everything that was accepted completes once: what is lost counts as
// flushed.
type stream struct {
	changed chan struct{} // has an element when something has happened since

	mu      sync.Mutex // guards the fields below it
	wcs     []conformance.WC
	waiting []uint64        // posted receives and signaled sends
	silent  map[uint64]bool // posted, not signaled
	over    bool
	dead    bool // the agent
}

var errDead = errors.New("agent: it has died")

func (s *stream) happens(e event) {
	s.mu.Lock()
	switch e.kind {
	case "wc":
		s.completeLocked(e.wc)
	case "end":
		s.over = true
		for len(s.waiting) > 0 {
			s.completeLocked(conformance.WC{ID: s.waiting[0], Status: conformance.Flushed})
		}
	case "dead":
		s.dead = true
	}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// posted notes an operation, which always completes if it is signaled, and otherwise
// only when it fails.
func (s *stream) posted(id uint64, signaled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signaled {
		s.waiting = append(s.waiting, id)
	} else {
		s.silent[id] = true
	}
}

// refused forgets an operation and its completion.
func (s *stream) refused(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(w uint64) bool { return w == id })
	s.wcs = slices.DeleteFunc(s.wcs, func(wc conformance.WC) bool { return wc.ID == id })
	delete(s.silent, id)
}

// completeLocked takes a completion.
func (s *stream) completeLocked(wc conformance.WC) {
	if i := slices.Index(s.waiting, wc.ID); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else if s.silent[wc.ID] && wc.Status != conformance.OK {
		delete(s.silent, wc.ID)
	} else {
		return
	}
	s.wcs = append(s.wcs, wc)
}

// wait waits until f, which is called with the stream locked, returns true.
func (s *stream) wait(ctx context.Context, f func() bool) error {
	for {
		s.mu.Lock()
		done, dead := f(), s.dead
		s.mu.Unlock()
		switch {
		case done:
			return nil
		case dead:
			return errDead
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
