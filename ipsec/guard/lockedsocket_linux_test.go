package guard

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/hangs"
)

// TestSocketThatAProgramKeepsLocked is not ended, so its guard stays; and nobody waits for it, nor one more thread each time.
func TestSocketThatAProgramKeepsLocked(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	unlock := hangs.Lock(t, c.(*net.TCPConn))
	g := Spec{Remote: netip.MustParseAddr("127.0.0.1"), Port: uint16(ln.Addr().(*net.TCPAddr).Port)}
	for range 2 {
		ended := make(chan error, 1)
		go func() { ended <- endSocketsBy(g, 0, LinkSocket.end) }()
		select {
		case err := <-ended:
			var held *HeldError
			if !errors.As(err, &held) || !errors.Is(err, errLocked) {
				t.Errorf("%v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a program makes whoever removes a guard wait")
		}
	}
	underWay.mu.Lock()
	if n := len(underWay.of); n != 1 {
		t.Errorf("%d threads wait", n)
	}
	underWay.mu.Unlock()
	unlock()
	if err := EndSockets(g); err != nil {
		t.Error(err)
	}
}
