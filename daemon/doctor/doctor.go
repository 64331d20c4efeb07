// Package doctor finds out which of the things that an IronWarp link needs a host has
// and which are missing, what works instead, and what to do.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/ike"
)

// Levels of a Finding.
const (
	OK   = "ok"   // it is there
	Note = "note" // it is not there, and nothing that is configured needs it
	Warn = "warn" // it works, but not as it should
	Fail = "fail" // something that is configured cannot work
)

// Finding is the result of one examination.
type Finding struct {
	What    string   `json:"what"`
	Level   string   `json:"level"`
	Found   string   `json:"found"`
	Instead string   `json:"instead,omitempty"` // what works without it
	Do      []string `json:"do,omitempty"`      // commands to paste, or sentences, in order
	Guard   *Guard   `json:"guard,omitempty"`   // of a peer, in a finding about it
}

// Options are where to look. The zero value is the host itself.
type Options struct {
	Config  string // main configuration file
	Named   bool   // it was named explicitly
	Socket  string // control socket; empty: what the configuration says, or the default
	Version string
}

// examination is one run.
type examination struct {
	opt Options
	cfg *config.Config // nil if it has faults
	ike *ike.Status    // nil if strongSwan does not answer
	run *api.Status    // nil if no daemon answers
	out []Finding
}

func (x *examination) addFinding(f Finding) {
	for i, d := range f.Do {
		f.Do[i] = step(d)
	}
	f.Found = api.Plain(f.Found)
	x.out = append(x.out, f)
}

// commands begin the lines that are to be pasted into a shell.
var commands = []string{"apt-get", "chmod", "ip", "ironwarp", "modprobe", "nft", "sudo", "systemctl", "timedatectl", "tune2fs"}

// step formats a line of advice, which is a command or a sentence.
func step(line string) string {
	first, _, _ := strings.Cut(line, " ")
	if line == "" || slices.Contains(commands, first) {
		return line
	}
	line = strings.ToUpper(line[:1]) + line[1:]
	if !strings.ContainsAny(line[len(line)-1:], ".?!:") {
		line += "."
	}
	return line
}

// needsIPsec reports whether a configured peer uses ESP.
func (x *examination) needsIPsec() bool {
	return len(x.ipsecPeers()) > 0
}

// asRoot is the finding about something that only root can examine. denied is false if
// this is root, who has failed for another reason.
func asRoot(what string, err error) (f Finding, denied bool) {
	if os.Geteuid() == 0 {
		return f, false
	}
	return Finding{What: what, Level: Note, Found: fmt.Sprintf("only root can look: %v", err)}, true
}

// levelOfMissing is Fail for what a configured peer needs, else Note.
func (x *examination) levelOfMissing(needed bool) string {
	if needed {
		return Fail
	}
	return Note
}

// Run examines everything. It changes nothing on the host. For each guarded peer it
// tries whether a clear packet is stopped.
func Run(ctx context.Context, opt Options) []Finding {
	x := &examination{opt: opt}
	asked := x.askDaemon(ctx, cmp.Or(opt.Socket, config.DefaultSocket))
	if x.run != nil && x.run.Info.Config != "" && !opt.Named {
		x.opt.Config = x.run.Info.Config
	}
	cfg, err := config.Load(x.opt.Config, opt.Named)
	x.cfg = cfg
	if x.run == nil && opt.Socket == "" && cfg != nil && cfg.ControlSocket != config.DefaultSocket {
		asked = x.askDaemon(ctx, cfg.ControlSocket)
	}
	x.privileges()
	x.configuration(err)
	x.secrets()
	x.daemon(asked)
	x.fabric()
	x.strongSwan(ctx)
	x.esp()
	x.tun()
	x.revocation()
	x.clock(time.Now())
	x.guards()
	x.blocks()
	x.descriptors()
	x.pools()
	x.nbdClients()
	x.blockDevices()
	x.sctp()
	return x.out
}

// Worst is the worst level of all findings.
func Worst(fs []Finding) string {
	worst := OK
	for _, f := range fs {
		worst = worse(worst, f.Level)
	}
	return worst
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func worse(a, b string) string {
	rank := map[string]int{OK: 0, Note: 1, Warn: 2, Fail: 3}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// StrongSwanConf is a file for /etc/strongswan.d that makes strongSwan do ESP in
// user space (plugin kernel-libipsec), for kernels without ESP. Without
// allow_peer_ts the plugin refuses SAs between two hosts; the mark keeps IKE's
// own packets out of the tun device. IKE shares its UDP socket with ESP, which
// fills it under load: a packet that is lost then would be repeated after four
// seconds, in which streams stall.
const StrongSwanConf = `# Userland ESP for IronWarp: for kernels that have no ESP of their own.
# Put this into /etc/strongswan.d/ironwarp.conf and restart strongSwan.
charon {
  retransmit_timeout = 0.25
  retransmit_tries = 5
  plugins {
    kernel-libipsec {
      load = yes
      allow_peer_ts = yes
    }
    socket-default {
      fwmark = 0x42
    }
    kernel-netlink {
      fwmark = !0x42
    }
  }
}
`
