package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/meter"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// attachment is a remote disk on an NBD socket.
type attachment struct {
	key   disk
	owner *consumer
	uid   uint32 // the user of the owner who attached it
	// identity is the peer's that it was attached from: a peer of the same name and
	// another identity is another peer. "": nobody remembers.
	identity transport.Identity
	log      *slog.Logger
	socket   string
	full     *api.Error  // why it stays down, if its ULP has as many disks as it may
	replaces *attachment // the orphan in whose place it is, nil if there was none
	meter    meter.Meter
	cancel   context.CancelFunc // ends the attempts to bring it up
	ready    chan struct{}      // closed when it is up
	gone     chan struct{}      // closed when it is detached
	ended    chan struct{}      // closed when nothing of it is left

	dropping sync.Once

	mu      sync.Mutex
	since   time.Time
	orphan  bool        // its peer is not there, or its ULP has too many: it stays down until somebody attaches it, or a reload
	claim   rnbd.Claim  // on the disk, for the next time
	before  *attachment // the one before, which is ending: the claim is its, until there is another
	problem *api.Error  // why it is not up yet
	session *session
	disk    *rnbd.Disk // nil until it is up, like what follows
	server  *nbd.Server
	stop    context.CancelFunc
	served  chan struct{}  // closed when the server has ended
	guard   *local.Guarded // of a ULP's disk: who connects to it
}

// up notes that the disk is there and about to be served, unless it has been
// detached meanwhile.
func (at *attachment) up(s *session, dk *rnbd.Disk, srv *nbd.Server, stop context.CancelFunc, served chan struct{}) bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	select {
	case <-at.gone:
		return false
	default:
	}
	at.session, at.disk, at.server, at.stop, at.served = s, dk, srv, stop, served
	at.since, at.problem = time.Now(), nil
	return true
}

// shut lets no NBD client begin anything.
func (at *attachment) shut() {
	at.cancel()
	at.mu.Lock()
	stop := at.stop
	at.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// claimed is what the attachment knows of its disk.
func (at *attachment) claimed() rnbd.Claim {
	at.mu.Lock()
	claim, before := at.claim, at.before
	at.mu.Unlock()
	if before != nil {
		return before.claimed()
	}
	return claim
}

// follow has an attachment go on from the one before, or else from what was saved.
func (at *attachment) follow(c rnbd.Claim, before *attachment) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.claim, at.before = c, before
}

func (at *attachment) saved() saved {
	return saved{at.key, at.uid, at.identity, at.claimed()}
}

func (at *attachment) setClaim(c rnbd.Claim) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.claim, at.before = c, nil
}

// keepClaim writes down under which life of its disk an attachment writes from now on.
func (d *Daemon) keepClaim(at *attachment, c rnbd.Claim) error {
	before := at.claimed()
	at.setClaim(c)
	err := d.remember()
	if err != nil {
		at.setClaim(before)
	}
	return err
}

func (at *attachment) fail(e *api.Error) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.problem = e
}

func (d *Daemon) attachmentList() []*attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*attachment, 0, len(d.disks))
	for _, at := range d.disks {
		list = append(list, at)
	}
	slices.SortFunc(list, func(a, b *attachment) int {
		return cmp.Or(cmp.Compare(a.key.Peer, b.key.Peer), cmp.Compare(a.key.Export, b.key.Export), cmp.Compare(a.key.ULP, b.key.ULP))
	})
	return list
}

// Attachments describes all attached disks.
func (d *Daemon) Attachments() []api.Attachment { return d.attachmentsOf(d.asRoot()) }

// attachmentsOf describes those that a caller may see.
func (d *Daemon) attachmentsOf(who caller) []api.Attachment {
	out := []api.Attachment{}
	for _, at := range d.attachmentList() {
		if who.sees(at.owner) {
			out = append(out, at.describeTo(who))
		}
	}
	return out
}

func (at *attachment) clients() int {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.server == nil {
		return 0
	}
	st, _ := at.server.Stats(at.key.Export)
	return st.Clients
}

func (at *attachment) io() api.IO {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.server == nil {
		return api.IO{}
	}
	st, _ := at.server.Stats(at.key.Export)
	return api.IO{Reads: st.Reads, Writes: st.Writes, ReadBytes: st.ReadBytes, WriteBytes: st.WrittenBytes, Errors: st.Errors}
}

// describeTo is describe for a caller.
func (at *attachment) describeTo(who caller) api.Attachment {
	v := at.describe()
	if v.Problem != nil && v.Problem != at.full {
		v.Problem = discreet(who, at.key.Peer, v.Problem)
	}
	return v
}

func (at *attachment) describe() api.Attachment {
	v := api.Attachment{
		ULP: at.key.ULP, Peer: at.key.Peer, Export: at.key.Export, State: api.AttachConnecting, Socket: at.socket, Clients: at.clients(), IO: at.io(),
		URI: "nbd+unix:///" + url.PathEscape(at.key.Export) + "?socket=" + at.socket,
	}
	at.meter.Rates(&v.IO)
	at.mu.Lock()
	v.Problem, v.AgeSeconds = at.problem, time.Since(at.since).Seconds()
	if at.orphan {
		v.State, v.Socket, v.URI = api.AttachOrphaned, "", ""
	}
	dk, srv := at.disk, at.server
	at.mu.Unlock()
	if dk != nil {
		st, _ := srv.Stats(at.key.Export)
		judge(&v, at.key, dk.Info(), st.Oldest)
	}
	return v
}

// stalledAfter is how long I/O may take on a path that is up before its disk counts as
// stalled: longer than a disk with a full queue takes, shorter than a user waits.
const stalledAfter = 10 * time.Second

// judge says in which state a disk is, whose oldest I/O has waited for a while.
func judge(v *api.Attachment, k disk, i rnbd.DiskInfo, oldest time.Duration) {
	v.Size, v.ReadOnly, v.State, v.OldestIOSeconds = i.Size, i.ReadOnly, api.AttachReady, oldest.Seconds()
	switch {
	case i.Err != nil:
		v.State = api.AttachFailed
		if v.Problem = refusedDisk(caller{all: true}, k, i.Err); v.Problem != nil {
			break
		}
		v.Problem = &api.Error{Code: apiError(i.Err).Code, Message: fmt.Sprintf("%s: %v", k, i.Err), Fix: "I/O fails until the peer lets it be opened again"}
	case i.Session.State != rtrs.Connected:
		v.State = api.AttachWaiting
		if i.Session.LastError != nil {
			v.Problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s waits for its peer: %v", k, i.Session.LastError), Fix: "I/O goes on when the peer is back"}
		}
	case slices.ContainsFunc(i.Session.Conns, func(c rtrs.ConnInfo) bool { return c.Paused }):
		v.State = api.AttachWaiting
	case i.Waits != nil:
		v.State = api.AttachWaiting
		v.Problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s waits: %v", k, i.Waits),
			Fix: fmt.Sprintf("see to the export on %s; I/O goes on as soon as it is ready there", k.Peer)}
	case oldest > stalledAfter:
		v.State = api.AttachStalled
		v.Problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s is stalled: its oldest I/O has been waiting for %v, and the peer is connected", k, oldest.Round(time.Second)),
			Fix: fmt.Sprintf("look at the storage on %s; `ironwarp ping %s` tells whether the path still carries data", k.Peer, k.Peer)}
	}
}
