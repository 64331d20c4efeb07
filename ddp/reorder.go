package ddp

import (
	"fmt"
	"io"
)

// Placer is a Sink that places payloads ahead of their turn, for an LLP that
// delivers segments out of order (RFC 5041 sections 5.3 and 5.4). All calls come
// from the goroutine that runs LLP.Receive.
type Placer interface {
	Sink
	// Early takes a segment that is ahead of its turn. ahead is 1 if it follows
	// the segment that is due. Its payload goes to its place; nothing is
	// delivered, executed or completed. keep is how many bytes of its
	// beginning, at most MaxKept, Turn needs. An error is a fault of the
	// segment. It ends Receive when the segment's turn comes, unless a segment
	// before it ends the stream first.
	Early(seg []byte, ahead int) (keep int, err error)
	// Turn reports that everything before a segment that came early has been
	// handed over. head is what was kept of it, total its whole length in bytes.
	// An error ends Receive, as that of Segment does.
	Turn(head []byte, total int) error
}

// Reorder hands segments to a Sink for an LLP that numbers them and may receive
// them in any order. A Placer gets each segment at once, and a call of Turn when
// its turn has come; any other Sink gets it when its turn has come. The numbers
// are DDP-SSNs (RFC 5043 section 5.2.1): 16 bits, wrapping.
type Reorder struct {
	sink   Sink
	placer Placer // the sink, nil if it isn't one
	window int
	next   uint16 // the number that is due
	held   int    // segments that are ahead
	ending bool   // one of them is the end
	end    uint16
	pages  []*page // by number, modulo their length, which is a power of two
}

// page holds the segments of pageLen numbers. There is none where nothing has arrived
// early, so a Reorder costs what the number of early segments costs, however far
// ahead a peer numbers them.
type page [pageLen]early

// early is a segment that arrived ahead of its turn.
type early struct {
	arrived bool
	total   int
	head    []byte
	err     error
}

// NewReorder returns a Reorder towards s whose first number is first. A segment
// may be at most window segments ahead of the one that is due, 1 to MaxReorder.
func NewReorder(s Sink, first uint16, window int) *Reorder {
	p, _ := s.(Placer)
	return &Reorder{sink: s, placer: p, next: first, window: min(max(window, 1), MaxReorder)}
}

// SequenceError means that an LLP's segment number is a duplicate or too far
// ahead. RFC 5043 section 10 lets it end the stream; there is no Terminate code
// for it.
type SequenceError struct {
	SSN, Due uint16
	Window   int
}

func (e *SequenceError) Error() string {
	return fmt.Sprintf("ddp: segment number %d where %d is due and up to %d more may be ahead: it is a duplicate or out of range", e.SSN, e.Due, e.Window)
}

// Held is the number of segments that wait for their turn.
func (r *Reorder) Held() int { return r.held }

// Segment takes the segment of number ssn, of which nothing is kept but what a
// Placer asks for. Errors are those of the Sink, a *SequenceError, and io.EOF
// when the end's turn has come.
func (r *Reorder) Segment(ssn uint16, seg []byte) error {
	ahead, err := r.check(ssn)
	if err != nil {
		return err
	}
	if isDue(ahead) {
		r.next++
		if err := r.sink.Segment(seg); err != nil {
			return err
		}
		return r.drain()
	}
	e := r.slot(ssn, ahead)
	keep := len(seg)
	e.err = nil
	if r.placer != nil {
		keep, e.err = r.placer.Early(seg, ahead)
	}
	e.arrived, e.total = true, len(seg)
	e.head = append(e.head[:0], seg[:keep]...)
	r.held++
	return nil
}

// End takes number ssn as the end of what the peer sends (a DDP Stream Session
// Terminate, RFC 5043 section 6.2). It returns io.EOF when its turn has come.
func (r *Reorder) End(ssn uint16) error {
	ahead, err := r.check(ssn)
	if err != nil {
		return err
	}
	before := 0
	for i := 1; i < ahead; i++ {
		if r.has(i) {
			before++
		}
	}
	if r.ending || r.held > before { // two ends, or a segment behind the end
		return &SequenceError{SSN: ssn, Due: r.next, Window: r.window}
	}
	r.ending, r.end = true, ssn
	return r.drain()
}

// check returns how far ahead of the next number ssn is.
func (r *Reorder) check(ssn uint16) (ahead int, err error) {
	ahead, last := int(ssn-r.next), r.window
	if r.ending {
		last = min(last, int(r.end-r.next)-1)
	}
	if ahead > last || r.has(ahead) {
		return 0, &SequenceError{SSN: ssn, Due: r.next, Window: r.window}
	}
	return ahead, nil
}

// has reports whether the segment that is ahead by this number has arrived.
func (r *Reorder) has(ahead int) bool {
	if !r.reaches(ahead) {
		return false
	}
	ssn := r.next + uint16(ahead)
	p := r.pages[int(ssn)/pageLen&(len(r.pages)-1)]
	return p != nil && p[ssn%pageLen].arrived
}

// reaches reports whether the list of pages is long enough for a segment that is
// ahead by this number: the lowest and the highest numbers never share a page.
func (r *Reorder) reaches(ahead int) bool {
	return int(r.next%pageLen)+ahead < pageLen*len(r.pages)
}

// slot is the place of segment ssn, which is ahead by this number.
func (r *Reorder) slot(ssn uint16, ahead int) *early {
	if !r.reaches(ahead) {
		r.grow(ahead)
	}
	p := &r.pages[int(ssn)/pageLen&(len(r.pages)-1)]
	if *p == nil {
		*p = new(page)
	}
	return &(*p)[ssn%pageLen]
}

// grow makes room for a segment that is ahead by this number.
func (r *Reorder) grow(ahead int) {
	old := r.pages
	n := max(1, len(old))
	for pageLen*n <= int(r.next%pageLen)+ahead {
		n *= 2
	}
	r.pages = make([]*page, n)
	first := int(r.next) / pageLen
	for i := range old {
		at := (first + i) % (numbers / pageLen)
		r.pages[at&(n-1)] = old[at&(len(old)-1)]
	}
}

// drain hands over what is due.
func (r *Reorder) drain() error {
	for r.held > 0 && r.has(0) {
		e := r.slot(r.next, 0)
		e.arrived = false
		r.held--
		r.next++
		err := e.err
		switch {
		case err != nil:
		case r.placer != nil:
			err = r.placer.Turn(e.head, e.total)
		default:
			err = r.sink.Segment(e.head)
		}
		if err != nil {
			return err
		}
	}
	if r.held == 0 && pageLen*len(r.pages) > keptReorder {
		r.pages = nil
	}
	if r.ending && r.next == r.end {
		return io.EOF
	}
	return nil
}
