package daemon

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Who has many peers may let more sessions in than a daemon does by default.
func TestMoreSessionsAreLetInWhereTheConfigurationSaysSo(t *testing.T) {
	const peers, each = 2, 150
	more := fmt.Sprintf("block: off\nlimits: {sessions: %d, all_sessions: %d, queue_size: 1}\npeers:\n", each, 2*peers*each)
	at := func(p int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 67, byte(1 + p)}) }
	for p := range peers {
		more += fmt.Sprintf("  - {name: p%d, address: %s, local_address: 127.0.0.1, protection: loopback}\n", p, at(p))
	}
	h := newHost(t, more)
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ulp, err := dev.NewULP("test", verbs.ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range peers * each {
		tc := &transport.Config{Protector: transport.LoopbackOnly(), Local: at(i % peers)}
		c, err := rtrs.Connect(t.Context(), rtrs.ClientConfig{ULP: ulp, Name: fmt.Sprintf("session %d", i), Conns: 1, QueueDepth: 1,
			Paths: []rtrs.PathConfig{{Remote: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), h.port), Transport: tc}}})
		if err != nil {
			t.Fatalf("session %d of %d peers with up to %d each: %v", i, peers, each, err)
		}
		defer c.Close()
	}
}
