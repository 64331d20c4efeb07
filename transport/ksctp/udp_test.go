package ksctp_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

const udpPort = 9899

// endpoint is one of package sctp in a host, which hands its associations to r.
func endpoint(t *testing.T, h *lab.Host, r assoc.Receiver) *sctp.Endpoint {
	t.Helper()
	return endpointOf(t, h, func(*sctp.Assoc) assoc.Receiver { return r })
}

func endpointOf(t *testing.T, h *lab.Host, accept func(*sctp.Assoc) assoc.Receiver) *sctp.Endpoint {
	t.Helper()
	var e *sctp.Endpoint
	err := h.Do(func() error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr(), udpPort)))
		if err != nil {
			return err
		}
		e, err = sctp.Listen(c, sctp.Config{
			Params: assoc.Params{Adaptation: 1},
			Admit:  func(_, _ netip.AddrPort, _ bool) error { return nil },
			Accept: accept,
			Port:   port,
			// Linux 6.1 panics when its UDP socket for SCTP gets a batch of UDP_SEGMENT
			// whole, as it may over a veth pair.
			NoOffload: true,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// encapsulate has the kernel of a host speak SCTP in UDP as well.
func encapsulate(t *testing.T, h *lab.Host) {
	t.Helper()
	for _, c := range [][]string{
		{"sysctl", "-w", "net.sctp.udp_port=9899"},
		// What the kernel makes of large SCTP packets does not survive both its own
		// encapsulation and a veth pair.
		{"ip", "link", "set", h.Dev(), "gso_max_size", "1500"},
	} {
		if _, err := h.Run(t.Context(), c[0], c[1:]...); err != nil {
			t.Fatal(err)
		}
	}
}

// numbered are so many messages, and check finds out that all of them came, each once.
func numbered(n int) (ms []assoc.Outgoing) {
	for i := range n {
		b := binary.BigEndian.AppendUint32(nil, uint32(i))
		ms = append(ms, one(uint16(i%10), b, make([]byte, i%1000)))
	}
	return ms
}

func check(t *testing.T, b *assoctest.Inbox, who string, n int) {
	t.Helper()
	seen := make(map[uint32]bool)
	for _, m := range b.WaitFor(t, n) {
		i := binary.BigEndian.Uint32(m.Payload)
		if seen[i] || int(i) >= n || m.Stream != uint16(i%10) || len(m.Payload) != 4+int(i)%1000 || m.PPID != 16 || !m.Flags.Whole() || m.Flags&assoc.Unordered == 0 {
			t.Fatalf("%s: message %d: seen %v, stream %d, %d bytes, flags %v", who, i, seen[i], m.Stream, len(m.Payload), m.Flags)
		}
		seen[i] = true
	}
}

// Our endpoint in UDP and the kernel's, each as the one that dials, over a good
// wire and a bad one (RFC 6951).
func TestOurEndpointInUDPAndTheKernels(t *testing.T) {
	for _, c := range []struct {
		name  string
		netem []string
		n     int
	}{
		{"good wire", nil, 3000},
		{"2 % loss, reordering, duplication", []string{"delay", "3ms", "1ms", "loss", "2%", "duplicate", "1%", "reorder", "5%"}, 1000},
	} {
		for _, dialler := range []string{"ours", "the kernel"} {
			t.Run(c.name+", "+dialler+" dials", func(t *testing.T) {
				row(t, "SCTP in UDP of our own and the kernel's with encapsulation, "+dialler+" dials, "+c.name+": messages both ways")
				hours, hkernel := hosts(t, 1)
				encapsulate(t, hkernel)
				if c.netem != nil {
					if err := hkernel.Impair(t.Context(), 0, c.netem...); err != nil {
						t.Fatal(err)
					}
				}
				rours, rkernel := assoctest.NewInbox(), assoctest.NewInbox()
				e := endpoint(t, hours, rours)
				var ours, ks assoc.Association
				if dialler == "ours" {
					l := listenOn(t, hkernel, ksctp.Config{Params: assoc.Params{Adaptation: 1}, Local: addrs(hkernel, 1), Port: port})
					a, err := e.Dial(patient(t), netip.AddrPortFrom(hkernel.Addr(), udpPort), sctp.DialConfig{
						Receiver:   func(*sctp.Assoc) assoc.Receiver { return rours },
						RemotePort: port,
					})
					if err != nil {
						t.Fatal(err)
					}
					b, err := l.Accept(patient(t))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { b.Close(); <-b.Done() })
					b.Start(rkernel)
					ours, ks = a, b
				} else {
					b, err := dialFrom(t, hkernel, ksctp.Config{Params: assoc.Params{Adaptation: 1}, EncapPort: udpPort}, netip.AddrPortFrom(hours.Addr(), port))
					if err != nil {
						t.Fatal(err)
					}
					a, err := e.Accept(patient(t))
					if err != nil {
						t.Fatal(err)
					}
					b.Start(rkernel)
					ours, ks = a, b
				}
				var wg sync.WaitGroup
				wg.Go(func() { send(t, ours, numbered(c.n)...) })
				wg.Go(func() { send(t, ks, numbered(c.n)...) })
				wg.Wait()
				check(t, rours, "ours", c.n)
				check(t, rkernel, "the kernel", c.n)
				t.Logf("ours %+v, the kernel's %+v", ours.Stats(), ks.Stats())
				// Who has dialled shuts down, the other end goes along.
				one, other := ours, ks
				if dialler != "ours" {
					one, other = ks, ours
				}
				if err := one.Shutdown(patient(t)); err != nil {
					t.Error(err)
				}
				<-other.Done()
				if err := other.Err(); err != assoc.ErrShutdown {
					t.Errorf("the end that goes along: %v", err)
				}
			})
		}
	}
}
