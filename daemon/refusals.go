package daemon

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/transport"
)

// refusals counts connections that were turned away.
type refusals struct {
	mu        sync.Mutex
	n         uint64
	last      string
	fix       string // what to do about the last, if it is known
	rejecting int
}

// maxRejecting bounds the goroutines that tell peers that they are refused.
const maxRejecting = 32

// add counts and logs a connection that was turned away. peer is who has its
// address, "" if nobody has.
func (r *refusals) add(log *slog.Logger, peer string, f transport.Flow, err error) {
	reason, fix := sas.AdviceOf(err)
	r.mu.Lock()
	r.n++
	r.last, r.fix = fmt.Sprintf("%s: %v", f.Remote, err), fix
	n := r.n
	r.mu.Unlock()
	attrs := []any{"peer", peer, "flow", f.String(), "error", err, "refused_so_far", n}
	if reason != "" {
		attrs = append(attrs, "reason", reason)
	}
	if fix != "" {
		attrs = append(attrs, "advice", fix)
	}
	log.Warn("connection refused", attrs...)
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

// turnedAway is told of a flow that was refused before anybody was asked whom it is
// for, or that failed in its start-up.
func (d *Daemon) turnedAway(f transport.Flow, err error) {
	name := ""
	if p := d.peers.at(f.Remote.Addr()); p != nil {
		name = p.cfg.Name
		d.blocks.Created(name, err)
	}
	d.refused.add(d.log, name, f, err)
}
