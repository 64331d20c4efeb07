package sctp

import (
	"net"
	"testing"
)

// pipeConn is a net.PacketConn whose address is not one of UDP.
type pipeConn struct {
	net.PacketConn
	closed bool
}

func (*pipeConn) LocalAddr() net.Addr { return &net.UnixAddr{Name: "x", Net: "unixgram"} }

func (c *pipeConn) Close() error {
	c.closed = true
	return nil
}

// An endpoint on a connection whose peers it could not name is refused, and owns it all the
// same.
func TestPacketConnHasAUDPAddress(t *testing.T) {
	c := &pipeConn{}
	if _, err := Listen(c, Config{}); err == nil || !c.closed {
		t.Errorf("Listen: %v; closed: %v", err, c.closed)
	}
}
