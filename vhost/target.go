package vhost

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// target is where the data of a piece is placed, without a copy in the device: the guest's
// memory.
//
//	buffers ──submit──▶ free ──Place──▶ taking ──▶ refusing, gone
//	   ▲─────────────────┘
type target struct {
	state atomic.Uint32
	last  atomic.Uint64 // the cursor behind what was placed last
}

// States of a target.
const (
	targetBuffers  = iota // all data goes to the device's buffers
	targetFree            // all data goes to the guest's memory, and none has come
	targetTaking          // some has
	targetRefusing        // some has, and more does not go there
	targetGone            // nor could it: the memory has gone
)

// admit notes that data has come, and reports whether it goes to the guest's memory: not if
// refuse is true, or other data was refused before.
func (t *target) admit(refuse bool) bool {
	for {
		now := t.state.Load()
		next := uint32(targetTaking)
		switch {
		case now != targetFree && now != targetTaking:
			return false
		case refuse && now == targetFree:
			next = targetBuffers
		case refuse:
			next = targetRefusing
		}
		if now == next || t.state.CompareAndSwap(now, next) {
			return !refuse
		}
	}
}

// Place implements block.Target. It is called while others' data waits behind b: the time that
// the guest's memory takes longer than other memory is counted, and where that is too much, its
// data is copied by the front end's own goroutine for a while.
func (p *piece) Place(at uint64, b []byte) bool {
	f := p.req.r.f
	f.touching.Add(1)
	defer f.touched()
	t, began := &p.to, sinceStart()
	if !t.admit(f.gone.Load() || f.srv.faultBudget.isSpent(began)) {
		return false
	}
	pos := p.at + uint32(at)
	c := cursor{uint32(t.last.Load() >> 32), uint32(t.last.Load())}
	if c.begin > pos {
		c = cursor{}
	}
	err := guarded(func() error {
		c = scatterFrom(c, p.req.data, pos, b)
		return nil
	})
	f.srv.faultBudget.spend(began, sinceStart()-began-usualCopyTime(len(b)))
	if err != nil {
		t.state.Store(targetGone)
		return false
	}
	t.last.Store(uint64(c.part)<<32 | uint64(c.begin))
	return true
}

// submit submits the piece, whose data goes to the guest's memory if it is a read, the device
// can place it, and the front end has not kept others waiting.
func (p *piece) submit(more bool) {
	if io, ok := p.io.(block.TargetIO); ok && p.req.op == block.OpRead && !p.req.r.f.srv.faultBudget.isSpent(sinceStart()) {
		p.to.state.Store(targetFree)
		io.SubmitTo(p, p, more)
		return
	}
	p.io.Submit(p, more)
}

// deliver sees to it that what a piece has read is in the guest's memory. It reports false where
// the piece is read once more for that. It fails if the memory has gone.
func (p *piece) deliver() (done bool, err error) {
	q := p.req
	switch p.to.state.Load() {
	case targetFree, targetTaking:
		return true, nil
	case targetRefusing:
		p.to.state.Store(targetBuffers)
		p.io.Submit(p, false)
		return false, nil
	case targetGone:
		err = errTruncated
	default:
		err = guarded(func() error {
			at := p.at
			for _, b := range p.io.Buffers() {
				scatter(q.data, at, b)
				at += uint32(len(b))
			}
			return nil
		})
	}
	if err != nil {
		q.fail(syscall.EFAULT)
	}
	return true, err
}

// faultBudget is how much longer a front end's memory may take, where data is placed in it, than
// other memory would: the kernel may have to find a page first, and the stream that the data
// comes by, which others use, waits meanwhile. It is a tenth of the time, and 100 ms at once.
// Once it is spent, it is there again when all has been made up for.
type faultBudget struct {
	due  atomic.Int64 // when all that was spent has been made up for
	back atomic.Int64 // when it is there again
}

const (
	faultShare = 10
	faultBurst = 100 * time.Millisecond
)

func (f *faultBudget) isSpent(now time.Duration) bool { return now < time.Duration(f.back.Load()) }

// spend counts time that was taken.
func (f *faultBudget) spend(now, took time.Duration) {
	if took <= 0 {
		return
	}
	for {
		old := f.due.Load()
		due := max(time.Duration(old), now) + faultShare*min(took, time.Hour)
		if !f.due.CompareAndSwap(old, int64(due)) {
			continue
		}
		if due-now > faultShare*faultBurst {
			f.back.Store(int64(due))
		}
		return
	}
}

// usualCopyTime is how long it takes at most to copy n bytes to memory that is there.
func usualCopyTime(n int) time.Duration { return 20*time.Microsecond + time.Duration(n) }

var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }
