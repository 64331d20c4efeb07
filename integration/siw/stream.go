package siw

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
		return e, 0, fmt.Errorf("siw: the agent says %q", words)
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

// stream is what has happened on one of the agent's streams. siw does not flush
// what was posted when the stream had just ended, and may complete what it has
// refused: the former is reported as flushed here, the latter not at all.
type stream struct {
	changed chan struct{} // has an element when something has happened since

	mu      sync.Mutex
	wcs     []conformance.WC
	waiting []uint64        // posted receives and signaled sends
	ignored map[uint64]bool // what was refused
	over    bool
	dead    bool // the agent
}

var errDead = errors.New("siw: the agent has died")

func (s *stream) happens(e event) {
	s.mu.Lock()
	switch e.kind {
	case "wc":
		s.complete(e.wc)
	case "end":
		s.over = true
		for len(s.waiting) > 0 {
			s.complete(conformance.WC{ID: s.waiting[0], Status: conformance.Flushed})
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

// posted notes what is going to complete; refused, that it is not.
func (s *stream) posted(id uint64) {
	s.mu.Lock()
	s.waiting = append(s.waiting, id)
	s.mu.Unlock()
}

func (s *stream) refused(id uint64) {
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(w uint64) bool { return w == id })
	s.ignored[id] = true
	s.mu.Unlock()
}

// complete takes a completion of what has been posted; s is locked. What is not
// signaled completes only when it fails.
func (s *stream) complete(wc conformance.WC) {
	i := slices.Index(s.waiting, wc.ID)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	if i >= 0 || wc.Status != conformance.OK && !s.ignored[wc.ID] {
		s.wcs = append(s.wcs, wc)
	}
}

// wait waits until f, which is called with the stream locked, is content.
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
