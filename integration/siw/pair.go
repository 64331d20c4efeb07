package siw

import (
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/iwarptest/agent"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
)

// Lab is where the suite runs.
type Lab struct {
	Agent     string // its path
	Namespace string // siw's network namespace
	Device    string // siw's name of its device

	// Where the streams are protected; without Protector they are not.
	Protector transport.Protector
	Siw, Ours netip.Addr // the addresses
	NetNS     string     // path of our network namespace; "": this process's own
}

// Pairs makes streams of one variant.
type Pairs struct {
	v       Variant
	agent   *agent.Process
	streams *agent.Streams
}

// Open starts what the streams of a variant need, until the test ends. Both listeners
// use port.
func (l Lab) Open(t testing.TB, v Variant, port uint16) *Pairs {
	t.Helper()
	for name, value := range v.parameters() {
		if err := os.WriteFile(filepath.Join("/sys/module/siw/parameters", name), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	p, err := agent.Start(exec.Command("ip", "netns", "exec", l.Namespace, l.Agent, l.Device))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	siw, ours := l.Siw, l.Ours
	if l.Protector == nil {
		siw, ours = v.addresses()
		l.Protector = transport.Plaintext(slog.New(slog.DiscardHandler), siw)
	}
	return &Pairs{v, p, agent.Open(t, agent.Config{
		Agent: p, Dial: v.Dial, Theirs: netip.AddrPortFrom(siw, port), Ours: netip.AddrPortFrom(ours, port), Setup: v.setup(),
		Transport: &transport.Config{Protector: l.Protector, Local: ours},
		Within:    func(f func() error) error { return nsdo.Do(l.NetNS, f) },
	})}
}

// Connect is a conformance.Connect: a stream whose first end is ours.
func (p *Pairs) Connect(t testing.TB) (a, b conformance.Endpoint) { return p.streams.Connect(t) }
