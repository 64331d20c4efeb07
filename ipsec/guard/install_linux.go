package guard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// Install puts the guard in place, before the first packet. It may be called again:
// what is there already stays as it is, what is missing is added. It fails with the
// kernel's error, and where g is impossible.
func Install(g Spec) error {
	results, err := Reconcile(g.NetNS, []Spec{g})
	if err != nil {
		return err
	}
	return results[0].Err
}

// Remove takes a guard down. From then on the port's traffic may flow in
// clear, so all that the kernel has of the link is ended before; if that takes
// longer the guard stays, and the error is a *HeldError. A guard that is not there
// is no error. What a charon that was killed has left of the peer's SAs goes as
// well: its policies would go on demanding ESP.
func Remove(g Spec) error { return removeBy(g, LinkSocket.end) }

func removeBy(g Spec, end func(LinkSocket) error) error {
	if err := endSocketsBy(g, endWait, end); err != nil {
		return err
	}
	return errors.Join(TakeDown(g), RemoveChildren(g))
}

// TakeDown removes a guard itself. It fails as Install does.
func TakeDown(g Spec) error {
	if err := g.validate(); err != nil {
		return err
	}
	return inNS(g.NetNS, func(k *kernel) error {
		policies, err := k.policies()
		if err != nil {
			return err
		}
		var errs []error
		left := slices.DeleteFunc(policies, func(p xfrmPolicy) bool {
			own := isGuard(&p) && concerns(&p, g)
			if own {
				errs = append(errs, k.delPolicy(&p))
			}
			return own
		})
		errs = append(errs, k.removeRules(g), k.removeQuotes(g, left))
		return errors.Join(errs...)
	})
}

// List returns the guard policies of a network namespace ("": our own), and the routing
// rules that stand for some of them, whoever installed them. It fails with the kernel's
// error.
func List(netns string) ([]Policy, error) {
	var out []Policy
	err := inNS(netns, func(k *kernel) error {
		policies, err := k.policies()
		if err != nil {
			return err
		}
		for i := range policies {
			if p := &policies[i]; isGuard(p) {
				out = append(out, k.describe(p))
			}
		}
		rules, err := k.shutRules()
		out = append(out, rules...)
		return err
	})
	slices.SortFunc(out, func(a, b Policy) int {
		return cmp.Or(a.Remote.Compare(b.Remote), cmp.Compare(a.PeerPort+a.LocalPort, b.PeerPort+b.LocalPort),
			cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.LocalPort, b.LocalPort))
	})
	return out, err
}

// XfrmStats reads the kernel's counters of packets dropped for IPsec's sake
// (/proc/net/xfrm_stat). XfrmOutPolBlock and XfrmInPolBlock count what the guard has
// stopped. It fails with the kernel's error, for example where it keeps none.
func XfrmStats(netns string) (map[string]uint64, error) {
	stats := map[string]uint64{}
	err := nsdo.Do(netns, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/xfrm_stat")
		if err != nil {
			return fmt.Errorf("read the kernel's IPsec counters: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 {
				stats[f[0]], _ = strconv.ParseUint(f[1], 10, 64)
			}
		}
		return nil
	})
	return stats, err
}

// Result is what became of one guard.
type Result struct {
	Blocks int // block policies that were missing
	Others int // parts of other kinds that were
	Err    error
}

// Reconcile makes the kernel hold every policy and rule that the guards need. Allow
// policies that no longer name the tun are removed. It fails with the kernel's error;
// what is wrong with one guard is in its Result.
func Reconcile(netns string, specs []Spec) ([]Result, error) {
	results := make([]Result, len(specs))
	err := inNS(netns, func(k *kernel) error {
		have, err := k.inventory()
		if err != nil {
			return err
		}
		lacked := k.fillQuotes(specs)
		for i, g := range specs {
			r := &results[i]
			if r.Err = g.validate(); r.Err == nil {
				*r = k.reconcile(g, have)
				r.Others += lacked[i]
			}
			if r.Err != nil {
				r.Err = fmt.Errorf("guard of %v: %w", g, explain(r.Err))
			}
		}
		return nil
	})
	return results, err
}
