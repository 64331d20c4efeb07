package ikematrix

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// ErrClear means that packets crossed the wire outside ESP.
var ErrClear = errors.New("packets in clear on the wire")

// wire watches what crosses the wire at a host, row by row.
type wire struct {
	c      *lab.Capture
	counts lab.Counts // at the last look
}

func (h *host) watch(ctx context.Context) (*wire, error) {
	c, err := h.Capture(ctx, lab.CaptureOptions{Unjudged: "rows are judged one by one, and the last is the control"})
	if err != nil {
		return nil, err
	}
	w := &wire{c: c}
	w.counts, err = c.Count()
	return w, err
}

// look returns what has crossed the wire since the last look.
func (w *wire) look() (seen, error) {
	now, err := w.c.Count()
	s := seen{now.Since(w.counts)}
	w.counts = now
	return s, err
}

// end stops the capture, which has to be complete.
func (w *wire) end() error {
	counts, err := w.c.Stop()
	if err == nil && counts.Dropped > 0 {
		err = fmt.Errorf("the capture missed %d packets and proves nothing", counts.Dropped)
	}
	return err
}

// seen is what crossed the wire between two looks.
type seen struct{ lab.Counts }

// clear is how many packets of any port crossed it outside ESP.
func (s *seen) clear() (n int) {
	n = s.Fragments + s.FragmentsUDP + s.FragmentsSCTP
	for _, ports := range []map[uint16]int{s.ClearTCP, s.ClearUDP, s.ClearSCTP} {
		for _, m := range ports {
			n += m
		}
	}
	return n
}

// check judges a row's traffic on the wire. It is the same check for rows that work,
// for those that are refused and for the control row.
func (s *seen) check() error {
	if unknown := s.Unknown(); unknown != "" {
		return fmt.Errorf("%w: %s (and %d of ESP)", ErrClear, unknown, s.ESP)
	}
	if leaked := s.Leaked(); leaked != "" {
		return fmt.Errorf("%w: the payload is to be read in %s", ErrClear, leaked)
	}
	return nil
}
