package lab

import "context"

// Captures are captures of several wires, which count as one.
type Captures []*Capture

// CaptureAll starts a capture on each of the host's wires, as Capture does. It fails as that
// does.
func (h *Host) CaptureAll(ctx context.Context, o CaptureOptions) (all Captures, err error) {
	for o.Wire = range h.lab.cfg.Wires {
		c, err := h.Capture(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Count adds up Capture.Count. It fails as that does.
func (cs Captures) Count() (Counts, error) { return cs.sum((*Capture).Count) }

// Stop adds up Capture.Stop. It fails as that does.
func (cs Captures) Stop() (Counts, error) { return cs.sum((*Capture).Stop) }

func (cs Captures) sum(count func(*Capture) (Counts, error)) (sum Counts, err error) {
	for i, capture := range cs {
		c, err := count(capture)
		if err != nil {
			return sum, err
		}
		if i == 0 {
			sum = c
		} else {
			sum.Add(c)
		}
	}
	return sum, nil
}
