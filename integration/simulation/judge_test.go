package simulation

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/integration/history/register"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
)

// op is one operation of a client.
type op struct {
	by           *attachment
	via          *program // that has asked for it, nil: the process itself
	kind         block.Op
	first, count int // sectors
	write        uint64
	fua          bool

	call, ret int64 // ret is 0 while nobody knows what became of it
	unknown   bool  // its process was killed
	errno     syscall.Errno
	why       error    // what was wrong with the disk then, or with the session
	seen      []uint64 // by a read, of each sector; by a status 0 for a hole
}

func (o *op) String() string {
	what := fmt.Sprintf("read of sectors %d to %d", o.first, o.first+o.count-1)
	switch o.kind {
	case block.OpWrite:
		what = fmt.Sprintf("write %d to sectors %d to %d", o.write, o.first, o.first+o.count-1)
		if o.fua {
			what += " with FUA"
		}
	case block.OpFlush:
		what = "flush"
	case block.OpStatus:
		what = strings.Replace(what, "read", "status", 1)
	}
	return fmt.Sprintf("%s by %s (#%d to #%d)", what, o.by.client.name, o.call, o.ret)
}

func (o *op) covers(sector int) bool { return sector >= o.first && sector < o.first+o.count }
func (o *op) succeeded() bool        { return o.ret != 0 && !o.unknown && o.errno == 0 }

func (w *world) invoke(o *op) {
	w.mu.Lock()
	if o.kind == block.OpWrite {
		w.writes++
		o.write = w.writes
	}
	o.call = w.now()
	w.ops = append(w.ops, o)
	w.mu.Unlock()
	w.happens("%v begins", o)
}

// complete records the end of an operation, of which nobody heard if its process is dead.
func (w *world) complete(o *op, errno syscall.Errno, dead bool) {
	w.mu.Lock()
	o.ret, o.errno, o.unknown = w.now(), errno, dead
	w.mu.Unlock()
	w.happens("%v ends: %v, dead %v, seen %v", o, errno, dead, o.seen)
}

// judge checks what happened against what is promised.
func (w *world) judge() {
	for _, o := range w.ops {
		switch {
		case o.ret == 0:
			w.wrong("%v has no end", o)
			continue
		case o.errno != 0 && !o.unknown && !w.excused(o):
			w.wrong("%v failed without a cause: %v, %v", o, o.errno, o.why)
		}
		switch o.kind {
		case block.OpWrite:
			w.judgeWrite(o)
		case block.OpRead, block.OpStatus:
			if o.succeeded() {
				w.judgeRead(o)
			}
		}
	}
	for i := range w.disk.sectors {
		for _, c := range w.disk.sectors[i].changes {
			for _, lost := range c.lost {
				w.judgeLoss(i, c.at, lost)
			}
		}
	}
	w.judgeHistories()
}

// judgeWrite checks when a write was executed: at most once; if it was acknowledged, by
// then, and if it was answered in another way, not afterwards; and not after a successor
// had the disk.
func (w *world) judgeWrite(o *op) {
	for i := o.first; i < o.first+o.count; i++ {
		at := w.disk.sectors[i].executions(o.write)
		if o.succeeded() && (len(at) == 0 || at[0] > o.ret) {
			w.wrong("%v: sector %d was not written when it was acknowledged", o, i)
		}
		for k, t := range at {
			if k > 0 && (w.plan.shared || !w.forgot(o.by.client, at[k-1], t)) {
				w.wrong("%v: sector %d was written more than once (%v)", o, i, at)
			}
			if k > 0 && !w.plan.shared && w.overtaken(o, i, at[k-1], t) {
				w.wrong("%v: sector %d was written again after a later write was acknowledged (%v)", o, i, at)
			}
			switch next := w.later(o, i, t); {
			case o.unknown || t < o.ret:
			case !o.gaveUp():
				w.wrong("%v: sector %d was written after it was answered (%v)", o, i, at)
			case next != nil:
				w.wrong("%v: sector %d was written (%v) after it had failed without a path, and %v was acknowledged", o, i, at, next)
			}
			if f := w.fencedFrom(o, t); f != nil {
				w.wrong("%v: sector %d was written (%v) after %s had been fenced (#%d)", o, i, at, o.by.client.name, f.answer)
			}
			if s := w.heir(o, i, t); s != nil {
				w.wrong("%v: sector %d was written (%v) after its NBD client was gone (#%d), and another's %v was acknowledged", o, i, at, o.via.end, s)
			}
			if who, since := w.successor(o, t); since != 0 {
				w.wrong("%v: sector %d was written (%v) after %s had the disk (#%d)", o, i, at, who, since)
			}
		}
	}
}

