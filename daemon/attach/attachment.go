package attach

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/meter"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/vhost"
)

// Attachment is a remote disk on an NBD socket, or behind a block device.
type Attachment struct {
	Key   Disk
	owner *local.Consumer
	uid   uint32 // the user of the owner who attached it
	// identity is the peer's that it was attached from: a peer of the same name and
	// another identity is another peer. "": nobody remembers.
	identity transport.Identity
	log      *slog.Logger
	socket   string
	frontEnd
	place
	full     *api.Error  // why it stays down, if its ULP has as many disks as it may
	replaces *Attachment // the orphan in whose place it is, nil if there was none
	meter    meter.Meter
	// migration: it may be one of two writers. Once it is, its claim says so.
	migration bool
	cancel    context.CancelFunc // ends the attempts to bring it up
	ready     chan struct{}      // closed when it is up
	gone      chan struct{}      // closed when it is detached
	ended     chan struct{}      // closed when nothing of it is left

	endOnce    sync.Once
	isDetached atomic.Bool // its block device ends with it

	mu          sync.Mutex // guards the fields below it
	since       time.Time
	service     string      // the name by which the directory was asked for it, "" if none was
	orphan      bool        // its peer is not there, or its ULP has too many: it stays down until somebody attaches it, or a reload
	claim       rnbd.Claim  // on the disk, for the next time
	predecessor *Attachment // the one before, which is ending: the claim is its, until there is another
	problem     *api.Error  // why it is not up yet
	session     *session
	disk        *rnbd.Disk // nil until it is up, like what follows
	server      *nbd.Server
	stop        context.CancelFunc
	served      chan struct{}             // closed when the server has ended
	users       *local.RestrictedListener // of a ULP's disk: who connects to it
	block       *device.Device            // nil if it is on a socket
	release     func()                    // ends that its device is held, nil: it is not
	vhostServer *vhost.Server             // in place of server, nil if it is on no vhost-user socket
}

