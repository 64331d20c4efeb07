package ikematrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// ErrClear tells that packets crossed the wire outside ESP.
var ErrClear = errors.New("packets in clear on the wire")

// wire watches what crosses the wire at a host, row by row. A capture goes on
// until it is long, and the next one begins before it ends.
type wire struct {
	h      *lab.Host
	c      *lab.Capture
	counts lab.Counts // at the last look
	from   int64      // what of the file has been searched
	rows   int
	files  int
}

// seen is what crossed the wire between two looks.
type seen struct {
	ESP, IKE  int
	Clear     map[uint16]int // TCP, UDP and SCTP packets outside IKE and ESP, by each of their ports
	Fragments int            // of them, that tell no port
	Readable  bool           // the payload's text was to be seen
}

// perCapture is after how many rows a new capture begins: each look reads the
// whole file.
const perCapture = 20

// snapLen keeps the headers of ESP in UDP in IPv6 and two blocks of the payload.
const snapLen = 256

func (h *host) watch(ctx context.Context) (*wire, error) {
	w := &wire{h: h.Host}
	return w, w.next(ctx)
}

func (w *wire) next(ctx context.Context) error {
	old := w.c
	w.files++
	c, err := w.h.Capture(ctx, lab.CaptureOptions{SnapLen: snapLen, File: fmt.Sprintf("%s/matrix%d.pcap", w.h.Dir(), w.files)})
	if err != nil {
		return err
	}
	w.c, w.counts, w.from, w.rows = c, lab.Counts{}, 0, 0
	if old == nil {
		return nil
	}
	return end(old)
}

// end stops a capture, which has to be a whole one.
func end(c *lab.Capture) error {
	counts, err := c.Stop()
	if err == nil && counts.Dropped > 0 {
		err = fmt.Errorf("the capture missed %d packets and proves nothing", counts.Dropped)
	}
	return errors.Join(err, c.Remove())
}

// look returns what has crossed the wire since the last look.
func (w *wire) look() (s seen, err error) {
	now, err := w.c.Count()
	if err != nil {
		return s, err
	}
	s = between(&w.counts, &now)
	w.counts = now
	s.Readable, err = w.search()
	return s, err
}

// between is what one count has more than an earlier one.
func between(before, now *lab.Counts) seen {
	s := seen{ESP: now.ESP - before.ESP, IKE: now.IKE - before.IKE, Fragments: fragments(now) - fragments(before), Clear: map[uint16]int{}}
	for _, p := range []struct{ before, now map[uint16]int }{
		{before.ClearTCP, now.ClearTCP}, {before.ClearUDP, now.ClearUDP}, {before.ClearSCTP, now.ClearSCTP},
	} {
		for port, n := range p.now {
			if d := n - p.before[port]; d > 0 {
				s.Clear[port] += d
			}
		}
	}
	return s
}

func fragments(c *lab.Counts) int { return c.Fragments + c.FragmentsUDP + c.FragmentsSCTP }

// search looks for the canary in what is new in the file.
func (w *wire) search() (found bool, err error) {
	f, err := os.Open(w.c.Path())
	if err != nil {
		return false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, w.from, 1<<62))
	if err != nil {
		return false, err
	}
	w.from += int64(len(b))
	return bytes.Contains(b, []byte(canary)), nil
}

// row ends a row.
func (w *wire) row(ctx context.Context) error {
	if w.rows++; w.rows < perCapture {
		return nil
	}
	return w.next(ctx)
}

func (w *wire) end() error { return end(w.c) }

// check judges what a row has left on the wire. It is the same check for rows
// that work, for those that are refused and for the control row.
func (s *seen) check(port uint16) error {
	if n := s.Clear[port] + s.Fragments; n > 0 {
		return fmt.Errorf("%w: %d of port %d (and %d of ESP)", ErrClear, n, port, s.ESP)
	}
	if len(s.Clear) > 0 {
		return fmt.Errorf("%w: by port %v", ErrClear, s.Clear)
	}
	return nil
}
