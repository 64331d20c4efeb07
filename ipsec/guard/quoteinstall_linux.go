package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/transport"
)

// coarseTypes are the kernel's own errors, which XFRM policies know by their type
// where there is no nf_tables: the selector has it in place of the source port.
func coarseTypes(a netip.Addr) (transport.Protocol, []int) {
	if a.Is6() {
		return protoICMP6, []int{1, 2, 3, 4, redirect6}
	}
	return protoICMP, []int{3, 4, 5, 11, 12}
}

func (g Spec) coarse() []*xfrmPolicy {
	var out []*xfrmPolicy
	for _, a := range g.Addresses() {
		proto, types := coarseTypes(a)
		for _, kind := range types {
			out = append(out, &xfrmPolicy{srcMask: portMask(1), XfrmPolicy: netlink.XfrmPolicy{Dir: netlink.XFRM_DIR_OUT, Proto: netlink.Proto(proto),
				Src: everything(a), Dst: hostNet(a), SrcPort: kind, Action: netlink.XFRM_POLICY_BLOCK, Priority: blockPriority}})
		}
	}
	return out
}

// quoteStep is the part of a guard that keeps ICMP from quoting the link.
func quoteStep(k *kernel, g Spec, have inventory) step {
	coarse := func(there bool, do func(*xfrmPolicy) error) error {
		var errs []error
		for _, p := range g.coarse() {
			if (have.all[keyOf(p)] != nil) == there {
				errs = append(errs, do(p))
			}
		}
		return errors.Join(errs...)
	}
	return step{
		do: func() (int, error) {
			q, err := k.quotes()
			if err == nil && !q.absent {
				missing := q.missing(g)
				if len(missing)+len(q.faults) == 0 {
					return 0, coarse(true, k.delPolicy)
				}
				if err = k.writeQuotes(missing, nil); err == nil {
					return len(missing) + len(q.faults), coarse(true, k.delPolicy)
				}
			}
			// All of it is better than none.
			return 0, errors.Join(err, coarse(false, k.addPolicy))
		},
		check: func() ([]Hole, error) {
			q, err := k.quotes()
			if err != nil {
				return nil, err
			}
			faults := q.faults
			switch {
			case q.absent:
				faults = nil
				_ = coarse(false, func(p *xfrmPolicy) error {
					faults = append(faults, fmt.Sprintf("the policy %q is missing", k.describe(p)))
					return nil
				})
			case q.there && len(q.missing(g)) > 0:
				faults = append(slices.Clone(faults), fmt.Sprintf("the sets of table %s lack %v", quotesTable, g))
			}
			if len(faults) == 0 {
				return nil, nil
			}
			return []Hole{{Spec: g, What: "ICMP may quote in clear what ESP has carried: " + strings.Join(faults, ", "),
				Fix: "restart the daemon, and find out who removed it (nft flush ruleset, systemctl reload nftables)"}}, nil
		},
	}
}

// removeQuotes takes that part of a guard away, but for ports that are of another guard as well. The
// policies that stand for it go with the last guard of the host: left are the policies that stay.
func (k *kernel) removeQuotes(g Spec, left []xfrmPolicy) error {
	q, err := k.quotes()
	if err == nil && !q.absent {
		gone := slices.DeleteFunc(g.Keys(), func(x LinkKey) bool {
			return !q.links[x] || slices.ContainsFunc(left, func(p xfrmPolicy) bool { return isBlock(&p) && guards(&p, x) })
		})
		if len(gone) > 0 {
			err = k.writeQuotes(nil, gone)
		}
	}
	errs := []error{err}
	for _, c := range g.coarse() {
		used := func(p xfrmPolicy) bool {
			return isGuard(&p) && !isCoarse(&p) && remoteOf(&p) == remoteOf(c)
		}
		there := func(p xfrmPolicy) bool { return isGuard(&p) && keyOf(&p) == keyOf(c) }
		if slices.ContainsFunc(left, there) && !slices.ContainsFunc(left, used) {
			errs = append(errs, k.delPolicy(c))
		}
	}
	return errors.Join(errs...)
}

// isCoarse distinguishes a guard's policy against ICMP from those of its port.
func isCoarse(p *xfrmPolicy) bool {
	return p.Proto == protoICMP || p.Proto == protoICMP6
}
