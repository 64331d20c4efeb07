package ksctp_test

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// The kernel writes to memory of a goroutine, whose stack may move at any call. The
// answers have to be right at whatever depth the goroutine is.
func TestOptionsAreReadWhateverTheStackDoes(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{}, ksctp.Config{})
	for depth := range 300 {
		done := make(chan bool)
		go func() {
			local, peer, err := deep(x.a, depth)
			if err != nil || len(local) != 1 || len(peer) != 1 || local[0] != x.a.LocalAddrs()[0] || peer[0] != x.l.Addr() {
				t.Errorf("depth %d: %v, %v, %v", depth, local, peer, err)
			}
			close(done)
		}()
		<-done
	}
}

//go:noinline
func deep(a *ksctp.Assoc, n int) (local, peer []netip.AddrPort, err error) {
	if n == 0 {
		return a.AskAddrs()
	}
	return deep(a, n-1)
}