// await waits for an attachment that somebody else brings up.
func (at *Attachment) await(ctx context.Context) error {
	select {
	case <-at.ready:
		return nil
	case <-at.gone:
		return errDetached(at.Key)
	case <-ctx.Done():
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.problem != nil {
		return at.problem
	}
	return ctx.Err()
}

// noteUp notes that the disk is there and about to be served, unless it has been
// detached meanwhile.
func (at *Attachment) noteUp(s *session, dk *rnbd.Disk, srv *nbd.Server, stop context.CancelFunc, served chan struct{}) bool {
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

// stopServing keeps NBD clients from beginning anything.
func (at *Attachment) stopServing() {
	at.cancel()
	at.mu.Lock()
	stop := at.stop
	at.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// currentClaim is what the attachment knows of its disk, or its predecessor until that has ended.
func (at *Attachment) currentClaim() rnbd.Claim {
	at.mu.Lock()
	claim, before := at.claim, at.predecessor
	at.mu.Unlock()
	if before != nil {
		return before.currentClaim()
	}
	return claim
}

// continueFrom makes an attachment continue from its predecessor, or else from a saved claim.
func (at *Attachment) continueFrom(c rnbd.Claim, before *Attachment) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.claim, at.predecessor = c, before
}

func (at *Attachment) saved() Saved {
	return Saved{at.Key, at.uid, at.identity, at.currentClaim(), at.device, at.vhost, at.serviceName(), at.partition, at.label}
}

// saveClaim saves under which life of its disk an attachment writes from now on.
func (a *Attacher) saveClaim(at *Attachment, c rnbd.Claim) error {
	before := at.currentClaim()
	at.continueFrom(c, nil)
	if err := a.save(); err != nil {
		at.continueFrom(before, nil)
		return err
	}
	return nil
}

// noteProblem notes why an attachment is not up, or not any more, and whether it stays down.
func (at *Attachment) noteProblem(why *api.Error, down bool) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.orphan, at.problem = down, why
}

// List are those that a condition names, in the order of their names; nil names all.
func (a *Attacher) List(which func(*Attachment) bool) (list []*Attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := range maps.Values(a.disks) {
		if which == nil || which(at) {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, func(x, y *Attachment) int { return x.Key.compare(y.Key) })
	return list
}

// Of names the disks of a consumer.
func Of(c *local.Consumer) func(*Attachment) bool {
	return func(at *Attachment) bool { return at.owner == c }
}

// From names the disks of a peer that are not orphans.
func From(peer string) func(*Attachment) bool {
	return func(at *Attachment) bool { return at.Key.Peer == peer && !at.isOrphan() }
}

// Describe describes the disks that a caller may see.
func (a *Attacher) Describe(who local.Caller) []api.Attachment {
	out := []api.Attachment{}
	for _, at := range a.List(func(at *Attachment) bool { return who.Sees(at.owner) }) {
		v := at.describe()
		if v.Problem != nil && v.Problem != at.full {
			v.Problem = who.Redact(at.Key.Peer, v.Problem)
		}
		out = append(out, v)
	}
	return out
}

// Meter samples the counters of I/O, for rates.
func (a *Attacher) Meter(now time.Time) {
	for _, at := range a.List(nil) {
		st, _ := at.stats()
		at.meter.Sample(now, ioOf(st))
	}
}

// stats are those of the NBD socket, and the disk, nil until it is up.
func (at *Attachment) stats() (st nbd.Stats, dk *rnbd.Disk) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.server != nil {
		st, _ = at.server.Stats(at.Key.Export)
	}
	if at.vhostServer != nil {
		st = vhostStats(at.vhostServer.Stats())
	}
	return st, at.disk
}

func ioOf(st nbd.Stats) api.IO {
	return api.IO{Reads: st.Reads, Writes: st.Writes, ReadBytes: st.ReadBytes, WriteBytes: st.WrittenBytes, Errors: st.Errors}
}

func (at *Attachment) describe() api.Attachment {
	st, dk := at.stats()
	v := api.Attachment{
		ULP: at.Key.ULP, Peer: at.Key.Peer, Export: at.Key.Export, State: api.AttachConnecting, Socket: at.socket, VhostSocket: at.vhost, Partition: at.partition, Clients: st.Clients, IO: ioOf(st),
		URI: "nbd+unix:///" + url.PathEscape(at.Key.Export) + "?socket=" + at.socket,
	}
	at.meter.Rates(&v.IO)
	at.mu.Lock()
	v.Service = at.service
	v.Problem, v.AgeSeconds = at.problem, time.Since(at.since).Seconds()
	if at.frontEnd != (frontEnd{}) || at.orphan {
		v.Socket, v.URI = "", ""
	}
	if at.block != nil {
		v.Device, v.DeviceLink = at.block.Path(), at.block.Link()
	}
	if at.orphan {
		v.State, v.VhostSocket = api.AttachOrphaned, ""
	}
	at.mu.Unlock()
	if dk != nil {
		setState(&v, at.Key, dk.Info(), st.Oldest)
	}
	return v
}

// stalledAfter is how long I/O may take on a path that is up before its disk counts as
// stalled: longer than a disk with a full queue takes, shorter than a user waits.
const stalledAfter = 10 * time.Second

// setState sets the state of a disk whose oldest I/O has waited for so long.
func setState(v *api.Attachment, k Disk, i rnbd.DiskInfo, oldest time.Duration) {
	v.Latency = api.Latencies(i.Stats.Latency)
	v.Size, v.ReadOnly, v.State, v.OldestIOSeconds = i.Size, i.ReadOnly, api.AttachReady, oldest.Seconds()
	switch {
	case i.Err != nil:
		v.State = api.AttachFailed
		if v.Problem = refusedDisk(local.Caller{Privileged: true}, k, i.Err); v.Problem != nil {
			break
		}
		v.Problem = &api.Error{Code: codeOf(i.Err), Message: fmt.Sprintf("%s: %v", k, i.Err), Fix: "I/O fails until the peer lets it be opened again"}
	case i.Session.Failing:
		v.State = api.AttachFailed
		v.Problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("I/O of %s fails: there has been no path to %s for %v", k, k.Peer, i.Session.NoPath.After),
			Fix: fmt.Sprintf("it works again when there is one; `ironwarp session show %s` shows why there is none", k.Peer)}
		if i.Session.LastError != nil {
			v.Problem.Message += ": " + i.Session.LastError.Error()
		}
	case i.Session.State != rtrs.Connected:
		v.State = api.AttachWaiting
		if i.Session.LastError != nil {
			v.Problem = &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s waits for its peer: %v", k, i.Session.LastError), Fix: "I/O goes on when the peer is back"}
		}
	case i.Session.IsPaused():
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
