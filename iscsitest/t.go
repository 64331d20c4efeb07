package iscsitest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/iscsi"
)

// Of one run of a case so many events are kept, the first of them and the last, with so many bytes of data.
const (
	maxEvents    = 2000
	maxEventData = 8 << 20
)

// T is one run of a case. Its methods that end the case do not return.
type T struct {
	ctx    context.Context
	target *Target
	o      *Options
	c      *Case
	rng    *rand.Rand
	began  time.Time

	events  []Event
	kept    int // bytes of data in events
	at      place
	links   int
	open    []*Conn
	cleanup []func()
	watch   *watch
	amiss   bool // the case has done what an initiator must not: what comes of that is no breach of a rule
}

// place is how far a run has come: how many PDUs were sent, and how many have come, without the pings of a target,
// which may come at any time.
type place struct{ sent, received int }

// ended is how a case ends before its end, by panic.
type ended struct {
	verdict Verdict
	found   string
	lost    bool // a connection has ended where nothing ends it
}

func (t *T) end(v Verdict, format string, args ...any) {
	panic(ended{verdict: v, found: printable.Text(fmt.Sprintf(format, args...))})
}

// fail says that the target has broken the case's sentence.
func (t *T) fail(format string, args ...any) {
	v := Fail
	if t.c.Level != Must {
		v = Warn
	}
	t.end(v, format, args...)
}

// require fails the case unless something holds.
func (t *T) require(ok bool, format string, args ...any) {
	if !ok {
		t.fail(format, args...)
	}
}

// skip says what the case needs and does not have.
func (t *T) skip(format string, args ...any) { t.end(Skip, format, args...) }

// unclear says why the case proves nothing.
func (t *T) unclear(format string, args ...any) { t.end(Inconclusive, format, args...) }

// lost says that a connection has ended where nothing ends it.
func (t *T) lost(c *Conn, err error) {
	panic(ended{verdict: Fail, found: printable.Text(fmt.Sprintf("connection %d has ended: %v", c.id, err)), lost: true})
}

func (t *T) note(e Event) {
	e.At = time.Since(t.began)
	if e.PDU != nil {
		switch {
		case e.Sent:
			t.at.sent++
		case e.PDU.BHS.Opcode() != iscsi.OpNOPIn || e.PDU.BHS.ITT() != iscsi.NoTag:
			t.at.received++
		}
		if t.kept += len(e.PDU.Data); t.kept > maxEventData {
			e.PDU.Data = nil
		}
	}
	if len(t.events) == maxEvents {
		t.events = append(t.events[:maxEvents/2], t.events[maxEvents/2+1:]...)
	}
	t.events = append(t.events, e)
}

// defers has f run when the case is over, however it ends, before its connections are closed.
func (t *T) defers(f func()) { t.cleanup = append(t.cleanup, f) }

// attempt runs the case once.
func (t *T) attempt() (r ended) {
	defer func() {
		for _, c := range t.open {
			c.close()
		}
	}()
	r = t.guarded(func() { t.c.run(t) })
	for i := len(t.cleanup) - 1; i >= 0; i-- {
		t.guarded(t.cleanup[i])
	}
	return r
}

// guarded runs f and returns how it has ended.
func (t *T) guarded(f func()) (r ended) {
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			if r, ok = p.(ended); !ok {
				panic(p)
			}
		}
	}()
	f()
	return ended{verdict: Pass}
}

// wait is until when an answer is waited for.
func (t *T) wait() time.Time { return time.Now().Add(t.o.Timeout) }

// errTimeout means that nothing has come in time.
var errTimeout = errors.New("nothing has come in time")

// pause lets the target do what it has to do.
func (t *T) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
		t.unclear("the case has taken too long")
	}
}

// soon is until when something is waited for that need not come.
func (t *T) soon() time.Time { return time.Now().Add(50 * time.Millisecond) }

// quiet is until when something is waited for that must not come.
func (t *T) quiet() time.Time { return time.Now().Add(time.Second) }
