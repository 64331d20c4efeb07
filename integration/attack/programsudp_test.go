package attack

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

// ownSocket is a connected UDP socket that a program passes off as an association, of which it says and does nothing.
type ownSocket struct{ *net.UDPConn }

func (ownSocket) Outq() (int, error)     { return 0, nil }
func (ownSocket) Kick() bool             { return false }
func (ownSocket) LimitRTO(time.Duration) {}
func (ownSocket) Stats() assoc.Stats     { return assoc.Stats{} }
func (ownSocket) Abort(string)           {}
func (ownSocket) AbortPacket() []byte    { return nil }

// datagrams connects a UDP socket to a port of an address of this host.
func (m *machine) datagrams(address string, port uint16) (own ownSocket, other *net.UDPConn) {
	m.Helper()
	at := &net.UDPAddr{IP: net.ParseIP(address), Port: int(port)}
	other, err := net.ListenUDP("udp4", at)
	if err != nil {
		m.Fatal(err)
	}
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: at.IP}, at)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { c.Close(); other.Close() })
	return ownSocket{c}, other
}

// stillSends reports whether a socket sends for longer than the daemon gives a program to end it.
func stillSends(s ownSocket) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(4 * delegate.EndTime); ; {
		select {
		case <-tick.C:
			if _, err := s.Write([]byte{1}); err != nil {
				return false
			}
		case <-late:
			return true
		}
	}
}

// A program of a local user has streams over SCTP in UDP that are not its user's, or that are to end (R1, R2).
func TestProgramOfALocalUserOverSCTP(t *testing.T) {
	udp := transport.Flow{Protocol: transport.ProtoUDP}
	admits := func(m *machine, uid uint32, s ownSocket, outgoing bool) bool {
		_, err := m.program(uid).Admit(m.Context(), udp, outgoing, s)
		if err != nil && !errors.Is(err, transport.ErrNotProtected) && !errors.Is(err, delegate.ErrShort) {
			m.Fatal(err)
		}
		return err == nil
	}
	runLocal(t,
		localAttack{"dials another's port", checks.ProgramPort, func(m *machine) bool {
			s, _ := m.datagrams(silent, firstPort+48)
			return admits(m, dave, s, true)
		}},
		localAttack{"has an SA set up for another's port", checks.ProgramPort, func(m *machine) bool {
			s, _ := m.datagrams(silent, firstPort+49)
			f := udp
			f.Remote = s.RemoteAddr().(*net.UDPAddr).AddrPort()
			return m.program(dave).Prepare(m.Context(), f) == nil
		}},
		localAttack{"takes associations, which it may not", checks.ProgramPort, func(m *machine) bool {
			from, at := m.datagrams(silent, firstPort+33)
			from.Close()
			at.Close()
			c, err := net.DialUDP("udp4", at.LocalAddr().(*net.UDPAddr), from.LocalAddr().(*net.UDPAddr))
			if err != nil {
				m.Fatal(err)
			}
			m.Cleanup(func() { c.Close() })
			return admits(m, dave, ownSocket{c}, false)
		}},
		localAttack{"passes off a socket of another network as one of this host's", checks.ProgramSocket, func(m *machine) bool {
			var s ownSocket
			err := nsdo.Fresh(func() error {
				lo, err := netlink.LinkByName("lo")
				if err == nil {
					err = netlink.LinkSetUp(lo)
				}
				if err == nil {
					s, _ = m.datagrams(silent, firstPort+34)
				}
				return err
			})
			if err != nil {
				m.Fatal(err)
			}
			return admits(m, dave, s, true)
		}},
		localAttack{"goes on when the daemon has been told to look away", checks.ProgramEnd, func(m *machine) bool {
			s, _ := m.datagrams(silent, firstPort+35)
			p := m.program(dave)
			if _, err := p.Admit(m.Context(), udp, true, s); err != nil {
				m.Fatal(err)
			}
			p.Close()
			return stillSends(s)
		}},
		localAttack{"does not end what the daemon ends", checks.ProgramShut, func(m *machine) bool {
			s, _ := m.datagrams(silent, firstPort+36)
			if _, err := m.program(dave).Admit(m.Context(), udp, true, s); err != nil {
				m.Fatal(err)
			}
			list, err := m.as(dave).Streams(m.Context())
			if err != nil || len(list) != 1 {
				m.Fatal(fmt.Sprint(list), err)
			}
			if _, err := m.root.KillStream(m.Context(), list[0].ID); err != nil {
				m.Fatal(err)
			}
			return stillSends(s)
		}},
		localAttack{"has more streams than it may", checks.PeerQuota, func(m *machine) bool {
			p := m.program(dave)
			for i := range uint16(3) {
				s, _ := m.datagrams(silent, firstPort+37+i)
				if _, err := p.Admit(m.Context(), udp, true, s); errors.Is(err, delegate.ErrShort) {
					return false
				} else if err != nil {
					m.Fatal(err)
				}
			}
			return true
		}},
	)
}
