package transport

import (
	"errors"
	"net"
	"net/netip"
	"sync"
)

// pending counts the connections of a listener that are not accepted yet.
type pending struct {
	limit int

	mu      sync.Mutex // guards the fields below it; innermost
	n       int
	perAddr map[netip.Addr]int
}

func newPending(limit int) *pending {
	return &pending{limit: limit, perAddr: make(map[netip.Addr]int)}
}

// enter counts a connection, and returns false if there is no room for one of addr.
func (p *pending) enter(addr netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch mine := p.perAddr[addr]; {
	case mine == 0 && p.n < p.limit*pendingOver: // however many others hold
	case p.n >= p.limit || mine >= max(1, p.limit/pendingShare):
		return false
	}
	p.n++
	p.perAddr[addr]++
	return true
}

func (p *pending) leave(addr netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n--
	if p.perAddr[addr]--; p.perAddr[addr] == 0 {
		delete(p.perAddr, addr)
	}
}

func (c *Config) refused(f Flow, err error) {
	if c.OnRefused != nil && !errors.Is(err, net.ErrClosed) {
		c.OnRefused(f, err)
	}
}
