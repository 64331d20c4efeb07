package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

// program is a user's, which asks the daemon as `ironwarp run` has it ask.
func (m *machine) program(uid uint32) *delegate.Client {
	m.Helper()
	c, err := delegate.New(m.Context(), func(ctx context.Context) (*net.UnixConn, error) {
		c, err := otheruser.Dial(m.socket, uid)
		if err != nil {
			return nil, err
		}
		u := c.(*net.UnixConn)
		return u, api.UpgradeFlows(ctx, u)
	}, nil)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(c.Close)
	return c
}

// ownStream is a connection that a program made by itself, and its other end.
type ownStream struct{ *net.TCPConn }

func (ownStream) Outq() (int, error) { return 0, nil }

// connect makes a connection to a port of an address of this host.
func (m *machine) connect(address string, port uint16) (dialled, taken ownStream) {
	m.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(m.Context(), "tcp4", fmt.Sprintf("%s:%d", address, port))
	if err != nil {
		m.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(address)}, l.Addr().(*net.TCPAddr))
	if err != nil {
		m.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { c.Close(); a.Close() })
	return ownStream{c}, ownStream{a.(*net.TCPConn)}
}

// inAnotherNamespace is connect in a network namespace of its own, as any user may make one.
func (m *machine) inAnotherNamespace(address string, port uint16) (dialled ownStream) {
	m.Helper()
	err := nsdo.Fresh(func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			dialled, _ = m.connect(address, port)
		}
		return err
	})
	if err != nil {
		m.Fatal(err)
	}
	return dialled
}

const silent = "127.0.0.9" // the address of a peer

// A program of a local user has streams that are not its user's (R1, R2).
func TestProgramOfALocalUser(t *testing.T) {
	admits := func(m *machine, uid uint32, s ownStream, outgoing bool) bool {
		_, err := m.program(uid).Admit(m.Context(), transport.Flow{}, outgoing, s)
		if err != nil && !errors.Is(err, transport.ErrNotProtected) && !errors.Is(err, delegate.ErrShort) {
			m.Fatal(err)
		}
		return err == nil
	}
	runLocal(t,
		localAttack{"dials another's port", checks.ProgramPort, func(m *machine) bool {
			s, _ := m.connect(silent, firstPort+16)
			return admits(m, alice, s, true)
		}},
		localAttack{"has an SA set up for another's port", checks.ProgramPort, func(m *machine) bool {
			s, _ := m.connect(silent, firstPort+17)
			return m.program(alice).Prepare(m.Context(), transport.Flow{Protocol: transport.ProtoTCP, Remote: s.RemoteAddr().(*net.TCPAddr).AddrPort()}) == nil
		}},
		localAttack{"takes connections at another's port", checks.ProgramPort, func(m *machine) bool {
			_, s := m.connect(silent, firstPort+18)
			return admits(m, alice, s, false)
		}},
		localAttack{"takes connections, which it may not", checks.ProgramPort, func(m *machine) bool {
			_, s := m.connect(silent, firstPort+1)
			return admits(m, alice, s, false)
		}},
		localAttack{"dials in a partition that its label may not use", checks.ProgramPartition, func(m *machine) bool {
			s, _ := m.connect(silent, firstPort+64)
			return admits(m, dora, s, true)
		}},
		localAttack{"takes connections in such a partition", checks.ProgramPartition, func(m *machine) bool {
			_, s := m.connect(silent, firstPort+65)
			return admits(m, dora, s, false)
		}},
		localAttack{"has a stream with a peer of another's", checks.ProgramPort, func(m *machine) bool {
			s, _ := m.connect("127.0.0.1", firstPort+19)
			return admits(m, alice, s, true)
		}},
		localAttack{"passes off a stream of another network as one of this host's", checks.ProgramSocket, func(m *machine) bool {
			return admits(m, alice, m.inAnotherNamespace(silent, firstPort+2), true)
		}},
		localAttack{"goes on when the daemon has been told to look away", checks.ProgramEnd, func(m *machine) bool {
			s, other := m.connect(silent, firstPort+3)
			p := m.program(alice)
			if _, err := p.Admit(m.Context(), transport.Flow{}, true, s); err != nil {
				m.Fatal(err)
			}
			p.Close()
			for i := byte(0); ; i++ { // until the daemon has noticed
				list, err := m.as(alice).Streams(m.Context())
				if err != nil {
					m.Fatal(err)
				}
				if len(list) == 0 {
					break
				}
			}
			if _, err := s.Write([]byte{1}); err != nil {
				return false
			}
			other.SetReadDeadline(time.Now().Add(patience))
			_, err := io.ReadFull(other, make([]byte, 1))
			return err == nil
		}},
		localAttack{"has a peer blocked for all others", checks.ProgramWitness, func(m *machine) bool {
			p := m.program(carol)
			_, s := m.connect(silent, firstPort+24)
			for range 1100 { // of one connection, as if the peer had made so many
				_, _ = p.Admit(m.Context(), transport.Flow{}, false, s)
			}
			for range 500 { // who is to be blocked is so by another goroutine
				if blocks, err := m.root.Blocks(m.Context()); err != nil {
					m.Fatal(err)
				} else if len(blocks) > 0 {
					return true
				}
			}
			return false
		}},
		localAttack{"has more streams than it may", checks.PeerQuota, func(m *machine) bool {
			p := m.program(carol)
			for i := range uint16(3) {
				s, _ := m.connect(silent, firstPort+20+i)
				if _, err := p.Admit(m.Context(), transport.Flow{}, true, s); errors.Is(err, delegate.ErrShort) {
					return false
				} else if err != nil {
					m.Fatal(err)
				}
			}
			return true
		}},
	)
}
