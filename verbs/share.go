package verbs

// group is the principals of one kind, ULPs or peers, among whom the device is
// divided fairly: a part of each resource (guaranteedPart) is divided evenly among
// the members and one newcomer, and what a member does not use of its share is
// reserved for it. The rest goes to whoever asks first. So a member within its share is
// never refused because another has asked for too much.
//
// A ULP may have a larger share than an even one, if there is room for that when it
// asks.
//
// Shares shrink when members join. Nothing is taken from those that then have more;
// what they release is reserved for the others.
type group struct {
	device  *account
	divides [resCount]bool // resources of which every use is charged to a member
	members map[*account]struct{}
	share   amounts // of each member
	unmet   amounts // what members and one newcomer lack to their shares
}

func (g *group) join(a *account) {
	a.group = g
	g.members[a] = struct{}{}
	g.divide()
}

func (g *group) leave(a *account) {
	delete(g.members, a)
	g.divide()
}

// divide recomputes the shares.
func (g *group) divide() {
	for r := range resCount {
		if !g.divides[r] {
			continue
		}
		g.share[r] = g.device.limit[r] / LimitFor(1, len(g.members))
		g.unmet[r] = g.share[r] // the newcomer's
		for a := range g.members {
			g.unmet[r] += g.lack(a, r)
		}
	}
}

// lack is the part of its share that a member does not use.
func (g *group) lack(a *account, r resource) int64 {
	return max(0, g.shareOf(a, r)-a.used[r])
}

// shareOf is a member's share: an even one, or what it is guaranteed, and no more than
// its own limit.
func (g *group) shareOf(a *account, r resource) int64 {
	share := max(g.share[r], a.least[r])
	if l := a.limit[r]; l > 0 {
		return min(l, share)
	}
	return share
}

// guarantee changes the minimum of a member's share of r, unless others have, or are
// guaranteed, too much of the device for that.
func (g *group) guarantee(a *account, r resource, least int64) error {
	had, lacked := a.least[r], g.lack(a, r)
	a.least[r] = least
	more := g.lack(a, r) - lacked
	d := g.device
	if l := a.limit[r]; least > had && l > 0 && least > l {
		a.least[r] = had
		return &QuotaError{Resource: resourceNames[r], Principal: a.name, Want: least - had, Used: had, Limit: l}
	}
	if more > 0 && d.used[r]+g.unmet[r]+more > d.limit[r] {
		a.least[r] = had
		return &QuotaError{Resource: resourceNames[r], Principal: a.name, Want: more, Used: d.used[r], Limit: d.limit[r], Kept: g.unmet[r]}
	}
	g.unmet[r] += more
	return nil
}

// entitles reports whether n more are within the member's share.
func (g *group) entitles(a *account, r resource, n int64) bool {
	return g.divides[r] && a.used[r]+n <= g.shareOf(a, r)
}

// fits refuses n more to a member beyond its share if that would cut into others' shares.
func (g *group) fits(a *account, r resource, n int64) error {
	if g.isFree(r) || g.entitles(a, r, n) {
		return nil
	}
	kept := g.unmet[r] - g.lack(a, r)
	if d := g.device; d.used[r]+kept+n > d.limit[r] {
		return &QuotaError{Resource: resourceNames[r], Principal: a.name, Want: n, Used: d.used[r], Limit: d.limit[r], Kept: kept}
	}
	return nil
}
