package delegate

import (
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// report is what a program says of one of its associations, of which the kernel has no more
// than the UDP socket.
type report struct {
	ID         uint64 `json:"id"`
	Outq       uint32 `json:"outq,omitempty"` // message bytes that the peer has not acknowledged
	In         uint64 `json:"in,omitempty"`   // message bytes
	Out        uint64 `json:"out,omitempty"`
	Silent     uint32 `json:"silent,omitempty"`     // since the peer was heard of, in ms
	Idle       uint32 `json:"idle,omitempty"`       // since a message came or was queued, in ms
	Unanswered uint16 `json:"unanswered,omitempty"` // retransmissions in a row
}

// lane is what a daemon has a program do about an association, by the SA that carries it.
type lane struct {
	LimitMS int64 `json:"limit,omitempty"` // bound of the retransmission timeout while there is no SA; 0: there is one
	Kick    bool  `json:"kick,omitempty"`  // send again what was sent in vain: the SA is back
}

// Association is a program's SCTP association in UDP as the daemon sees it: its socket by the
// kernel's word, what has been acknowledged on it by the program's. Whoever lies about that may
// have the SA of the program's own ports brought up or made anew, as its packets would, and learns
// late that it is back; others and the guard see nothing of it. Its methods do not block.
type Association struct {
	sock *Socket

	mu     sync.Mutex // guards the fields below it; taken before Serving.mu
	last   report
	at     time.Time // when it came
	do     lane
	due    bool           // the program is to be told of do
	notify func(*message) // nil before the program knows that the association was admitted
}

var _ interface {
	transport.Monitored
	Kick() bool
	LimitRTO(time.Duration)
	Stats() assoc.Stats
	Bytes() uint64
} = (*Association)(nil)

// Outq returns the number of message bytes that the peer has not acknowledged. It fails after the
// flow has ended.
func (a *Association) Outq() (int, error) {
	if _, ok := a.sock.use(); !ok {
		return 0, errClosed
	}
	defer a.sock.leave()
	a.mu.Lock()
	defer a.mu.Unlock()
	return int(a.last.Outq), nil
}

// Bytes returns the number of message bytes that have gone and come.
func (a *Association) Bytes() uint64 {
	out, in := a.bytes()
	return out + in
}

func (a *Association) bytes() (out, in uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last.Out, a.last.In
}

// Stats returns what the program has reported, as of now.
func (a *Association) Stats() assoc.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, since := a.last, time.Since(a.at)
	return assoc.Stats{BytesIn: r.In, BytesOut: r.Out, Unanswered: int(r.Unanswered),
		Silent: time.Duration(r.Silent)*time.Millisecond + since, Idle: time.Duration(r.Idle)*time.Millisecond + since}
}

// Kick has the program send again what was sent in vain. stuck reports whether there was some,
// as far as it has said.
func (a *Association) Kick() (stuck bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.do.Kick = true
	a.tellLocked()
	return a.last.Outq > 0 && a.last.Unanswered > 0
}

// LimitRTO bounds the program's retransmission timeout while the SA is away, and says that it
// is; 0 lifts the bound.
func (a *Association) LimitRTO(most time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.do.LimitMS = most.Milliseconds()
	a.tellLocked()
}

// tellLocked has the program told what to do, once for all that is new until then.
func (a *Association) tellLocked() {
	news := !a.due
	a.due = true
	if news && a.notify != nil {
		a.notify(&message{Op: opLane, about: a})
	}
}

// admitted begins to tell the program, by notify, which must not call back.
func (a *Association) admitted(notify func(*message)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notify = notify
	if a.due {
		a.due = false
		a.tellLocked()
	}
}

// take returns what the program is to do now.
func (a *Association) take() *lane {
	a.mu.Lock()
	defer a.mu.Unlock()
	do := a.do
	a.due, a.do.Kick = false, false
	return &do
}

// hear takes what the program has reported.
func (a *Association) hear(r report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last, a.at = r, time.Now()
}