// gaveUp reports whether an operation has failed because there was no path.
func (o *op) gaveUp() bool { return o.errno != 0 && errors.Is(o.why, rtrs.ErrNoPath) }

// later returns a write of a sector that the same process asked for when another had ended,
// and that was acknowledged before the other was executed.
func (w *world) later(o *op, sector int, executed int64) *op {
	i := slices.IndexFunc(w.ops, func(next *op) bool {
		return next.kind == block.OpWrite && next.by.process == o.by.process && next.covers(sector) && next.call > o.ret && next.succeeded() && next.ret < executed
	})
	if i < 0 {
		return nil
	}
	return w.ops[i]
}

// fencedFrom returns a fence that was answered before a write was executed, of the right by
// which it was sent: the client had attached the disk before, and never anew since.
func (w *world) fencedFrom(o *op, executed int64) *fence {
	i := slices.IndexFunc(w.fences, func(f fence) bool {
		return f.client == o.by.client && f.answer != 0 && executed > f.answer && slices.ContainsFunc(w.attached, func(a *attachment) bool {
			return a.client == f.client && a.epoch == o.by.epoch && !a.readOnly && a.start != 0 && a.start < f.call
		})
	})
	if i < 0 {
		return nil
	}
	return &w.fences[i]
}

// seeSize checks the size that the disk has for who has attached it: it never shrinks, and
// who attaches it sees what was offered before.
func (w *world) seeSize(a *attachment, size uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if size < a.size {
		w.faults = append(w.faults, fmt.Sprintf("the disk has shrunk for %s from %d to %d bytes", a.client.name, a.size, size))
	}
	for _, g := range w.grown {
		if g.at < a.call && size < g.size {
			w.faults = append(w.faults, fmt.Sprintf("the disk has %d bytes for %s, and had %d when it was attached", size, a.client.name, g.size))
		}
	}
	a.size = size
}

// executions is when a write was executed.
func (s *sector) executions(write uint64) (at []int64) {
	for _, c := range s.changes {
		if c.value == write && !c.cut {
			at = append(at, c.at)
		}
	}
	return at
}

// forgot reports whether the server has forgotten what a client had sent it between two
// times: then the only writer's writes may be executed again, in their place.
func (w *world) forgot(c *client, from, to int64) bool {
	return slices.ContainsFunc(w.begun, func(b began) bool { return string(b.client) == c.name && b.at > from && b.at < to })
}

// overtaken reports whether between two executions of a write another of the sector was
// executed and acknowledged.
func (w *world) overtaken(o *op, i int, from, to int64) bool {
	return slices.ContainsFunc(w.disk.sectors[i].changes, func(c change) bool {
		if c.cut || c.value == o.write || c.at < from || c.at > to {
			return false
		}
		by := w.writeOp(c.value)
		return by.succeeded() && by.ret < to
	})
}

// writeOp returns the operation that wrote a value.
func (w *world) writeOp(value uint64) *op {
	i := slices.IndexFunc(w.ops, func(o *op) bool { return o.kind == block.OpWrite && o.write == value })
	return w.ops[i]
}

// successor returns who had the disk when a write was executed, and must not be followed by
// it, and since when; 0: nobody. That is the client's next process, or, where one may write,
// another client that the server has let in later: it may hear of that late, when it has lost
// its place again. Only a client that has not heard yet that it has the disk, and so has sent
// nothing, may be let in once more after another.
func (w *world) successor(o *op, executed int64) (who string, since int64) {
	for _, a := range w.attached {
		if !a.readOnly && a.client == o.by.client && a.process != o.by.process && a.start > max(o.by.start, o.call) && a.start < executed {
			return "its next process", a.start
		}
	}
	let := int64(0)
	for _, at := range w.admitted[o.by.id].at {
		if at < o.by.start {
			let = at
		}
	}
	for _, a := range w.admitted {
		if w.plan.shared || string(a.client) == o.by.client.name {
			continue
		}
		for _, at := range a.at {
			if at > let && at < executed {
				return string(a.client), at
			}
		}
	}
	return "", 0
}

// judgeRead checks that each sector had what was read at some time of the read.
func (w *world) judgeRead(o *op) {
	if len(o.seen) != o.count {
		w.wrong("%v tells of %d sectors", o, len(o.seen))
		return
	}
	for k, v := range o.seen {
		cs := w.disk.sectors[o.first+k].changes
		ok := false
		for i, c := range cs {
			until := o.ret
			if i+1 < len(cs) {
				until = cs[i+1].at
			}
			is := c.value == v
			if o.kind == block.OpStatus {
				is = (c.value == 0) == (v == 0)
			}
			ok = ok || is && c.at < o.ret && until >= o.call
		}
		if !ok {
			w.wrong("%v: sector %d did not have %d then", o, o.first+k, v)
		}
	}
}

