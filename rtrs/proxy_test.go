package rtrs

import (
	"net"
	"net/netip"
	"sync"
	"testing"
)

// proxy forwards connections to a server and can cut them all, like a link that
// goes down and comes back.
type proxy struct {
	ln     net.Listener
	target netip.AddrPort
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	down  bool
	total int
	thaw  chan struct{} // nil: bytes pass; else until it is closed they do not
	left  int           // bytes that pass before they do not any more; 0: all
}

func startProxy(t testing.TB, target netip.AddrPort) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, target: target, conns: make(map[net.Conn]struct{})}
	p.wg.Go(p.run)
	t.Cleanup(func() {
		ln.Close()
		p.freeze(false)
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() netip.AddrPort { return p.ln.Addr().(*net.TCPAddr).AddrPort() }

func (p *proxy) run() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.target.String())
		if err != nil {
			c.Close()
			continue
		}
		if !p.enter(c, s) {
			c.Close()
			s.Close()
			continue
		}
		p.wg.Go(func() { p.copy(c, s) })
		p.wg.Go(func() { p.copy(s, c) })
	}
}

func (p *proxy) enter(cs ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	p.total++
	for _, c := range cs {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *proxy) copy(dst, src net.Conn) {
	for buf := make([]byte, 64<<10); ; {
		n, err := src.Read(buf)
		p.mu.Lock()
		if p.left > 0 {
			if p.left -= n; p.left <= 0 && p.thaw == nil {
				p.thaw = make(chan struct{})
			}
		}
		thaw := p.thaw
		p.mu.Unlock()
		if thaw != nil {
			<-thaw
		}
		if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range []net.Conn{dst, src} {
		c.Close()
		delete(p.conns, c)
	}
}

// freeze holds back all bytes from now on, or lets them go.
func (p *proxy) freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.thaw == nil:
		p.thaw = make(chan struct{})
	case !on && p.thaw != nil:
		close(p.thaw)
		p.thaw = nil
	}
}

// freezeAfter holds back all bytes once n more have passed, or some less.
func (p *proxy) freezeAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

// cut closes every connection, with a reset.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

// setDown refuses connections from now on, or takes them again.
func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
}
