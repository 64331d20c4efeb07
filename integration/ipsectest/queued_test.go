package ipsectest

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// orphaned leaves a connection to beta that belongs to no program, with unacknowledged
// data: it cuts the wire and closes the connection. listening: alpha is the dialled
// end.
func orphaned(t *testing.T, p *pair, text pattern, listening bool) {
	t.Helper()
	from, to := p.alpha, p.beta
	if listening {
		from, to = p.beta, p.alpha
	}
	ln := clearListener(t, to.Host, netip.AddrPortFrom(to.at(), port))
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := ln.Accept(); err == nil {
			accepted <- c
		}
	}()
	if err := from.m.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.AddrPortFrom(to.at(), port)}); err != nil {
		t.Fatal(err)
	}
	dialled, err := from.Dial(t.Context(), netip.AddrPortFrom(to.at(), port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close() })
	taken := <-accepted
	t.Cleanup(func() { taken.Close() })
	mac, _ := linkAddr(t, p.beta.Host)
	sh(t, p.alpha.Host, fmt.Sprintf("ip neigh replace %v lladdr %v dev wire0 nud permanent", p.beta.at(), mac))
	if err := p.beta.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	var c net.Conn = dialled
	if listening {
		c = taken
	}
	if err := c.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(text.fill(8 << 10)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	left, err := guard.LinkSockets(p.alpha.spec6(p.beta))
	if err != nil || len(left) != 1 || !left[0].Orphan || left[0].State != "FIN-WAIT-1" || left[0].Queued == 0 {
		t.Fatalf("the kernel has %v, %v; wanted is one orphan with data", left, err)
	}
}

// TestGuardGoesAfterTheLastByteOfItsLink removes a peer to which the kernel still has
// data to send. The control removes the guard and leaves the sockets as they are.
func TestGuardGoesAfterTheLastByteOfItsLink(t *testing.T) {
	for _, f := range families {
		for _, listening := range []bool{false, true} {
			for _, control := range []bool{false, true} {
				name := fmt.Sprint(f.name, map[bool]string{false: " dialled here", true: " dialled there"}[listening], map[bool]string{true: " control"}[control])
				t.Run(name, func(t *testing.T) {
					if !control {
						row(t, "a removed peer, "+name+": what the kernel had queued is dropped before the guard goes")
					}
					p := newPair(t, lab.Config{})
					p.alpha.v6, p.beta.v6 = f.v6, f.v6
					p.addPeers(t)
					wire := record(t, p.alpha)
					text := newPattern()
					orphaned(t, p, text, listening)
					if control {
						if err := p.alpha.StopCharon(t.Context()); err != nil {
							t.Fatal(err)
						}
						if err := p.alpha.m.RemoveGuard(t.Context(), "beta"); err != nil {
							t.Fatal(err)
						}
						eventually(t, "the data leaves in clear", func() bool { return text.in(t, wire) > 0 })
						return
					}
					if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
						t.Fatal(err)
					}
					if left, err := guard.LinkSockets(p.alpha.spec6(p.beta)); err != nil || len(left) != 0 {
						t.Errorf("after RemovePeer the kernel has %v, %v", left, err)
					}
					if n := guardSize(t, p.alpha); n != 0 {
						t.Errorf("%d policies are left", n)
					}
					if n := text.in(t, wire); n != 0 {
						t.Errorf("the data is on the wire, %d times", n)
					}
				})
			}
		}
	}
}

// spec6 is spec for the address that the link uses.
func (h *host) spec6(o *host) guard.Spec {
	return guard.Spec{NetNS: h.NetNS(), Remote: o.at(), Port: port}
}
