package isertest

import (
	"net"
	"sync"
)

// Direction is one of those of a Proxy.
type Direction int

// The directions.
const (
	Up   Direction = iota // to the target
	Down                  // to the initiator
)

// Proxy is between one initiator and the target, and holds back what it is told to.
type Proxy struct {
	Address string // where the initiator connects

	ln net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex // guards the fields below it
	change sync.Cond
	held   [2]bool
	buf    [2][]byte
	over   bool
	conns  []net.Conn
}

// NewProxy returns a proxy to the target at an address. It fails if it can't listen.
func NewProxy(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Address: ln.Addr().String(), ln: ln}
	p.change.L = &p.mu
	p.wg.Go(func() {
		near, err := ln.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		defer far.Close()
		p.mu.Lock()
		p.conns = []net.Conn{near, far}
		p.mu.Unlock()
		p.wg.Go(func() { p.read(Up, near) })
		p.wg.Go(func() { p.read(Down, far) })
		p.wg.Go(func() { p.write(Up, far) })
		p.write(Down, near)
	})
	return p, nil
}

func (p *Proxy) read(d Direction, from net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		p.buf[d] = append(p.buf[d], b[:n]...)
		p.over = p.over || err != nil
		p.change.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *Proxy) write(d Direction, to net.Conn) {
	defer to.Close()
	for {
		b := p.next(d)
		if b == nil {
			return
		}
		if _, err := to.Write(b); err != nil {
			p.end()
			return
		}
	}
}

// next returns what may pass, nil at the end.
func (p *Proxy) next(d Direction) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.over && (p.held[d] || len(p.buf[d]) == 0) {
		p.change.Wait()
	}
	if p.held[d] {
		return nil
	}
	b := p.buf[d]
	p.buf[d] = nil
	return b
}

func (p *Proxy) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.change.Broadcast()
}

// Hold holds back what comes from now on.
func (p *Proxy) Hold(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[d] = true
}

// Release lets it pass.
func (p *Proxy) Release(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[d] = false
	p.change.Broadcast()
}

// AwaitHeld waits until something is held back, or the connection has ended.
func (p *Proxy) AwaitHeld(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf[d]) == 0 && !p.over {
		p.change.Wait()
	}
}

// Close ends the connection.
func (p *Proxy) Close() {
	p.ln.Close()
	p.end()
	p.mu.Lock()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
