package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// guardRecord is a guard that this daemon has put into the kernel, where it stays
// when the daemon ends. The record tells the next one which guards to let go: of
// peers that were taken out of the configuration meanwhile, and those that had to
// stay when their peer was removed, since the kernel still had to send.
type guardRecord struct {
	Peer     string             `json:"peer"`
	Address  netip.Addr         `json:"address"`
	Protocol transport.Protocol `json:"protocol"`
	Port     uint16             `json:"port"`
}

func (r guardRecord) spec() guard.Spec {
	return guard.Spec{Remote: r.Address, Protocol: r.Protocol, Port: r.Port}
}

// recordedGuards are the guards in the kernel and why some of them stay.
// Daemon.changing guards it.
type recordedGuards struct {
	list []guardRecord
	held map[guardRecord]string // of no configured peer, and why it cannot go yet
}

func guardsFile(dir string) string { return filepath.Join(dir, "guards.json") }

// loadGuards reads what an earlier daemon has recorded. A file that cannot be read
// is said, and begun anew: doctor finds what is left over.
func (d *Daemon) loadGuards() {
	d.guards.held = map[guardRecord]string{}
	data, err := os.ReadFile(guardsFile(d.cfg.StateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(data, &d.guards.list)
	}
	if err != nil {
		d.guards.list = nil
		d.log.Warn("which guards an earlier daemon has put in place is not known; `ironwarp doctor` finds those of no peer", "file", guardsFile(d.cfg.StateDir), "error", err)
	}
}

func (d *Daemon) saveGuards() {
	data, err := json.MarshalIndent(d.guards.list, "", "  ")
	if err == nil {
		err = wholefile.Write(guardsFile(d.config().StateDir), append(data, '\n'))
	}
	if err != nil {
		d.log.Warn("cannot write down which guards are in place; they are not let go after a restart if their peers are removed meanwhile", "error", err)
	}
}

// recordGuards notes the guards of peers before they are put in place. changing
// is held.
func (d *Daemon) recordGuards(peers ...config.Peer) {
	n := len(d.guards.list)
	have := map[guardRecord]bool{}
	for _, r := range d.guards.list {
		have[r] = true
	}
	for _, c := range peers {
		for _, g := range guardsOf(c) {
			r := guardRecord{c.Name, g.Remote, g.Protocol, g.Port}
			delete(d.guards.held, r)
			if !have[r] {
				have[r] = true
				d.guards.list = append(d.guards.list, r)
			}
		}
	}
	if len(d.guards.list) != n {
		d.saveGuards()
	}
}

// letGo takes down the guards that no configured peer has any more. One stays for
// as long as the kernel has something to send by its link. changing is held.
func (d *Daemon) letGo() {
	needed, names := map[guard.Spec]bool{}, map[string]bool{}
	for _, p := range d.peerList() {
		names[p.cfg.Name] = true
		if p.cfg.Protection == config.ProtectIPsec {
			for _, g := range guardsOf(p.cfg) {
				needed[g] = true
			}
		}
	}
	n := len(d.guards.list)
	d.guards.list = slices.DeleteFunc(d.guards.list, func(r guardRecord) bool {
		if needed[r.spec()] {
			// That of a peer by another name is recorded for itself.
			return !names[r.Peer]
		}
		was, waits := d.guards.held[r]
		if waits { // ending its sockets was tried
			if left, err := guard.LinkSockets(r.spec()); err != nil || len(left) > 0 {
				// Nobody else looks after it any more.
				if err := guard.Install(r.spec()); err != nil {
					d.log.Error("the guard of a removed peer is not complete", "peer", r.Peer, "error", err)
				}
				return false
			}
		}
		err := d.opt.removeGuard(r.spec())
		if err == nil {
			delete(d.guards.held, r)
			if waits {
				d.log.Info("the guard of a removed peer could be let go at last", "peer", r.Peer, "guard", r.spec())
			}
			return true
		}
		if d.guards.held[r] = err.Error(); err.Error() != was {
			d.log.Warn("the guard of a removed peer stays in the kernel for now; it is looked after and let go later", "peer", r.Peer, "why", err)
		}
		return false
	})
	if len(d.guards.list) != n {
		d.saveGuards()
	}
}

// heldGuards tell why guards of a removed peer stay. changing is held.
func (d *Daemon) heldGuards(peer string) []string {
	var all []string
	for _, r := range d.guards.list {
		if why, ok := d.guards.held[r]; ok && r.Peer == peer {
			all = append(all, why)
		}
	}
	return all
}
