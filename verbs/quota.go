package verbs

import (
	"fmt"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
)

// Limits are numbers of scarce resources (RFC 5042 section 3). 0 means the default
// in a device's Limits, and no limit of its own in a Quota.
type Limits struct {
	Streams      int64 // queue pairs
	HalfOpen     int64 // peers' connections in start-up, not yet streams
	Dials        int64 // ours
	PDs          int64
	MRs          int64 // memory regions, each with one STag
	MWs          int64 // memory windows, each with one STag
	Bytes        int64 // registered memory
	CQEntries    int64
	QueueEntries int64 // send and receive work requests
	SRQEntries   int64 // receives of shared receive queues
	IRRQEntries  int64 // inbound Reads and Atomics (RFC 5042 section 6.4.3.3)
}

// Quota is what one principal may have of the device's resources.
type Quota = Limits

type resource uint8

const (
	resStreams resource = iota
	resHalfOpen
	resDials
	resPDs
	resMRs
	resMWs
	resBytes
	resCQEntries
	resQueueEntries
	resSRQEntries
	resIRRQEntries
	resCount
)

var resourceNames = [resCount]string{"streams", "half-open streams", "streams being dialled", "protection domains", "memory regions", "memory windows", "registered bytes",
	"completion queue entries", "work queue entries", "shared receive queue entries", "inbound read queue entries"}

type amounts [resCount]int64

func (l Limits) array() amounts {
	return amounts{l.Streams, l.HalfOpen, l.Dials, l.PDs, l.MRs, l.MWs, l.Bytes, l.CQEntries, l.QueueEntries, l.SRQEntries, l.IRRQEntries}
}

func limitsFrom(a amounts) Limits {
	return Limits{Streams: a[resStreams], HalfOpen: a[resHalfOpen], Dials: a[resDials], PDs: a[resPDs], MRs: a[resMRs], MWs: a[resMWs], Bytes: a[resBytes],
		CQEntries: a[resCQEntries], QueueEntries: a[resQueueEntries], SRQEntries: a[resSRQEntries], IRRQEntries: a[resIRRQEntries]}
}

// check refuses limits below 0, and fills those that are 0 from def.
func (l Limits) check(def amounts) (amounts, error) {
	a := l.array()
	for r, n := range a {
		if n < 0 {
			return a, fmt.Errorf("the limit of %s is %d, it can't be negative", resourceNames[r], n)
		}
		if n == 0 {
			a[r] = def[r]
		}
	}
	return a, nil
}

// QuotaError means that an allocation would exceed a limit.
type QuotaError struct {
	Resource  string
	Principal string // whose limit: the device, a ULP or a peer
	Want      int64
	Used      int64
	Limit     int64
	Kept      int64 // of the limit, reserved for principals below their share
}

func (e *QuotaError) Error() string {
	s := fmt.Sprintf("verbs: %d more %s for %s: %d of %d are in use", e.Want, e.Resource, e.Principal, e.Used, e.Limit)
	if e.Kept > 0 {
		s += fmt.Sprintf(" and %d are kept for others", e.Kept)
	}
	return s + "; close what is not needed or raise the limit"
}

// account is one principal's use of each resource against its limits.
type account struct {
	name  string
	bare  string // the name without its kind
	used  amounts
	limit amounts // 0: no limit of its own
	least amounts // of a ULP: the minimum of its share, see ULP.Guarantee
	group *group  // nil: the device
	fixed bool    // of a peer: kept while it uses nothing
	over  bool    // of a ULP: closed
}

func (a *account) fits(r resource, n int64) error {
	if l := a.limit[r]; a.isOver(l, a.used[r]+n) {
		return &QuotaError{Resource: resourceNames[r], Principal: a.name, Want: n, Used: a.used[r], Limit: l}
	}
	return nil
}

// manager is the Privileged Resource Manager (RFC 5042 section 2.1): every
// allocation is charged to the device, to the ULP that makes it and, if a peer is the cause, to the
// peer.
type manager struct {
	mu     sync.Mutex // guards the fields below it
	device account
	ulps   group
	peers  group
	known  map[transport.Identity]*account
	quota  amounts // of each peer without one of its own
}

func (m *manager) init(limit, quota amounts) {
	m.device = account{name: "the device", limit: limit}
	m.known = make(map[transport.Identity]*account)
	m.quota = quota
	m.ulps = group{device: &m.device, members: make(map[*account]struct{})}
	for r := range resCount {
		m.ulps.divides[r] = r != resHalfOpen // whose ULP is not known yet
	}
	// What is not always charged to a peer can't be divided among peers.
	m.peers = group{device: &m.device, members: make(map[*account]struct{})}
	for _, r := range []resource{resStreams, resHalfOpen, resQueueEntries, resIRRQEntries} {
		m.peers.divides[r] = true
	}
	m.ulps.divide()
	m.peers.divide()
}

// charge is one use of resources, to be released as a whole.
type charge struct {
	ulp  *account           // nil: none yet
	peer transport.Identity // "": none
	n    amounts
}

// take books c, all of it or nothing.
func (m *manager) take(c *charge) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.takeLocked(c)
}

func (m *manager) takeLocked(c *charge) error {
	accounts := m.accountsLocked(c)
	if c.ulp != nil && c.ulp.over {
		m.forgetLocked(c.peer)
		return ErrClosed
	}
	for r := range resCount {
		if c.n[r] == 0 {
			continue
		}
		if err := fits(accounts, r, c.n[r]); err != nil {
			m.forgetLocked(c.peer)
			return err
		}
	}
	book(c, accounts, 1)
	return nil
}

// change books to in place of c, which becomes to; or it fails, and c stays.
func (m *manager) change(c *charge, to charge) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.accountsLocked(c)
	book(c, was, -1)
	if err := m.takeLocked(&to); err != nil {
		book(c, m.accountsLocked(c), 1)
		return err
	}
	m.forgetLocked(c.peer)
	*c = to
	return nil
}

// fits fails unless every principal may have n more. A peer within its share is not
// refused because of what its ULP has taken for other peers.
func fits(accounts [3]*account, r resource, n int64) error {
	for _, a := range accounts {
		if a == nil {
			continue
		}
		if err := a.fits(r, n); err != nil {
			return err
		}
	}
	ulp, peer := accounts[1], accounts[2]
	if peer != nil {
		if err := peer.group.fits(peer, r, n); err != nil || peer.group.entitles(peer, r, n) {
			return err
		}
	}
	if ulp != nil {
		return ulp.group.fits(ulp, r, n)
	}
	return nil
}

// give releases what take booked.
func (m *manager) give(c *charge) {
	m.mu.Lock()
	defer m.mu.Unlock()
	book(c, m.accountsLocked(c), -1)
	m.forgetLocked(c.peer)
}

// forgetLocked drops the account of a peer that uses nothing, unless its share is reserved.
func (m *manager) forgetLocked(peer transport.Identity) {
	if p := m.known[peer]; p != nil && !p.fixed && p.used == (amounts{}) {
		delete(m.known, peer)
		m.peers.leave(p)
	}
}

func (m *manager) accountsLocked(c *charge) [3]*account {
	a := [3]*account{&m.device, c.ulp, nil}
	if c.peer != "" {
		a[2] = m.peerLocked(c.peer)
	}
	return a
}

// peerLocked returns the account of a peer, a new one if it has none.
func (m *manager) peerLocked(id transport.Identity) *account {
	p := m.known[id]
	if p == nil {
		p = &account{name: "peer " + string(id), bare: string(id), limit: m.quota}
		m.known[id] = p
		m.peers.join(p)
	}
	return p
}

func book(c *charge, accounts [3]*account, sign int64) {
	for _, a := range accounts {
		if a == nil {
			continue
		}
		for r := range resCount {
			if c.n[r] == 0 {
				continue
			}
			if a.group != nil {
				a.group.unmet[r] -= a.group.lack(a, r)
			}
			a.used[r] += sign * c.n[r]
			if a.group != nil {
				a.group.unmet[r] += a.group.lack(a, r)
			}
		}
	}
}
