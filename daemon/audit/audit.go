// Package audit reports how a daemon, as it is configured and running, meets the security
// requirements of RFC 5042, R1 to R34 of docs/security.md: which settings weaken them, and
// what to do. It looks at nothing but the Snapshot that it is given.
package audit

import (
	"io/fs"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// Snapshot is everything that matters of a running daemon.
type Snapshot struct {
	Config    *config.Config
	Peers     []api.Peer
	Resources api.Resources
	// Fabric is this host's part in a fabric, nil: it has none.
	Fabric *api.FabricStatus
	// Holes are the ways around the kernel's guards that were found, by peer.
	Holes map[string][]guard.Hole
	// Block is why the kernel can't block a peer, nil: it can.
	Block error
	// Files are those by which the daemon is configured and controlled.
	Files []File
	// Captures are those that run.
	Captures []api.Capture
	// Permissive is the policy of partitions if it lets pass what it denies, "" if it does not.
	Permissive string
	// Weakened reports whether checks can be switched off in this program, which is one for
	// tests.
	Weakened bool
}

// File is who may write to a file or a socket.
type File struct {
	Path   string
	Mode   fs.FileMode // with its type
	Owner  uint32      // user id
	Socket bool        // the control socket
	// Foreign reports whether its owner is neither root nor the daemon's user.
	Foreign bool
}

// Run examines s.
func Run(s *Snapshot) api.Audit {
	v := newView(s)
	out := api.Audit{State: api.AuditMet}
	for i := range requirements {
		r := &requirements[i]
		q := api.Requirement{ID: r.id, Section: r.section, Text: r.text, State: api.AuditMet, How: r.how}
		if r.here != nil {
			q.How += r.here(v)
		}
		if r.weak != nil {
			q.Weak = r.weak(v)
		}
		q.Weak = append(q.Weak, v.waivers(r.id)...)
		if s.Weakened {
			q.Weak = append(q.Weak, weakenedBuild)
		}
		q.State = stateOf(q.Weak)
		out.Requirements = append(out.Requirements, q)
		out.State = worse(out.State, q.State)
	}
	return out
}

var weakenedBuild = api.Weakness{Setting: "this program", Unmet: true,
	Effect: "it was built with the tag weakened, for tests: its checks can be switched off",
	Fix:    "install a program that was built without that tag"}

func stateOf(weak []api.Weakness) string {
	state := api.AuditMet
	for _, w := range weak {
		if w.Unmet {
			return api.AuditNotMet
		}
		state = api.AuditWeakened
	}
	return state
}

func worse(a, b string) string {
	for _, s := range []string{api.AuditNotMet, api.AuditWeakened} {
		if a == s || b == s {
			return s
		}
	}
	return api.AuditMet
}
