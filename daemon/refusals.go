package daemon

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// refusals counts connections that were turned away, and logs at most one a
// second.
type refusals struct {
	mu        sync.Mutex
	n         uint64
	last      string
	fix       string // what to do about the last, if it is known
	logged    time.Time
	rejecting int
}

// maxRejecting bounds the goroutines that tell peers that they are refused.
const maxRejecting = 32

func (r *refusals) add(log *slog.Logger, f transport.Flow, err error) {
	r.mu.Lock()
	r.n++
	r.last, r.fix = fmt.Sprintf("%s: %v", f.Remote, err), adviceOf(err)
	fix := r.fix
	now := time.Now()
	show := now.Sub(r.logged) >= time.Second
	if show {
		r.logged = now
	}
	n := r.n
	r.mu.Unlock()
	if show {
		attrs := []any{"flow", f.String(), "error", err, "refused_so_far", n}
		if fix != "" {
			attrs = append(attrs, "advice", fix)
		}
		log.Warn("connection refused", attrs...)
	}
}

func (r *refusals) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rejecting >= maxRejecting {
		return false
	}
	r.rejecting++
	return true
}

func (r *refusals) leave() {
	r.mu.Lock()
	r.rejecting--
	r.mu.Unlock()
}

func (r *refusals) count() (n uint64, last, fix string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n, r.last, r.fix
}
