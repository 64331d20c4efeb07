package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// crowdOf is the configuration of n peers, of which all may attach a disk.
func crowdOf(t *testing.T, n int, more string) string {
	t.Helper()
	var b, allow strings.Builder
	b.WriteString("block: off\n" + more + "peers:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: p%d, address: %s, local_address: 127.0.0.1, protection: loopback}\n", i, crowdAt(i))
		fmt.Fprintf(&allow, "p%d,", i)
	}
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "exports:\n  - {name: disk, path: %q, allow: [%s]}\n", disk, strings.TrimSuffix(allow.String(), ","))
	return b.String()
}

func crowdAt(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 0, byte(68 + i/254), byte(1 + i%254)})
}

// opener opens block sessions from one address after the other.
type opener struct {
	*host
	ulp *verbs.ULP
	n   int
}

func newOpener(h *host) *opener {
	h.t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { dev.Close() })
	ulp, err := dev.NewULP("test", verbs.ULPConfig{})
	if err != nil {
		h.t.Fatal(err)
	}
	return &opener{host: h, ulp: ulp}
}

func (e *opener) as(i int) error { return e.with(i, 1) }

// with opens one of several connections.
func (e *opener) with(i, conns int) error {
	e.n++
	tc := &transport.Config{Protector: transport.LoopbackOnly(), Local: crowdAt(i)}
	c, err := rtrs.Connect(e.t.Context(), rtrs.ClientConfig{ULP: e.ulp, Name: fmt.Sprintf("session %d", e.n), Conns: conns, QueueDepth: 1,
		Paths: []rtrs.PathConfig{{Remote: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), e.port), Transport: tc}}})
	if err == nil {
		e.t.Cleanup(func() { c.Close() })
	}
	return err
}

// hoard opens as many as peer i gets.
func (e *opener) hoard(i int) (n int) {
	e.t.Helper()
	for {
		err := e.as(i)
		if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EUSERS) {
			return n
		}
		if err != nil {
			e.t.Fatalf("session %d of peer %d: %v", n, i, err)
		}
		n++
	}
}

// Peers that hoard sessions, at the default queue size and with the default memory, keep no
// peer out that may attach a disk, nor one that a reload brings.
func TestHoardedSessionsKeepNoPeerOut(t *testing.T) {
	const peers, hoarders = 24, 4
	h := newHost(t, crowdOf(t, peers, ""))
	e := newOpener(h)
	had := 0
	for i := range hoarders {
		had += e.hoard(i)
	}
	if had <= hoarders {
		t.Errorf("%d hoarders have %d sessions, and nobody else has one", hoarders, had)
	}
	one := use(t, h.resources().Peers, "p0", "memory")
	if n := use(t, h.resources().Peers, "p0", "sessions"); n.Used == 0 || n.Share != 1 || one.Used != n.Used*one.Share || one.Share < 32<<20 {
		t.Errorf("a hoarder's sessions are shown as %+v and their memory as %+v", n, one)
	}
	if u := use(t, h.resources().ULPs, "exports", "memory"); u.Share < int64(had+peers-hoarders)*one.Share {
		t.Errorf("%d sessions and %d places take %d bytes each; of the memory exports have %+v", had, peers-hoarders, one.Share, u)
	}
	h.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n%s", h.port, h.udp, crowdOf(t, peers+2, "")))
	if r, err := h.api.Reload(t.Context()); err != nil || len(r.Restart) != 0 {
		t.Fatalf("reload: %+v, %v", r, err)
	}
	for i := range hoarders {
		e.hoard(i)
	}
	for i := hoarders; i < peers+2; i++ {
		if err := e.as(i); err != nil {
			t.Errorf("peer %d, which has no session, is kept out: %v", i, err)
		}
	}
}

// Peers that hoard streams keep none out whose session has two, however many are configured.
func TestHoardedStreamsKeepNoPeerOut(t *testing.T) {
	const peers = 300
	h := newHost(t, crowdOf(t, peers, "limits: {queue_size: 4}\n"))
	e := newOpener(h)
	hoarders := 0
	for full := false; !full; hoarders++ {
		had := false
		for !full && e.with(hoarders, rtrs.MaxConns) == nil {
			had = true
		}
		full = !had
	}
	device := use(t, []api.Principal{h.resources().Device}, "", "streams")
	t.Logf("%d hoarders have %d of %d streams", hoarders-1, device.Used, device.Limit)
	for i := hoarders; i < peers; i += 40 {
		if err := e.with(i, config.DefaultConnections); err != nil {
			t.Errorf("peer %d, which has no stream, is kept out: %v", i, err)
		}
	}
}
