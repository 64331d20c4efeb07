package daemon

import (
	"context"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	sd "github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd about the daemon's state; without systemd it does
// nothing.
func (d *Daemon) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

// watchdog tells systemd that the daemon is alive as long as it can take its own
// lock.
func (d *Daemon) watchdog(ctx context.Context) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return
	}
	t := time.NewTicker(every / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.mu.Lock()
			alive := !d.closed
			d.mu.Unlock()
			if alive {
				d.notify(sd.SdNotifyWatchdog)
			}
		}
	}
}

// activated is the control socket that systemd passed, nil if none.
func activated() (net.Listener, error) {
	ls, err := activation.Listeners()
	for _, l := range ls {
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
			return u, nil
		}
	}
	return nil, err
}
