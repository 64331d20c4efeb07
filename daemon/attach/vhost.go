package attach

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/vhost"
)

// frontEnd is how a disk is attached: on an NBD socket if both are "".
type frontEnd struct {
	device string // the name of its block device
	vhost  string // its vhost-user socket
}

// frontEndOf is how a request wants its disk. It fails with an *api.Error.
func (a *Attacher) frontEndOf(k Disk, req api.AttachRequest) (w frontEnd, err error) {
	if w.device, err = deviceName(k, req); err != nil {
		return w, err
	}
	switch path := req.VhostSocket; {
	case !req.VhostUser && path != "":
		return w, &api.Error{Code: api.CodeInvalid, Message: "a path is that of a vhost-user socket", Fix: "add --vhost-user"}
	case !req.VhostUser:
		return w, nil
	case req.Device:
		return w, &api.Error{Code: api.CodeInvalid, Message: "a disk is a block device or on a vhost-user socket, not both", Fix: "leave one of --device and --vhost-user out"}
	case path == "":
		w.vhost = a.defaultVhost(k)
		return w, nil
	case k.ULP != "":
		return w, &api.Error{Code: api.CodeForbidden, Message: "only root chooses where a socket is", Fix: "leave --vhost-socket out"}
	case !filepath.IsAbs(path):
		return w, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the socket's path %q does not begin with /", path), Fix: "give an absolute path"}
	}
	w.vhost = filepath.Clean(req.VhostSocket)
	return w, nil
}

// defaultVhost is the vhost-user socket of a disk unless a request names another.
func (a *Attacher) defaultVhost(k Disk) string {
	return strings.TrimSuffix(a.socketOf(k), ".sock") + ".vblk" // as long
}

func (w frontEnd) String() string {
	switch {
	case w.device != "":
		return "as the device " + w.device
	case w.vhost != "":
		return "on the vhost-user socket " + w.vhost
	}
	return "on an NBD socket"
}

// checkFrontEnd fails with an *api.Error if a disk is attached in another way.
func (at *Attachment) checkFrontEnd(w frontEnd) error {
	if at.frontEnd == w {
		return nil
	}
	return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is attached already, %s", at.Key, at.frontEnd), Fix: fmt.Sprintf("ironwarp detach %s, then attach it again", at.Key)}
}

// serveVhost offers an open disk on the attachment's vhost-user socket.
func (a *Attacher) serveVhost(ctx context.Context, at *Attachment, s *session, dk *rnbd.Disk) error {
	ln, err := a.listen(ctx, at)
	if err != nil {
		return err
	}
	if c, ok := ln.(syscall.Conn); ok {
		sockio.PassRights(c, true)
	}
	srv := vhost.NewServer(vhost.Config{Device: dk, Serial: at.Key.Export, Attachment: dk.Claim().Attachment, Logger: at.log})
	at.mu.Lock()
	at.vhostServer = srv
	at.mu.Unlock()
	return a.serveSocket(at, s, dk, nil, ln, srv.Serve, "vhost-user", "vhost_user_socket")
}

// vhostStats are a vhost-user server's figures as an NBD server has them.
func vhostStats(g vhost.Stats) (st nbd.Stats) {
	if g.Connected {
		st.Clients = 1
	}
	st.Reads, st.Writes, st.ReadBytes, st.WrittenBytes, st.Errors = g.Reads, g.Writes, g.ReadBytes, g.WriteBytes, g.Errors
	return st
}
