package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
)

// deviceName is the name of the block device that a request asks for, "" if it asks for
// none. It fails with an *api.Error.
func deviceName(k Disk, req api.AttachRequest) (string, error) {
	switch {
	case !req.Device && req.Name != "":
		return "", &api.Error{Code: api.CodeInvalid, Message: "a name is that of a device", Fix: "add --device"}
	case !req.Device:
		return "", nil
	case k.ULP != "":
		return "", &api.Error{Code: api.CodeForbidden, Message: "block devices are the host's: only root attaches a disk as one", Fix: "attach it without --device and use the NBD socket"}
	}
	name := cmp.Or(req.Name, linkName(k))
	if err := config.CheckExportName(name); req.Name != "" && err != nil {
		return "", &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("device name %q %s", name, err)}
	}
	if partition.MatchString(name) {
		return "", &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("device name %q ends like that of a partition of another disk", name), Fix: "choose another with --name"}
	}
	return name, nil
}

// partition is how the links of partitions end that udev makes.
var partition = regexp.MustCompile(`-part[0-9]+$`)

// linkName is PEER-EXPORT, with the dashes of PEER doubled as for sockets.
func linkName(k Disk) string { return strings.ReplaceAll(k.Peer, "-", "--") + "-" + k.Export }

// isFreeLocked fails with an *api.Error if another disk has the name of a device, or a socket,
// whether it is there now or not: what waits for that disk would reach this one. Disks that
// come back do not mind those that wait for their turn.
func (a *Attacher) isFreeLocked(k Disk, device, socket string, remembered bool) error {
	has := func(other Disk, w frontEnd) error {
		switch {
		case other == k:
		case device != "" && w.device == device:
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("the name %s is that of the device of %s", device, other), Fix: "choose another with --name"}
		case cmp.Or(w.vhost, a.socketOf(other)) == socket:
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is the socket of %s", socket, other), Fix: "choose another with --vhost-socket"}
		}
		return nil
	}
	for key, other := range a.disks {
		if err := has(key, other.frontEnd); err != nil {
			return err
		}
	}
	for key, w := range a.suspended {
		if err := has(key, frontEnd{w.Device, w.VhostUser}); err != nil && !remembered {
			return err
		}
	}
	return nil
}

// serveDevice offers an open disk as the attachment's block device.
func (a *Attacher) serveDevice(at *Attachment, s *session, dk *rnbd.Disk, srv *nbd.Server) error {
	info, err := srv.Info(at.Key.Export)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	at.releaseDevice()
	block, err := a.cfg.Devices.Open(ctx, device.Config{
		Name: at.device, Size: info.Size, BlockSize: info.BlockSize, Flags: info.Flags, MultiConn: dk.Geometry().MultiConn, Log: at.log,
		Serve: func(ctx context.Context, nc net.Conn) error { return srv.Transmit(ctx, nc, at.Key.Export) },
		Lost:  func(why *api.Error) { at.noteProblem(why, false) },
	})
	if err != nil {
		stop()
		return err
	}
	grown, served := make(chan struct{}, 1), make(chan struct{})
	note := func(uint64) {
		select {
		case grown <- struct{}{}:
		default: // it is noted
		}
	}
	cancel := dk.OnResize(note)
	note(0) // it may have grown before
	go func() {
		defer close(served)
		at.followSize(ctx, block, dk, info.Size, grown)
		cancel()
		block.Wait()
	}()
	at.mu.Lock()
	at.block = block
	at.mu.Unlock()
	if !at.noteUp(s, dk, srv, stop, served) {
		if at.isDetached.Load() {
			a.removeDevice(at)
		}
		stop()
		<-served
		return errDetached(at.Key)
	}
	close(at.ready)
	at.log.Info("disk is attached", "device", block.Path(), "link", block.Link(), "bytes", info.Size)
	return nil
}

// removeStale makes sure that no I/O that a kernel or a guest requested of another disk reaches the disk
// of a new attachment. If that replaces an orphan, it is the same disk, as the orphan's claim says. A
// device of its name without an orphan belongs to nobody, and is removed, unless it is in use. It fails
// with an *api.Error.
func (a *Attacher) removeStale(at *Attachment) error {
	switch {
	case at.frontEnd == frontEnd{}: // clients of an NBD socket were disconnected
		return nil
	case at.replaces != nil:
		at.continueFrom(at.replaces.currentClaim(), nil)
		return nil
	case at.device == "":
		return nil
	}
	use, err := a.cfg.Devices.Claim(a.cfg.Context, at.device)
	if e := (*api.Error)(nil); errors.As(err, &e) {
		e.Fix = "an earlier daemon has left it: unmount it and end what uses it, then attach again"
	}
	if err != nil {
		return err
	}
	defer use.Close()
	return a.cfg.Devices.Remove(at.device)
}

// holdDevice keeps the I/O of a device that an earlier daemon has left waiting until releaseDevice.
func (a *Attacher) holdDevice(at *Attachment) {
	at.mu.Lock()
	held := at.release != nil
	at.mu.Unlock()
	if at.device == "" || held {
		return
	}
	release := a.cfg.Devices.HoldIO(context.Background(), at.device, at.log)
	at.mu.Lock()
	defer at.mu.Unlock()
	at.release = release
}

func (at *Attachment) releaseDevice() {
	at.mu.Lock()
	release := at.release
	at.release = nil
	at.mu.Unlock()
	if release != nil {
		release()
	}
}

// followSize has the kernel see a disk that grows, until ctx ends.
func (at *Attachment) followSize(ctx context.Context, block *device.Device, dk *rnbd.Disk, size uint64, grown <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-grown:
		}
		now := dk.Geometry().Size
		if now == size {
			continue
		}
		if err := block.Resize(now); err != nil {
			at.log.Error("the kernel does not take a disk's new size", "device", block.Path(), "bytes", now, "error", err)
			continue
		}
		at.log.Info("a block device has grown", "device", block.Path(), "bytes", now)
		size = now
	}
}

// removeDevice ends the block device of a disk that is detached, whether this daemon serves it or an
// earlier one has left it.
func (a *Attacher) removeDevice(at *Attachment) {
	at.mu.Lock()
	block := at.block
	at.mu.Unlock()
	if block != nil {
		block.End()
	}
	if err := a.cfg.Devices.Remove(at.device); err != nil {
		at.log.Error("a block device stays, and its I/O fails when it has waited long enough", "error", err)
	}
}
