package sctp

import (
	"errors"
	"net"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// carrierLocked returns the socket that the association's packets leave by.
func (a *Assoc) carrierLocked() carrier {
	if a.own != nil {
		return a.own
	}
	return a.ep.sock
}

// Adopt gives an association that a peer has set up a UDP socket of its own, which it owns then,
// even if it fails: bound to the address and port that the association has, and connected to the
// peer, so that the kernel delivers there what the peer sends. The association's packets leave by
// that one alone from now on, and the association ends when it is shut down, while those that
// have the endpoint's go on. What has been delivered to the endpoint's socket still counts. It
// fails with net.ErrClosed if the association has ended, and with the kernel's error.
func (a *Assoc) Adopt(conn *net.UDPConn) error {
	own, err := newSocket(conn, false)
	if err != nil {
		conn.Close()
		return a.wrap("prepare the UDP socket of", err)
	}
	a.mu.Lock()
	over := a.ended || a.own != nil
	if !over {
		a.own = own
		a.ep.wg.Go(func() { a.readOwn(own) }) // unlocked: whoever waits has ended the association first
	}
	a.mu.Unlock()
	if over {
		conn.Close()
		return a.wrap("take the UDP socket of", net.ErrClosed)
	}
	return nil
}

// readOwn reads the association's own socket until it is closed, or shut down.
func (a *Assoc) readOwn(own *socket) {
	r := newDemux(a.ep)
	a.mu.Lock()
	r.own = a.local
	a.mu.Unlock()
	if err := own.read(r); err != nil {
		a.mu.Lock()
		a.t.close(err)
		a.deliverAndUnlock(false)
	}
}

// AbortPacket returns an ABORT of the association (RFC 9260 section 3.3.7), for whoever has its
// socket and outlives this process: it ends the association at the peer.
func (a *Assoc) AbortPacket() []byte {
	s := a.ep.senders.get()
	defer a.ep.senders.put(s)
	b := &s.batch
	a.mu.Lock()
	b.begin(a.t.localPort, a.t.peerPort, a.t.peer.tag)
	a.mu.Unlock()
	b.buf = appendAbort(b.buf, 0, assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte("the program has ended")})
	b.end()
	return slices.Clone(b.packets[0])
}

// SyscallConn returns the UDP socket that nothing but this association uses. It fails where
// there is none.
func (a *Assoc) SyscallConn() (syscall.RawConn, error) {
	a.mu.Lock()
	c := a.carrierLocked()
	a.mu.Unlock()
	if s, ok := c.(*socket); ok && s.bond {
		return s.raw, nil
	}
	return nil, a.wrap("use the socket of", errors.ErrUnsupported)
}
