package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	Port     uint16             `json:"port"`           // of a block the first
	Size     uint16             `json:"size,omitempty"` // ports of a block
}

func (r guardRecord) spec() guard.Spec {
	return guard.Spec{Remote: r.Address, Protocol: r.Protocol, Port: r.Port, Size: r.Size}
}

// recordedGuards are the guards in the kernel and why some of them stay, for one goroutine
// at a time.
type recordedGuards struct {
	log    *slog.Logger
	file   string
	remove func(guard.Spec) error // takes a guard down, or says why it stays
	list   []guardRecord
	held   map[guardRecord]string // of no configured peer, and why it cannot go yet
}

func guardsFile(dir string) string { return filepath.Join(dir, "guards.json") }

// load reads what an earlier daemon has recorded. A file that cannot be read
// is said, and begun anew: doctor finds what is left over.
func (x *recordedGuards) load() {
	data, err := os.ReadFile(x.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(data, &x.list)
	}
	if err != nil {
		x.list = nil
		x.log.Warn("which guards an earlier daemon has put in place is not known; `ironwarp doctor` finds those of no peer", "file", x.file, "error", err)
	}
}

func (x *recordedGuards) save() {
	if err := wholefile.WriteJSON(x.file, x.list); err != nil {
		x.log.Warn("cannot write down which guards are in place; they are not let go after a restart if their peers are removed meanwhile", "error", err)
	}
}

// record notes the guards of peers before they are put in place.
func (x *recordedGuards) record(peers ...config.Peer) {
	n := len(x.list)
	have := map[guardRecord]bool{}
	for _, r := range x.list {
		have[r] = true
	}
	for _, c := range peers {
		for _, g := range guardsOf(c) {
			r := guardRecord{c.Name, g.Remote, g.Protocol, g.Port, g.Size}
			delete(x.held, r)
			if !have[r] {
				have[r] = true
				x.list = append(x.list, r)
			}
		}
	}
	if len(x.list) != n {
		x.save()
	}
}

// removeUnneeded takes down the guards that no configured peer has any more. One stays for
// as long as the kernel has something to send by its link.
func (x *recordedGuards) removeUnneeded(peers []*peer) {
	needed, names := map[guard.Spec]bool{}, map[string]bool{}
	for _, p := range peers {
		names[p.cfg.Name] = true
		if p.cfg.Protection == config.ProtectIPsec {
			for _, g := range guardsOf(p.cfg) {
				needed[g] = true
			}
		}
	}
	n := len(x.list)
	x.list = slices.DeleteFunc(x.list, func(r guardRecord) bool {
		if needed[r.spec()] {
			// That of a peer by another name is recorded for itself.
			return !names[r.Peer]
		}
		was, waits := x.held[r]
		if waits { // ending its sockets was tried
			if left, err := guard.LinkSockets(r.spec()); err != nil || len(left) > 0 {
				// Nobody else looks after it any more.
				if err := guard.Install(r.spec()); err != nil {
					x.log.Error("the guard of a removed peer is not complete", "peer", r.Peer, "error", err)
				}
				return false
			}
		}
		err := x.remove(r.spec())
		if err == nil {
			delete(x.held, r)
			if waits {
				x.log.Info("the guard of a removed peer could be let go at last", "peer", r.Peer, "guard", r.spec())
			}
			return true
		}
		if x.held[r] = err.Error(); err.Error() != was {
			x.log.Warn("the guard of a removed peer stays in the kernel for now; it is looked after and let go later", "peer", r.Peer, "why", err)
		}
		return false
	})
	if len(x.list) != n {
		x.save()
	}
}

// heldReasons returns why guards of a removed peer stay.
func (x *recordedGuards) heldReasons(peer string) []string {
	var all []string
	for _, r := range x.list {
		if why, ok := x.held[r]; ok && r.Peer == peer {
			all = append(all, why)
		}
	}
	return all
}

// mtuProbing is the kernel's packetization layer path MTU discovery for TCP (RFC
// 4821): 0 is off, 1 is for connections whose long segments get lost, 2 is always.
// There is no such option of a socket.
const mtuProbing = "/proc/sys/net/ipv4/tcp_mtu_probing"

// enableMTUProbing turns mtuProbing on where it is off. Within an SA a stream learns nothing of a
// path that is narrower than its ends: the routers' ICMP is about ESP, and TCP
// would send the same long segments for ever.
func (d *Daemon) enableMTUProbing() {
	b, err := os.ReadFile(mtuProbing)
	if err != nil || strings.TrimSpace(string(b)) != "0" {
		return
	}
	if err := os.WriteFile(mtuProbing, []byte("1"), 0); err != nil {
		d.log.Warn("streams over TCP will stand still on a path whose MTU is smaller than its ends' and that does not say so: sysctl net.ipv4.tcp_mtu_probing=1", "error", err)
		return
	}
	d.log.Info("TCP finds out the MTU of paths by itself from now on", "net.ipv4.tcp_mtu_probing", 1, "was", 0)
}
