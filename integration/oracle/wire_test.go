package oracle

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/mpa"
)

// tshark decodes what crosses a real wire, between two network namespaces and cut by
// the kernel's TCP, like what the other tests record.
func TestTsharkReadsTheWire(t *testing.T) {
	requireTshark(t)
	l := lab.Start(t, lab.Config{})
	a, b := l.Host("alpha"), l.Host("beta")
	c, err := b.Capture(t.Context(), lab.CaptureOptions{File: filepath.Join(t.TempDir(), "wire.pcap"), Filter: "tcp port 7471", SnapLen: 1 << 18, Unjudged: "streams without protection, for tshark to read"})
	if err != nil {
		t.Fatal(err)
	}
	var takes []take
	for name, addr := range map[string]netip.Addr{"IPv4": b.Addr(), "IPv6": b.Addr6()} {
		nc := dial(t, a, b, netip.AddrPortFrom(addr, serverPort))
		ends := [2]*end{newEnd(t, client), newEnd(t, server)}
		join(t, ends[client], ends[server], nc, mpa.Config{}, mpa.Config{})
		everything(ends[client], ends[server])
		everything(ends[server], ends[client])
		finish(t, ends[:]...)
		takes = append(takes, take{name: name, port: nc[client].LocalAddr().(*net.TCPAddr).Port, ends: ends, crc: true})
	}
	counts, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if counts.Dropped > 0 {
		t.Skipf("tcpdump missed packets: %v", counts)
	}
	found := ask(t, c.Path(), serverPort)
	found.tcp = nil // on a busy machine the kernel retransmits what was not lost
	report(t, found, takes)
	if t.Failed() {
		out, err := exec.Command("tshark", "-n", "-r", c.Path(), "-c", "12").Output()
		t.Logf("how it begins (%v):\n%s", err, out)
	}
}

// dial returns the two ends of a connection between hosts.
func dial(t *testing.T, from, to *lab.Host, at netip.AddrPort) (nc [2]net.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ln, err := to.Listen(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := from.Dial(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		c.Close()
		t.Fatal(err)
	}
	return [2]net.Conn{c, s}
}
