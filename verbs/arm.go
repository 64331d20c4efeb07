package verbs

import "context"

// armed is what a polled queue's next Wait waits for.
type armed uint8

const (
	armedNot       armed = iota // any completion, as armedNext
	armedSolicited              // a solicited one or an error
	armedNext                   // any
)

// Arm chooses what the next Wait waits for: any completion or, with solicitedOnly,
// one that is solicited (RFC 5040 section 4.3) or an error. Completions of our
// own sends are never solicited; errors and a completion that found the queue
// full count as solicited. If it is armed twice before the Wait, the wider
// kind holds. A queue that is not armed waits for any completion.
//
// What counts is what is in the queue, not when it came: completions that
// arrive before Arm, between Arm and Poll or between Poll and Wait are not
// missed, and those already polled do not count. Completions that
// are not solicited stay in the queue until they are polled, so it must have
// room for them. A queue with a handler is not armed, see SolicitedOnly.
func (cq *CQ) Arm(solicitedOnly bool) {
	cq.mu.Lock()
	switch {
	case !solicitedOnly:
		cq.armed = armedNext
	case cq.armed == armedNot:
		cq.armed = armedSolicited
	}
	due := cq.dueLocked()
	cq.mu.Unlock()
	if due {
		cq.signal() // for a Wait that has begun under a narrower kind
	}
}

// Wait blocks until the queue holds a completion of the kind that it is armed
// for, or ctx ends. It disarms the queue and takes nothing: Poll follows. It is
// for a single consumer of a queue without a handler. It fails only with ctx's error.
func (cq *CQ) Wait(ctx context.Context) error {
	for {
		cq.mu.Lock()
		due := cq.dueLocked()
		if due {
			cq.armed, cq.lost = armedNot, false
		}
		cq.mu.Unlock()
		if due {
			return nil
		}
		select {
		case <-cq.ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Next waits for the next completion and takes it: Poll, after a Wait if there is none. It fails only with ctx's error; that of the work request is WC.Err. Like
// Wait, it is for a single consumer of a queue without a handler.
func (cq *CQ) Next(ctx context.Context) (WC, error) {
	var wcs [1]WC
	for cq.Poll(wcs[:]) == 0 {
		if err := cq.Wait(ctx); err != nil {
			return WC{}, err
		}
	}
	return wcs[0], nil
}

// dueLocked reports whether Wait is to return.
func (cq *CQ) dueLocked() bool {
	return cq.n > 0 && (cq.armed != armedSolicited || cq.urgent > 0) || cq.lost
}

// signal makes Wait check again.
func (cq *CQ) signal() {
	select {
	case cq.ch <- struct{}{}:
	default:
	}
}