// judgeLoss checks that nobody vouched for a write that a power cut has taken.
func (w *world) judgeLoss(sector int, cut int64, lost uint64) {
	o := w.writeOp(lost)
	if !o.succeeded() || o.ret > cut {
		return
	}
	if o.fua {
		w.wrong("%v: sector %d has lost it in the power cut at #%d", o, sector, cut)
	}
	for _, f := range w.ops {
		if f.kind != block.OpFlush || !f.succeeded() || f.call < o.ret {
			continue
		}
		if f.ret < cut || f.by.client == o.by.client && f.by.epoch == o.by.epoch {
			w.wrong("%v vouches for %v, which sector %d has lost in the power cut at #%d", f, o, sector, cut)
		}
	}
}

// excused reports whether there is a cause for the failure of an operation.
func (w *world) excused(o *op) bool {
	if w.disk.failed[o.write] || o.kind == block.OpFlush && w.disk.damaged {
		return true
	}
	switch {
	case o.errno == syscall.EPERM: // at first nothing else says so
		return slices.ContainsFunc(w.fences, func(f fence) bool { return f.client == o.by.client && f.call < o.ret })
	case w.plan.shared && o.kind == block.OpWrite && w.forgot(o.by.client, o.call, o.ret):
		return true // nobody knows whether it was executed, and it cannot be sent again
	case o.by.detached != 0 && o.by.detached < o.ret:
		return true
	case errors.Is(o.why, rnbd.ErrWritesLost):
		return slices.ContainsFunc(w.disk.sectors[0].changes, func(c change) bool { return c.cut && c.at < o.ret })
	case o.gaveUp():
		return w.plan.noPath.Fail
	case errors.Is(o.why, rnbd.ErrDamaged):
		return w.disk.damaged
	case errors.Is(o.why, rnbd.ErrPreempted):
		return !w.plan.shared && slices.ContainsFunc(w.attached, func(a *attachment) bool {
			return a.client != o.by.client && !a.readOnly && a.call < o.ret
		})
	}
	return false
}

// history is what clients saw of a sector, for porcupine. When a write was executed the disk
// knows, so that the search need not try when it may have been; judgeWrite knows whether it
// was when it ought to be. judgeLoss knows better than one sector's history whether a flush
// may vouch for what was lost.
func (w *world) history(i int) (all []porcupine.Operation) {
	s := &w.disk.sectors[i]
	last := int64(0) // power cut: what is asked for after it need not be durable, which would have the search try more orders
	for _, c := range s.changes {
		if c.cut {
			last = c.at
			all = append(all, porcupine.Operation{Input: register.Step{Kind: register.Cut}, Call: c.at, Return: c.at})
		}
	}
	for _, o := range w.ops {
		add := func(x register.Step) {
			all = append(all, porcupine.Operation{ClientId: o.by.client.number, Input: x, Call: o.call, Return: o.ret})
		}
		switch {
		case o.kind == block.OpFlush && o.succeeded() && o.call < last:
			add(register.Step{Kind: register.Flush, Epoch: math.MaxInt})
		case o.kind == block.OpRead && o.succeeded() && o.covers(i):
			add(register.Step{Kind: register.Read, Value: uint32(o.seen[i-o.first])})
		case o.kind == block.OpWrite && o.covers(i):
			for n, at := range s.executions(o.write) {
				heard := n == 0 && o.succeeded()
				x := register.Step{Kind: register.Write, Value: uint32(o.write), FUA: o.fua, Durable: o.fua && heard || o.call > last}
				all = append(all, porcupine.Operation{ClientId: o.by.client.number, Input: x, Call: at, Return: at})
			}
		}
	}
	return all
}

// judgeHistories checks that there is an order in which one disk could have done, sector by
// sector, what the clients saw.
func (w *world) judgeHistories() {
	for i := range w.disk.sectors {
		switch porcupine.CheckOperationsTimeout(register.Model, w.history(i), searchTime) {
		case porcupine.Illegal:
			w.wrong("sector %d: no order of its operations explains what the clients saw", i)
		case porcupine.Unknown:
			w.wrong("sector %d: the search for an order of its operations takes too long", i)
		}
	}
}

// searchTime bounds the search for an order.
const searchTime = 20 * time.Second
