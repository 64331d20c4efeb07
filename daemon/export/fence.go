package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	// fenceTime is how long a fence waits for I/O to end if nobody says otherwise: a disk's
	// own retries take some 30 s.
	fenceTime = time.Minute
	// maxFenceTime bounds what somebody may say.
	maxFenceTime = time.Hour
)

// Fence makes void what lets a peer write to an export, and waits until nothing of the peer
// can reach the storage any more. See rnbd.Server.Fence. It fails with an *api.Error.
func (r *Exporter) Fence(ctx context.Context, name string, q api.FenceRequest) (api.Fenced, error) {
	limit, err := api.Seconds(q.TimeoutSeconds, fenceTime, maxFenceTime)
	if err != nil {
		return api.Fenced{}, err
	}
	of := r.tokensOf(q.Peer)
	known := len(r.cfg.Identities(config.Export{Allow: []string{q.Peer}})) > 0
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := r.hurry(name)
	defer stop()
	f, err := r.server.Fence(ctx, name, func(t rnbd.Token) bool {
		hit := of(t)
		known = known || hit
		return hit
	})
	v := api.Fenced{Export: name, Peer: q.Peer, Generation: f.Generation, Drained: f.Drained, Tokens: []api.Token{}}
	for _, t := range f.Tokens {
		v.Tokens = append(v.Tokens, api.Token{Attachment: t.Attachment.String(), Identity: string(t.Peer), Name: t.Name})
	}
	if len(f.Tokens) > 0 {
		r.log.Warn("a peer was fenced: it writes to the export no more until it attaches it anew", "export", name, "peer", q.Peer, "generation", f.Generation, "tokens", len(f.Tokens))
	}
	switch {
	case errors.Is(err, rnbd.ErrNotFound):
		return v, errUnknown(name)
	case errors.Is(err, rnbd.ErrNotReady):
		return v, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s is not fenced: the storage of export %s is not open, so nobody writes to it", q.Peer, name),
			Fix: "`ironwarp export ls` says why; fence the peer when it is open again, before another writes"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return v, &api.Error{Code: api.CodeTimeout,
			Message: fmt.Sprintf("%s is fenced from export %s in generation %d, but %d I/Os that it had begun have not ended: the storage may hang, and they may still reach it", q.Peer, name, f.Generation, f.Running),
			Fix:     "see to the storage, and run the command again, which goes on waiting; let nobody else write until it succeeds"}
	case err != nil:
		return v, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s is fenced from export %s only until this daemon ends: %v", q.Peer, name, err),
			Fix: "make room in " + r.cfg.StateDir + ", or repair what the error says, and run the command again"}
	case !known:
		return v, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no peer is called %s, and nobody of that name or identity may write to export %s", q.Peer, name),
			Fix: "`ironwarp peer ls` lists the peers"}
	}
	return v, nil
}

// tokensOf picks the tokens of a peer. One belongs to the peer that has its identity now;
// if there is none, to that of the name that its peer had: a host that has been given another
// identity is known by its name, and one that has another name by its identity. Where neither
// is configured any more, the identity itself may be given.
func (r *Exporter) tokensOf(peer string) func(rnbd.Token) bool {
	identity := transport.Identity(strings.TrimPrefix(peer, config.AllowIdentity))
	return func(t rnbd.Token) bool {
		return cmp.Or(r.cfg.NameOf(t.Peer), t.Name) == peer || t.Peer == identity
	}
}

// hurry has I/O go on that waits for the limits of an export, until stop is called: who fences waits for no tokens.
func (r *Exporter) hurry(name string) (stop func()) {
	e := r.find(name)
	if e == nil {
		return func() {}
	}
	_, g := e.openGate()
	if g == nil {
		return func() {}
	}
	return g.Hurry()
}
