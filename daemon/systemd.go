package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/handover"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// notify tells systemd about the daemon's state; without systemd it does
// nothing.
func (d *Daemon) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

// splitPassed tells descriptors that the daemon before this one has kept from others that systemd has passed.
func splitPassed(all []*os.File) (kept, others []*os.File) {
	for _, f := range all {
		if strings.HasPrefix(f.Name(), handover.Prefix) {
			kept = append(kept, f)
		} else {
			others = append(others, f)
		}
	}
	return kept, others
}

// controlSocket is the control socket among the descriptors that systemd has passed, nil if there is none. Any other is
// refused: whoever reaches it from the network could manage this host.
func controlSocket(passed []*os.File) (net.Listener, error) {
	ls := make([]net.Listener, len(passed))
	for i, f := range passed {
		ls[i], _ = net.FileListener(f) // nil: it is none
		f.Close()
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
			sockio.PassRights(u, false)
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

// stuckTime is how long a change of the configuration may take before the daemon
// counts as one that cannot act. strongSwan's answers are waited for in it.
const stuckTime = time.Minute

// changeLock is held while the configuration changes, and knows for how long.
type changeLock struct {
	lock  sync.Mutex   // held while the configuration changes; outermost
	since atomic.Int64 // 0: it is free
}

func (l *changeLock) Lock() {
	l.lock.Lock()
	l.since.Store(time.Now().UnixNano())
}

func (l *changeLock) TryLock() bool {
	ok := l.lock.TryLock()
	if ok {
		l.since.Store(time.Now().UnixNano())
	}
	return ok
}

func (l *changeLock) Unlock() {
	l.since.Store(0)
	l.lock.Unlock()
}

// held is how long the lock has been held, 0 if it is free.
func (l *changeLock) held() time.Duration {
	since := l.since.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// watchdog tells systemd that the daemon is alive as long as it can act: as it can
// take its own lock, and no change of the configuration is stuck.
func (d *Daemon) watchdog(ctx context.Context) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return
	}
	stuck := false
	for range rate.Ticks(ctx, every/3) {
		d.mu.Lock()
		closed := d.closed
		d.mu.Unlock()
		was := stuck
		held := d.changing.held()
		stuck = held >= d.opt.stuck
		switch {
		case closed:
		case stuck:
			if !was {
				d.log.Error("a change of the configuration does not end; systemd's watchdog is told nothing until it does", "for", held.Round(time.Second))
			}
			d.notify("STATUS=a change of the configuration has not ended for " + held.Round(time.Second).String())
		default:
			if was {
				d.notify("STATUS=")
			}
			d.notify(sd.SdNotifyWatchdog)
		}
	}
}
