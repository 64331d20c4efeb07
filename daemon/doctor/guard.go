package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// Guard is what was found out about one peer's guard.
type Guard struct {
	Peer     string         `json:"peer"`
	Link     string         `json:"link"` // such as "tcp port 7471", "tcp ports 18432-18943"
	Address  netip.Addr     `json:"address"`
	Policies []guard.Policy `json:"policies"`
	Holes    []guard.Hole   `json:"holes"`
	// SelfTest is "passed", or why a clear packet to the peer was not stopped, or
	// could not be tried.
	SelfTest string `json:"self_test"`
	Passed   bool   `json:"self_test_passed"`
}

const passed = "passed"

// guards examines the kernel's guard of each peer: the policies that should be
// there, ways around them, and whether a clear packet is stopped.
func (x *examination) guards() {
	have, err := guard.List("")
	if err != nil {
		f, denied := asRoot("kernel guard", err)
		if !denied {
			f = Finding{What: "kernel guard", Level: x.levelOfMissing(x.needsIPsec()), Found: fmt.Sprintf("cannot be read: %v", err), Do: []string{"modprobe xfrm_user"}}
		}
		x.addFinding(f)
		return
	}
	known := map[netip.Addr]bool{}
	n := 0
	for _, p := range x.ipsecPeers() {
		for _, pair := range p.Pairs() {
			for _, k := range pair.AllLinks() {
				g := guard.Spec{Remote: pair.Address, Port: k.Port, Size: k.Size, Protocol: k.Protocol, DataPlane: x.plane()}
				if x.ike != nil {
					g.Tun = x.ike.Tun
				}
				for _, a := range g.Addresses() {
					known[a] = true
				}
				x.guard(p, k, g, have)
			}
		}
		n++
	}
	f := Finding{What: "kernel guard", Level: OK, Found: fmt.Sprintf("%d policies, no peer needs one", len(have))}
	if n > 0 {
		f.Found = fmt.Sprintf("%d policies for %s", len(have), count(n, "peer"))
	}
	if s, err := guard.XfrmStats(""); err == nil {
		f.Found += fmt.Sprintf("; clear packets stopped since the host was started: %d on their way in, %d on their way out",
			s["XfrmInPolBlock"]+s["XfrmInTmplMismatch"], s["XfrmOutPolBlock"])
	}
	x.addFinding(f)
	x.leftOver(have, known)
}

// guard examines one guard of a peer, which has one for each carrier and address.
func (x *examination) guard(p config.Peer, k pad.Link, g guard.Spec, have []guard.Policy) {
	f := Finding{What: "guard of " + p.Name, Level: OK, Guard: &Guard{Peer: p.Name, Link: k.String(), Address: g.Remote, SelfTest: passed, Passed: true}}
	for _, q := range have {
		if slices.Contains(g.Addresses(), q.Remote) && q.Protocol == k.Protocol && max(q.LocalPort, q.PeerPort) == g.Port && max(q.Size, 1) == max(g.Size, 1) {
			f.Guard.Policies = append(f.Guard.Policies, q)
		}
	}
	coarse := slices.ContainsFunc(have, func(q guard.Policy) bool { return q.StopsICMP() && slices.Contains(g.Addresses(), q.Remote) })
	blocks := 0
	for _, q := range f.Guard.Policies {
		if q.Action == "block" {
			blocks++
		}
	}
	f.Found = fmt.Sprintf("%d policies block the clear packets of %v with %v", blocks, k, g.Remote)
	if allows := len(f.Guard.Policies) - blocks; allows > 0 {
		f.Found += fmt.Sprintf(", %d let the clear side of ESP pass", allows)
	}
	if coarse {
		f.Found += "; all ICMP errors to it are stopped, since this kernel has no nf_tables (CONFIG_NF_TABLES_INET) to recognise those that quote the link"
	}
	holes, err := guard.Holes(g)
	if err != nil {
		holes = append(holes, guard.Hole{What: err.Error(), Fix: "sudo ironwarp doctor"})
	}
	f.Guard.Holes = holes
	for _, h := range holes {
		f.Level = Fail
		f.Found += "; " + h.What
		if !slices.Contains(f.Do, h.Fix) {
			f.Do = append(f.Do, h.Fix)
		}
	}
	switch err := guard.Probe(g); {
	case err == nil:
		f.Found += "; self-test: a clear packet is stopped, and an ICMP message that quotes one"
	case errors.Is(err, guard.ErrLeaks):
		f.Level = Fail
		f.Guard.SelfTest, f.Guard.Passed = err.Error(), false
		f.Found += "; " + err.Error()
		if len(f.Do) == 0 {
			f.Do = []string{"systemctl restart ironwarp"}
		}
	default:
		f.Guard.SelfTest, f.Guard.Passed = err.Error(), false
		f.Found += "; " + err.Error()
		if f.Level == OK {
			f.Level = Warn
			f.Do = []string{fmt.Sprintf("See to a route to %v.", g.Remote)}
		}
	}
	x.addFinding(f)
}

// leftOver finds policies of hosts that are not configured as peers.
func (x *examination) leftOver(have []guard.Policy, known map[netip.Addr]bool) {
	if x.cfg == nil {
		return
	}
	var lost []netip.Addr
	var texts, held []string
	for _, p := range have {
		if !known[p.Remote] {
			texts = append(texts, p.String())
			held = append(held, holders(p)...)
			if !slices.Contains(lost, p.Remote) {
				lost = append(lost, p.Remote)
			}
		}
	}
	if len(lost) == 0 {
		return
	}
	f := Finding{
		What: "left over guard", Level: Warn, Found: "policies of hosts that are no configured peers block their clear traffic: " + strings.Join(texts, "; "),
		Do: []string{"ip xfrm policy", fmt.Sprintf("Add the peer and remove it again, which takes them down: %v.", lost)},
	}
	if len(held) > 0 {
		slices.Sort(held)
		f.Found += "; the kernel still has to send by these links: " + strings.Join(slices.Compact(held), "; ")
		f.Do = []string{"Wait: the daemon lets them go when the kernel has nothing of them left."}
	}
	x.addFinding(f)
}

// holders are the kernel's sockets that keep a guard in place which nobody needs.
func holders(p guard.Policy) (all []string) {
	if p.StopsICMP() {
		return nil
	}
	sockets, err := guard.LinkSockets(guard.Spec{Remote: p.Remote, Protocol: p.Protocol, Port: max(p.LocalPort, p.PeerPort), Size: p.Size})
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range sockets {
		all = append(all, s.String())
	}
	return all
}
