package main

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	pion "github.com/pion/sctp"
)

// serve plays the server's part for one association after the other.
func serve(listen string) (addr string, err error) {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return "", err
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return "", err
	}
	grow(c)
	go func() {
		sock := &socket{UDPConn: c}
		for {
			p := sock.next()
			a, err := pion.ServerWithOptions(config(p))
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_ = converse(a) // the client reports what went wrong
				_ = a.Close()
			}
			_ = p.Close()
		}
	}()
	return c.LocalAddr().String(), nil
}

// socket is a UDP socket that has one peer at a time.
type socket struct {
	*net.UDPConn
	buf  [1 << 16]byte
	kept int // bytes of buf: the first packet of the next peer
	from netip.AddrPort
}

// peer is a net.Conn with whoever sends first; it ends when somebody else does.
type peer struct {
	*socket
	mu     sync.Mutex
	remote netip.AddrPort
	closed bool
	read   sync.Mutex // held during Read
}

func (s *socket) next() *peer { return &peer{socket: s} }

func (p *peer) Read(b []byte) (int, error) {
	p.read.Lock()
	defer p.read.Unlock()
	if p.kept > 0 {
		n := copy(b, p.buf[:p.kept])
		p.kept = 0
		p.set(p.from)
		return n, nil
	}
	n, from, err := p.ReadFromUDPAddrPort(b)
	p.mu.Lock()
	closed, remote := p.closed, p.remote
	p.mu.Unlock()
	switch {
	case err != nil && !closed:
		return 0, err
	case err == nil && !closed && !remote.IsValid():
		p.set(from)
		return n, nil
	case err == nil && from != remote:
		p.kept, p.from = copy(p.buf[:], b[:n]), from
		return 0, io.EOF
	case closed:
		return 0, net.ErrClosed
	}
	return n, nil
}

func (p *peer) set(a netip.AddrPort) {
	p.mu.Lock()
	p.remote = a
	p.mu.Unlock()
}

func (p *peer) Write(b []byte) (int, error) { return p.WriteToUDPAddrPort(b, p.addr()) }

func (p *peer) addr() netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remote
}

func (p *peer) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(p.addr()) }

// Close ends a Read and leaves the socket open for the next peer.
func (p *peer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if err := p.SetReadDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	p.read.Lock()
	defer p.read.Unlock()
	return p.SetReadDeadline(time.Time{})
}

// converse answers one client.
func converse(a *pion.Association) error {
	s, mode, size, err := accept(a)
	if err != nil {
		return err
	}
	switch mode {
	case "write":
		return count(s)
	case "ping":
		return answer(s, size, func(p []byte) error { return s.send(p) })
	}
	reply := make([]byte, size)
	return answer(s, requestSize, func([]byte) error { return s.send(reply) })
}

// count reads as many bytes as the client tells and then answers.
func count(s *dialogue) error {
	var got atomic.Uint64
	more := make(chan struct{}, 1)
	go func() {
		defer close(more)
		for buf := make([]byte, 1<<16); ; {
			n, err := s.data.Read(buf)
			if err != nil {
				return
			}
			got.Add(uint64(n))
			select {
			case more <- struct{}{}:
			default:
			}
		}
	}()
	want, err := s.hear()
	if err != nil {
		return err
	}
	for got.Load() < want {
		if _, ok := <-more; !ok {
			return io.ErrUnexpectedEOF
		}
	}
	if err := s.tell(want); err != nil {
		return err
	}
	for range more { // until the client ends the association
	}
	return nil
}

// answer answers each message of at most size bytes until the association ends.
func answer(s *dialogue, size int, reply func(p []byte) error) error {
	for p := make([]byte, size); ; {
		n, err := s.data.Read(p)
		if err == nil {
			err = reply(p[:n])
		}
		if err != nil {
			return err
		}
	}
}
