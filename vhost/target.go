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

// takes reports whether the data that comes now goes to the guest's memory.
func (t *target) takes(refuse bool) bool {
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

// Place implements block.Target. It is called while others' data waits behind b: what the
// guest's memory is longer about than other memory is counted, and where that is too much
// its data is copied by the front end's own goroutine, for a time.
func (p *piece) Place(at uint64, b []byte) bool {
	f := p.req.r.f
	f.placing.Add(1)
	defer f.placing.Add(-1)
	t, began := &p.to, sinceStart()
	if !t.takes(f.gone.Load() || f.srv.patience.isOver(began)) {
		return false
	}
	pos := p.at + uint32(at)
	c := cursor{uint32(t.last.Load() >> 32), uint32(t.last.Load())}
	if c.begin > pos {
		c = cursor{}
	}
	err := touch(func() error {
		c = scatterFrom(c, p.req.data, pos, b)
		return nil
	})
	f.srv.patience.spend(began, sinceStart()-began-usual(len(b)))
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
	if io, ok := p.io.(block.TargetIO); ok && p.req.op == block.OpRead && !p.req.r.f.srv.patience.isOver(sinceStart()) {
		p.to.state.Store(targetFree)
		io.SubmitTo(p, p, more)
		return
	}
	p.io.Submit(p, more)
}

// deliver has the data of a piece that was read in the guest's memory. It reports false where the
// piece is read once more for that. It fails if the memory has gone.
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
		err = touch(func() error {
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

// patience is how much longer a front end's memory may take, where data is placed in it, than
// other memory would: the kernel may have to find it first, and the stream that the data comes
// by waits meanwhile, which others use. It is a tenth of the time, and 100 ms at once. Where
// it is over, it comes back when all has been made up for.
type patience struct {
	due  atomic.Int64 // when all that was taken has been made up for
	back atomic.Int64 // when it comes back
}

const (
	patienceShare = 10
	patienceBurst = 100 * time.Millisecond
)

func (p *patience) isOver(now time.Duration) bool { return now < time.Duration(p.back.Load()) }

// spend counts what was taken at a time.
func (p *patience) spend(now, took time.Duration) {
	if took <= 0 {
		return
	}
	for {
		old := p.due.Load()
		due := max(time.Duration(old), now) + patienceShare*min(took, time.Hour)
		if !p.due.CompareAndSwap(old, int64(due)) {
			continue
		}
		if due-now > patienceShare*patienceBurst {
			p.back.Store(int64(due))
		}
		return
	}
}

// usual is how long it takes at most to copy n bytes to memory that is there.
func usual(n int) time.Duration { return 20*time.Microsecond + time.Duration(n) }

var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }
