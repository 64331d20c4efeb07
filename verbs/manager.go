package verbs

import (
	"fmt"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
)

// Limits are counts of what is scarce (RFC 5042 section 3). 0 means the default
// in a device's Limits, and no limit of its own in a Quota.
type Limits struct {
	Streams      int64 // queue pairs
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

var resourceNames = [resCount]string{"streams", "protection domains", "memory regions", "memory windows", "registered bytes",
	"completion queue entries", "work queue entries", "shared receive queue entries", "inbound read queue entries"}

func (l Limits) array() [resCount]int64 {
	return [resCount]int64{l.Streams, l.PDs, l.MRs, l.MWs, l.Bytes, l.CQEntries, l.QueueEntries, l.SRQEntries, l.IRRQEntries}
}

func limitsFrom(a [resCount]int64) Limits {
	return Limits{Streams: a[resStreams], PDs: a[resPDs], MRs: a[resMRs], MWs: a[resMWs], Bytes: a[resBytes],
		CQEntries: a[resCQEntries], QueueEntries: a[resQueueEntries], SRQEntries: a[resSRQEntries], IRRQEntries: a[resIRRQEntries]}
}

// QuotaError says that an allocation would exceed a limit.
type QuotaError struct {
	Resource  string
	Principal string // whose limit: the device, a ULP or a peer
	Want      int64
	Used      int64
	Limit     int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("verbs: %d more %s for %s: %d of %d are in use; close what is not needed or raise the limit",
		e.Want, e.Resource, e.Principal, e.Used, e.Limit)
}

// account is one principal's use of each resource against its limits.
type account struct {
	name  string
	used  [resCount]int64
	limit [resCount]int64 // 0: no limit of its own
}

func (a *account) fits(r resource, n int64) error {
	if l := a.limit[r]; l > 0 && a.used[r]+n > l {
		return &QuotaError{Resource: resourceNames[r], Principal: a.name, Want: n, Used: a.used[r], Limit: l}
	}
	return nil
}

// manager is the Privileged Resource Manager (RFC 5042 section 2.1): every
// allocation is charged to the device, to the ULP that makes it and, where a
// peer is the cause, to the peer.
type manager struct {
	mu     sync.Mutex
	device account
	peers  map[transport.Identity]*account
	quota  [resCount]int64 // of each peer
}

// charge is one use of resources, to be released as a whole.
type charge struct {
	ulp  *account
	peer transport.Identity // "": none
	n    [resCount]int64
}

// take books c, all of it or nothing.
func (m *manager) take(c *charge) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	accounts := m.accounts(c)
	for r := range resCount {
		if c.n[r] == 0 {
			continue
		}
		for _, a := range accounts {
			if a == nil {
				continue
			}
			if err := a.fits(r, c.n[r]); err != nil {
				m.forget(c.peer)
				return err
			}
		}
	}
	m.book(c, accounts, 1)
	return nil
}

// give releases what take booked.
func (m *manager) give(c *charge) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.book(c, m.accounts(c), -1)
	m.forget(c.peer)
}

// forget drops the account of a peer that uses nothing.
func (m *manager) forget(peer transport.Identity) {
	if p := m.peers[peer]; p != nil && p.used == [resCount]int64{} {
		delete(m.peers, peer)
	}
}

func (m *manager) accounts(c *charge) [3]*account {
	a := [3]*account{&m.device, c.ulp, nil}
	if c.peer != "" {
		p := m.peers[c.peer]
		if p == nil {
			p = &account{name: "peer " + string(c.peer), limit: m.quota}
			m.peers[c.peer] = p
		}
		a[2] = p
	}
	return a
}

func (m *manager) book(c *charge, accounts [3]*account, sign int64) {
	for _, a := range accounts {
		if a == nil {
			continue
		}
		for r := range resCount {
			a.used[r] += sign * c.n[r]
		}
	}
}

func (m *manager) usage(a *account) Limits {
	m.mu.Lock()
	defer m.mu.Unlock()
	return limitsFrom(a.used)
}
