package ipsectest

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// TestGuardThatIsPutBackStopsWhatIsUnderWay has a stream try to go on in clear, since somebody
// has flushed what keeps it in and there is no SA, which the test sees. From the moment at
// which the guard is back nothing leaves the host, by the way that the stream's socket has
// found meanwhile, either.
func TestGuardThatIsPutBackStopsWhatIsUnderWay(t *testing.T) {
	lab.Require(t)
	if esp.ProbeKernel() == nil {
		t.Skip("kernel ESP has no routing rules; it runs where the kernel has no ESP")
	}
	rules := "for n in 217 218 219; do while ip %s rule del pref $n; do :; done; done 2>/dev/null; true"
	for _, tc := range []struct {
		name, flush string
		v6          bool
	}{
		{"IPv4, all is flushed", "ip xfrm policy flush;" + fmt.Sprintf(rules, "-4"), false},
		{"IPv6, all is flushed", "ip xfrm policy flush;" + fmt.Sprintf(rules, "-6"), true},
		{"IPv6, routing rules are", fmt.Sprintf(rules, "-6"), true}, // as systemd-networkd does
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			p.alpha.v6, p.beta.v6 = tc.v6, tc.v6
			p.addPeers(t)
			p.echo(t, p.beta, nil)
			c := p.mustOpen(t, p.alpha)
			if err := ping(c, "before"); err != nil {
				t.Fatal(err)
			}
			p.acknowledged(t)
			p.deleteBy(t, []*host{p.alpha})
			p.alpha.stop() // which would put it back
			sh(t, p.alpha.Host, tc.flush)
			seen := sniff(t, p.alpha)
			sent := func() int { return seen.count(func(s segment) bool { return s.from.Addr() == p.alpha.at() }) }
			if _, err := c.Write(canary.Bytes(pingSize)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "without SA and guard the check sees clear packets", func() bool { return sent() > 0 })
			if err := guard.Install(p.alpha.specOf(p.beta, transport.TCP, esp.Userland)); err != nil {
				t.Fatal(err)
			}
			seen.settle(t, p.alpha)
			before := sent()
			wire := capture(t, p.beta)
			from := retransmits(t, c)
			eventually(t, "TCP has tried again and again", func() bool { return retransmits(t, c) >= from+2 })
			seen.settle(t, p.alpha)
			if n := sent() - before; n != 0 {
				t.Errorf("%d packets of the link have left in clear although the guard is back", n)
			}
			counted(t, wire)
		})
	}
}

// retransmits is how often TCP has tried to send what is written, since the last answer.
func retransmits(t *testing.T, c stream) (n uint8) {
	t.Helper()
	raw, err := c.(*transport.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		n = info.Retransmits + info.Probes
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
