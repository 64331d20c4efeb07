package target

import (
	"errors"
	"math"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// Recovery within a command and within a connection: ErrorRecoveryLevel 1 (RFC 7143 sections 7.1.4.1 and
// 7.1.4.2). What happens to a PDU whose header does not match its digest is that the connection ends: where
// the next one begins cannot be told reliably, neither from a length that may be damaged nor by looking for
// what seems to be a header in data that anybody may have written (section 7.8).
//
//	damaged data of                            answered by Reject, and then
//	a command, Text Request or NOP-Out         dropped; its CmdSN has not come, and it may be retried
//	a Data-Out                                 once its sequence ends: R2T from the first byte that is missing
//
//	nothing comes in answer to an R2T          the R2T again
//	a sequence stops before its end            R2T from the first byte that is missing

// renewLocked has a task be that of another command.
func (t *task) renewLocked() {
	t.retries, t.seen, t.quiet = 0, progress{off: math.MaxUint32}, 0
	t.asking = false
	t.tag += 1 << taskBits
	t.pieces, t.expData, t.snackTag, t.collapse, t.dropped, t.counts = iscsi.Pieces{}, 0, 0, false, false, true
}

// survive rejects a PDU whose data were damaged, where that is recovered from. Otherwise it returns why
// reading them has failed.
func (c *conn) survive(err error, h *iscsi.BHS) error {
	if c.x.level > 0 && errors.Is(err, iscsi.ErrDigest) {
		c.reject(h, iscsi.RejectDataDigest)
		return nil
	}
	return err
}

// DigestNotify implements iscsi.Upper.
func (c *conn) DigestNotify(h *iscsi.BHS) {
	c.heard.Store(true)
	c.reject(h, iscsi.RejectDataDigest)
}

// retry reports whether data that are missing from a sequence are to be asked for.
func (t *task) retry(s *iscsi.Sequence) bool {
	if t.x.level == 0 || !s.Broken() || t.retries == maxRetries {
		return false
	}
	t.retries++
	return true
}

// askAgain asks for what is missing of what an R2T has asked for (a Recovery-R2T, section 11.8). The caller
// holds receiving.
func (c *conn) askAgain(t *task, g *iscsi.Get) {
	off, _ := g.Sequence.Received()
	c.get(t, g, t.transfer.Retry(), off, g.R2T.Offset+g.R2T.Length-off)
}

// progress is how far the data of a command have come.
type progress struct {
	off, r2tSN uint32
	solicited  bool
}

// startLooks has the connection look whether data that it waits for make progress.
func (c *conn) startLooks() {
	if c.x.level > 0 {
		c.x.mu.Lock()
		defer c.x.mu.Unlock()
		c.looks = time.AfterFunc(c.x.srv.cfg.SequenceWait/2, c.lookLater)
	}
}

func (c *conn) stopLooks() {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	if c.looks != nil {
		c.looks.Stop()
		c.looks = nil
	}
}

// lookLater has the connection's own goroutine look.
func (c *conn) lookLater() {
	x := c.x
	x.mu.Lock()
	if c.looks == nil { // the connection has ended
		x.mu.Unlock()
		return
	}
	wake := c.active > 0 && !c.paused()
	c.looks.Reset(x.srv.cfg.SequenceWait / 2)
	x.mu.Unlock()
	if wake {
		c.late.Store(true)
		c.mover.Wake()
	}
}

// look asks again for data that have made no progress for two looks. If commands wait for memory as long, the
// data that are kept for SNACK are dropped. The caller holds receiving.
func (c *conn) look() {
	x := c.x
	var quiet []*task
	x.mu.Lock()
	for _, t := range x.tasks {
		if t.c != c || t.state != receiving || t.ending {
			continue
		}
		if now := t.progress(); now != t.seen {
			t.seen, t.quiet = now, 0
		} else if t.quiet++; t.quiet >= 2 {
			t.quiet = 0
			quiet = append(quiet, t)
		}
	}
	if len(x.starving) > 0 && len(quiet) > 0 {
		x.dropDataLocked()
	}
	x.mu.Unlock()
	for _, t := range quiet {
		c.hasten(t)
	}
}

func (t *task) progress() progress {
	if g := t.awaited(); g != nil {
		off, _ := g.Sequence.Received()
		return progress{off, g.R2T.R2TSN, true}
	}
	off, _ := t.sequence.Received()
	return progress{off: off}
}

// awaited returns what a task has asked for and waits for, nil if there is nothing. There is one at most where
// errors are recovered from (section 13.19).
func (t *task) awaited() *iscsi.Get {
	for i, busy := range t.busy {
		if busy {
			return &t.gets[i]
		}
	}
	return nil
}

// hasten goes on with a task whose data do not come (section 7.1.4.1 b).
func (c *conn) hasten(t *task) {
	g := t.awaited()
	switch {
	case g == nil && t.unsolicited && !t.reading:
		t.unsolicited = false
		c.goOn(t)
	case g == nil:
	case !g.Sequence.Begun():
		c.repeatR2T(g)
	case c.mover.(iscsi.Abandoner).Abandon(g):
		c.askAgain(t, g)
	}
}

// repeatR2T sends an R2T again as it was, with the numbers that hold now (sections 7.9 and 11.16).
func (c *conn) repeatR2T(g *iscsi.Get) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	c.repeatR2TLocked(g)
}

func (c *conn) repeatR2TLocked(g *iscsi.Get) {
	r := g.R2T
	r.Numbers = c.numbersLocked(false)
	k := c.againLocked()
	r.Put(&k.out.BHS)
	c.sendLocked(&k.out)
}

// againLocked returns what sends something again. It is in the queue of the mover soon.
func (c *conn) againLocked() *control {
	k := &control{c: c, again: true}
	k.out.Task = k
	c.controls++
	return k
}
