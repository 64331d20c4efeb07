package rtrs

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Policy chooses among the paths that can take an I/O.
type Policy uint32

// The policies.
const (
	MinInFlight Policy = iota // the path with the fewest requests that were not answered
	RoundRobin                // one after the other
	MinLatency                // the path by which requests have taken the least time of late
	Preferred                 // the first of Client.Paths that is up; the others stand by
)

var policies = [...]string{"min-inflight", "round-robin", "min-latency", "preferred"}

func (p Policy) String() string { return policies[p] }

// MarshalText implements encoding.TextMarshaler.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Policies are the names of all policies, that of the default first.
func Policies() []string { return slices.Clone(policies[:]) }

// ParsePolicy returns the policy of a name. It fails for names that are none.
func ParsePolicy(name string) (Policy, error) {
	for i, n := range policies {
		if n == name {
			return Policy(i), nil
		}
	}
	return 0, fmt.Errorf("rtrs: policy %q: min-inflight, round-robin, min-latency and preferred are possible", name)
}

// Arrange puts the paths in the order of their names, which the policy Preferred goes by. What
// is not named comes last.
func (cl *Client) Arrange(names []string) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	place := func(t *Path) int {
		if i := slices.Index(names, t.cfg.Name); i >= 0 {
			return i
		}
		return len(names)
	}
	slices.SortStableFunc(cl.paths, func(a, b *Path) int { return cmp.Compare(place(a), place(b)) })
	cl.rankLocked()
}

// rankLocked numbers the paths for the policy.
//
// unlocked: Connect calls it before anybody else has the client.
func (cl *Client) rankLocked() {
	for i, t := range cl.paths {
		t.rank.Store(int32(i))
	}
}

// SetPolicy changes the policy from the next I/O on.
func (cl *Client) SetPolicy(p Policy) { cl.policy.Store(uint32(p)) }

// Policy returns the policy.
func (cl *Client) Policy() Policy { return Policy(cl.policy.Load()) }

// choosePath chooses a path for p's request, nil if none can take it: that whose memory has its
// data already, unless its security association is away, or as the policy has it.
func (cl *Client) choosePath(p *Permit) *clientPath {
	up := *cl.up.Load()
	if len(up) == 1 {
		if t := up[0]; !t.path.chunks[p.id].busy.Load() {
			return t
		}
		return nil
	}
	if p.at != nil {
		for _, t := range up {
			if t.path == p.at && !t.avoided.Load() && !t.path.chunks[p.id].busy.Load() {
				return t
			}
		}
	}
	policy := Policy(cl.policy.Load())
	var best *clientPath
	var least int64
	first := 0
	if policy == RoundRobin && len(up) > 0 {
		first = int(cl.turn.Add(1) % uint32(len(up)))
	}
	for i := range up {
		t := up[(first+i)%len(up)]
		if t.path.chunks[p.id].busy.Load() {
			continue
		}
		var cost int64
		switch policy {
		case MinInFlight:
			cost = int64(t.path.users.Load())
		case RoundRobin:
			cost = int64(i)
		case MinLatency:
			// What is in flight already takes its time as well.
			cost = t.path.latency.Load() * int64(t.path.users.Load())
		case Preferred:
			cost = int64(t.path.rank.Load())
		}
		if t.avoided.Load() {
			cost += avoidedCost
		}
		if best == nil || cost < least {
			best, least = t, cost
		}
	}
	return best
}

// avoidedCost is more than any other cost.
const avoidedCost = int64(time.Hour) * MaxQueueDepth
