package ipsec

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// TestCharonThatComesWhileAPeerIsGuarded: the guard that was begun before anybody knew the data plane is not that of the
// data plane, and a peer is only said to be loaded with that one.
func TestCharonThatComesWhileAPeerIsGuarded(t *testing.T) {
	f := newFakeCharon(t)
	m, err := New(Config{Socket: f.Socket})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	var mu sync.Mutex
	var planes []esp.Plane // of each time that the guard was seen to
	m.install = func(_ string, specs []guard.Spec) ([]guard.Result, error) {
		mu.Lock()
		planes = append(planes, specs[0].DataPlane)
		first := len(planes) == 1
		mu.Unlock()
		if first {
			go func() { ended <- m.Run(context.Background()) }()
			eventually(t, "connected", func() bool { return m.DaemonStatus().Connected })
		}
		return make([]guard.Result, len(specs)), nil
	}
	m.probe = func(guard.Spec) error { return nil }
	m.route = func(guard.Spec, netip.Addr, bool) error { return nil }
	var none fakeBlocks
	m.listBlocks, m.setBlocks, m.checkBlocks = none.list, none.set, none.check
	if err := m.AddPeer(t.Context(), padtest.Peer("beta", 2)); err != nil {
		t.Error(err)
	}
	mu.Lock()
	if st := m.DaemonStatus(); len(planes) < 2 || planes[0] != esp.Auto || planes[len(planes)-1] != st.DataPlane || st.DataPlane == esp.Auto {
		t.Errorf("the peer is loaded with a guard for the data planes %v, and charon has %v", planes, st.DataPlane)
	}
	mu.Unlock()
	m.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
