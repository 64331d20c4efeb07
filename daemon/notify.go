package daemon

import (
	"errors"
	"fmt"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// notify tells systemd about the daemon's state; without systemd it does
// nothing.
func (d *Daemon) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

// activated is the control socket that systemd passed, nil if none. Any other is
// refused: whoever reaches it from the network could manage this host.
func activated() (net.Listener, error) {
	ls, err := activation.Listeners()
	if err != nil {
		return nil, err
	}
	var control net.Listener
	var wrong error
	for _, l := range ls {
		u, local := l.(*net.UnixListener)
		switch {
		case l == nil:
			wrong = errors.New("one of them listens for no connections")
		case !mayManage(local):
			wrong = fmt.Errorf("the one at %s is no Unix socket, so that others could manage this host by it", l.Addr())
		case control != nil:
			wrong = fmt.Errorf("there are several, at %s and %s", control.Addr(), l.Addr())
		default:
			control = l
		}
		if local {
			u.SetUnlinkOnClose(false)
		}
	}
	if wrong == nil {
		return control, nil
	}
	for _, l := range ls {
		if l != nil {
			l.Close()
		}
	}
	return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("systemd passes sockets that cannot be the control socket: %v", wrong),
		Fix: "say ListenStream=" + config.DefaultSocket + " and nothing else in ironwarp.socket"}
}
