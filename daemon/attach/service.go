package attach

import (
	"cmp"
	"context"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/rnbd"
)

func (at *Attachment) setService(name string) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.service = name
}

func (at *Attachment) serviceName() string {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.service
}

// Services are the names of services by which disks are attached that nobody uses.
func (a *Attacher) Services() (names []string) {
	for _, at := range a.List((*Attachment).mayMove) {
		names = append(names, at.serviceName())
	}
	return names
}

// mayMove reports whether a disk was attached by the name of a service and is used by nobody: who has it open has seen that disk
// and no other.
func (at *Attachment) mayMove() bool {
	st, _ := at.stats()
	return at.serviceName() != "" && st.Clients == 0 && !at.isInUse()
}

// isOffered reports whether a disk is to be had where it is attached from: the peer itself says so.
func (a *Attacher) isOffered(ctx context.Context, at *Attachment) bool {
	ctx, cancel := context.WithTimeout(ctx, offersTime)
	defer cancel()
	offers, err := a.Offers(ctx, local.Caller{Consumer: at.owner, UID: at.uid, Privileged: at.Key.ULP == "", Label: at.label}, at.Key.Peer, at.partition)
	return err == nil && slices.ContainsFunc(offers, func(o api.Offer) bool { return o.Name == at.Key.Export })
}

// isInUse reports whether a block device of the disk is there: a file system may be mounted on it.
func (at *Attachment) isInUse() bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.block != nil
}

// Move attaches the disks of a service that Services names from a peer that has it, if their users may use that, in place of where
// they were and are not to be had any more. It returns which.
func (a *Attacher) Move(ctx context.Context, service, peer, export string) (moved []Disk) {
	for _, at := range a.List((*Attachment).mayMove) {
		to := Disk{at.Key.ULP, peer, export}
		if at.serviceName() != service || at.Key == to || a.isAttached(to) || !at.ownerMay(to) || a.isOffered(ctx, at) || !at.mayMove() {
			continue
		}
		s := at.saved()
		if s.VhostUser != "" {
			if s.VhostUser != a.defaultVhost(at.Key) {
				continue // a virtual machine that comes back to this path would find another disk
			}
			s.VhostUser = a.defaultVhost(to)
		}
		s.Disk, s.Identity, s.Claim = to, "", rnbd.Claim{} // as if its user had detached it, and attached it from there
		if !a.beginMove(at, s) {
			continue
		}
		a.DetachInBackground(at)
		<-at.ended
		waits := a.restore(s, nil)
		a.endMove(s, waits)
		if !waits {
			moved = append(moved, to)
		}
	}
	if len(moved) > 0 {
		a.SaveOrLog()
	}
	return moved
}

// beginMove has a disk be another one, which waits until endMove and is saved in its place. It reports false for one that was
// detached, or suspended, since it was looked at, and where the other one is there already.
func (a *Attacher) beginMove(at *Attachment, to Saved) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, suspends := a.suspended[at.Key]
	_, waits := a.suspended[to.Disk]
	if a.disks[at.Key] != at || suspends || waits || a.disks[to.Disk] != nil {
		return false
	}
	delete(a.disks, at.Key)
	a.suspended[to.Disk] = suspended{Saved: to, moving: true}
	return true
}

// endMove notes that the disk was restored, or waits for the next Resume.
func (a *Attacher) endMove(to Saved, waits bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if waits {
		a.suspended[to.Disk] = suspended{Saved: to}
	} else {
		delete(a.suspended, to.Disk)
	}
}

func (a *Attacher) isAttached(k Disk) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.disks[k] != nil
}

func (at *Attachment) ownerMay(k Disk) bool {
	if at.Key.ULP == "" {
		return true
	}
	u := at.owner.Declared()
	return u.MayAttach(k.Peer, k.Export)
}

// AttachService is Attach for a request that names a service, which find looks up. It fails as that does.
func (a *Attacher) AttachService(ctx context.Context, who local.Caller, req api.AttachRequest, find func(context.Context) (peer, export string, err error), emit func(api.Event)) (api.Attachment, error) {
	limit, err := api.Seconds(req.TimeoutSeconds, defaultTime, MaxTime)
	if err != nil {
		return api.Attachment{}, err
	}
	emit(api.Event{Progress: "asking the directory for " + req.Service})
	fctx, cancel := context.WithTimeout(ctx, limit)
	req.Peer, req.Export, err = find(fctx)
	cancel()
	if err != nil {
		return api.Attachment{}, err
	}
	if req.Device {
		req.Name = cmp.Or(req.Name, req.Service) // it stays when the disk moves
	}
	return a.Attach(ctx, who, req, emit)
}
