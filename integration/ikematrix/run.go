package ikematrix

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/transport"
)

// firstPort is the first row's; each row has its own, so that a packet in clear
// names its row.
const firstPort = 20000

// Run tries the rows of the plan for this machine's data plane, each as a test
// of its own, and returns the report. It skips the test where no lab can run.
func Run(t *testing.T) *Report {
	lab.Require(t)
	plane := ipsec.DataPlaneUserland
	if ipsec.KernelESP() == nil {
		plane = ipsec.DataPlaneKernel
	}
	r := &Report{Plane: plane.String(), Kernel: kernelRelease()}
	rows := Plan(plane)
	planned := len(rows)
	port, creds := uint16(firstPort), &credentials{dir: t.TempDir(), made: map[string]*credential{}}
	for len(rows) > 0 {
		n := slices.IndexFunc(rows, func(r Row) bool { return charonSetting(r.Charon) != charonSetting(rows[0].Charon) })
		if n < 0 {
			n = len(rows)
		}
		port = r.series(t, plane, rows[:n], port, creds)
		rows = rows[n:]
	}
	r.Complete = len(r.Results) == planned && r.Control > 0
	return r
}

// series runs rows on hosts of their own.
func (r *Report) series(t *testing.T, plane ipsec.DataPlane, rows []Row, port uint16, creds *credentials) uint16 {
	t.Helper()
	m, err := newMatrix(t, plane, rows[0].Charon, creds)
	if err != nil {
		t.Fatal(err)
	}
	r.StrongSwan = m.alpha.m.DaemonStatus().Version
	for _, row := range rows {
		t.Run(row.Name(), func(t *testing.T) {
			res := m.row(t, row, port)
			r.Results = append(r.Results, res)
			if res.Surprise != "" {
				t.Error(res.Surprise)
			}
		})
		port++
	}
	if r.Control > 0 {
		return port
	}
	r.asks(t, m, port)
	port++
	t.Run("control", func(t *testing.T) {
		if r.Control, err = m.control(t.Context(), port); err != nil {
			t.Error(err)
		}
	})
	return port + 1
}

// matrix is two hosts on which rows are tried, one after the other.
type matrix struct {
	plane       ipsec.DataPlane
	alpha, beta *host
	wire        *wire
	creds       *credentials
	rows        uint64
}

func newMatrix(t *testing.T, plane ipsec.DataPlane, charon string, creds *credentials) (*matrix, error) {
	t.Helper()
	l := lab.Start(t, lab.Config{DataPlane: plane, Charon: charonSetting(charon)})
	m := &matrix{plane: plane, creds: creds}
	for name, to := range map[string]**host{"alpha": &m.alpha, "beta": &m.beta} {
		h, err := startHost(l.Host(name))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			if err := h.stop(); err != nil {
				t.Errorf("the manager of %s: %v", h.Name(), err)
			}
		})
		*to = h
	}
	var err error
	m.wire, err = m.beta.watch(t.Context())
	t.Cleanup(func() {
		if m.wire == nil {
			return
		}
		left, err := m.wire.look()
		if err := errors.Join(err, m.wire.end()); err != nil {
			t.Error(err)
		}
		_ = left
	})
	return m, err
}

// charonSetting is the part of strongswan.conf that a case wants.
func charonSetting(name string) string {
	switch name {
	case careless:
		return "  i_dont_care_about_security_and_use_aggressive_mode_psk = yes"
	case noOpenSSL: // only with userland ESP
		return "  load = random nonce aes sha1 sha2 md5 hmac kdf xcbc gmp gcm pem pkcs1 x509 revocation constraints pubkey kernel-libipsec kernel-netlink socket-default vici"
	}
	return ""
}

// row tries one row.
func (m *matrix) row(t *testing.T, row Row, port uint16) Result {
	res := Result{Case: row.Case}
	words := []charonSays{m.alpha.listen(), m.beta.listen()}
	m.alpha.log.take()
	m.beta.log.take()
	a, err := m.try(t.Context(), &row, port)
	s, lookErr := m.wire.look()
	err = errors.Join(err, lookErr)
	res.Clear = s.Clear[port] + s.Fragments
	wireErr := s.check(port)
	heard := map[string][]string{}
	for _, w := range words {
		heard[w.h.Name()] = w.lines()
	}
	var never *setupError
	if errors.Is(err, ipsec.ErrNoGuard6) {
		t.Skip(err)
	}
	switch {
	case wireErr != nil:
		res.Surprise = wireErr.Error()
	case err == nil && row.Refusal != nil:
		res.Surprise = fmt.Sprintf("it works, and should be refused: %s", row.Refusal.Why)
	case err == nil:
		res.Works, res.Agreed, res.Stream = true, a, row.Stream
		res.Surprise = m.covered(&row, &s)
	case row.Refusal == nil || !errors.As(err, &never):
		res.Surprise = err.Error()
	default:
		res.Why, res.By, res.Words = row.Refusal.Why, row.Refusal.By, row.Refusal.Words
		res.Surprise = row.Refusal.check(err, slices.Concat(heard["alpha"], heard["beta"]))
	}
	if err := errors.Join(m.forget(t.Context()), m.wire.row(t.Context())); err != nil {
		res.Surprise = strings.TrimSpace(res.Surprise + " " + err.Error())
	}
	if res.Surprise != "" {
		for _, h := range []*host{m.alpha, m.beta} {
			tell(t, "strongSwan of "+h.Name(), heard[h.Name()])
			tell(t, h.Name(), h.log.take())
		}
	}
	return res
}

// covered checks that a row's traffic is on the wire as ESP, and that its text is
// to be read there if, and only if, ESP does not encrypt.
func (m *matrix) covered(row *Row, s *seen) string {
	switch {
	case s.ESP == 0:
		return "no packet of ESP on the wire"
	case s.IKE == 0:
		return "no packet of IKE on the wire"
	case s.Readable != row.null():
		return fmt.Sprintf("the payload is readable on the wire: %v, and ESP encrypts: %v", s.Readable, !row.null())
	}
	return ""
}

// setupError is a failure before the first byte: a refusal, perhaps.
type setupError struct{ err error }

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

// peers are the hosts' settings for each other.
func (m *matrix) peers(c *Case, port uint16) (a, b ipsec.Peer, err error) {
	p, err := c.profile()
	if err != nil {
		return a, b, err
	}
	here, there := m.alpha.at(c), m.beta.at(c)
	idA, idB := c.identities(here.String(), there.String())
	a = ipsec.Peer{Name: "beta", Local: here, Remote: there, LocalID: idA, RemoteID: idB, Port: port, Profile: p, OnDemand: true}
	b = ipsec.Peer{Name: "alpha", Local: there, Remote: here, LocalID: idB, RemoteID: idA, Port: port, Profile: p, OnDemand: true}
	if c.Auth == psk {
		a.PSK = ipsec.GenerateSecret()
		b.PSK = a.PSK
		return a, b, nil
	}
	return a, b, m.give(c.Auth, &a, &b)
}

// try brings a stream up, has traffic go through, deletes the child and has
// traffic go through again.
func (m *matrix) try(ctx context.Context, row *Row, port uint16) (*Agreed, error) {
	c := &row.Case
	a, b, err := m.peers(c, port)
	if err != nil {
		return nil, err
	}
	for h, p := range map[*host]ipsec.Peer{m.alpha: a, m.beta: b} {
		if err := h.m.AddPeer(ctx, p); err != nil {
			return nil, &setupError{err}
		}
	}
	to := netip.AddrPortFrom(b.Local, port)
	srv, err := m.beta.serveEcho(ctx, to)
	if err != nil {
		return nil, err
	}
	defer srv.close()
	dialled, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	conn, err := m.alpha.dial(dialled, a.Local, to)
	if err != nil {
		return nil, &setupError{errors.Join(err, srv.refusal(), m.blocked(ctx, to))}
	}
	defer conn.Close()
	m.rows++
	if err := echo(conn, 2*m.rows); err != nil {
		return nil, err
	}
	agreed, err := m.returns(ctx, c, conn, &a, &b)
	if err != nil {
		return nil, err
	}
	if err := m.hangUp(conn, port); err != nil {
		return nil, err
	}
	srv.close()
	if row.Stream {
		if err := stream(ctx, m.alpha, m.beta, a.Local, to); err != nil {
			return nil, err
		}
		err = m.drained(port)
	}
	return agreed, err
}

// returns checks the SAs at both ends, deletes the child at one of them and
// checks that the same stream goes on over another child.
func (m *matrix) returns(ctx context.Context, c *Case, conn *transport.Conn, a, b *ipsec.Peer) (*Agreed, error) {
	var last *Agreed
	deleted := map[string]bool{} // children, by their SPI
	look := func(returned bool) error {
		for _, e := range []struct {
			h     *host
			peer  *ipsec.Peer
			child string
		}{{m.alpha, a, "beta-out"}, {m.beta, b, "alpha-in"}} {
			all, err := e.h.children(ctx, e.child)
			if err != nil {
				return err
			}
			var in, out uint64
			for i := range all {
				sa, child := &all[i].sa, &all[i].child
				spi := e.h.Name() + child.SPIIn
				switch {
				case deleted[spi] && child.IsInstalled():
					return fmt.Errorf("%s still has the child with SPI %s, which was deleted", e.h.Name(), child.SPIIn)
				case deleted[spi]:
					continue
				case !returned:
					deleted[spi] = true
				}
				last = agreed(sa, child)
				if err := errors.Join(last.check(c, m.plane, returned), checkIdentities(sa, e.peer.LocalID, e.peer.RemoteID)); err != nil {
					return fmt.Errorf("%s: %w", e.h.Name(), err)
				}
				in, out = in+child.BytesIn, out+child.BytesOut
			}
			if in < payloadSize || out < payloadSize {
				return fmt.Errorf("%s's child has carried %d bytes in and %d out, less than what came through", e.h.Name(), in, out)
			}
		}
		return nil
	}
	if err := look(false); err != nil {
		return nil, err
	}
	h, peer := m.alpha, "beta"
	if m.rows%2 == 0 {
		h, peer = m.beta, "alpha"
	}
	if n, err := h.m.DeleteChild(ctx, peer, ""); err != nil || n == 0 {
		return nil, fmt.Errorf("delete on %s: %d children, %w", h.Name(), n, err)
	}
	if err := echo(conn, 2*m.rows+1); err != nil {
		return nil, fmt.Errorf("after the child was deleted: %w", err)
	}
	return last, look(true)
}

// hangUp ends a connection in good order, and waits until nothing of it can be
// sent any more: when the peer is removed its guard goes, too.
func (m *matrix) hangUp(conn *transport.Conn, port uint16) error {
	return errors.Join(conn.Close(), m.drained(port))
}

func (m *matrix) drained(port uint16) error {
	for _, h := range []*host{m.alpha, m.beta} {
		err := until("the sockets of "+h.Name()+" are done", func() bool {
			n, err := h.sockets(port)
			return err == nil && n == 0
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// knock is how long a connection is tried that must not come about: most are
// refused by the kernel at once, and some go into a void.
const knock = 300 * time.Millisecond

// blocked checks that without an SA a connection does not even begin.
func (m *matrix) blocked(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, knock)
	defer cancel()
	c, err := m.alpha.Dial(ctx, to)
	if err != nil {
		return nil
	}
	c.Close()
	return errors.New("a clear connection to the peer was made while there was no SA")
}

// forget removes the peers.
func (m *matrix) forget(ctx context.Context) error {
	var errs []error
	for _, h := range []*host{m.alpha, m.beta} {
		for _, p := range h.m.Peers() {
			errs = append(errs, h.m.RemovePeer(ctx, p.Peer))
		}
	}
	return errors.Join(errs...)
}

// control takes the guards down and ends strongSwan: the same traffic goes in
// clear, and the check of the wire has to find it.
func (m *matrix) control(ctx context.Context, port uint16) (int, error) {
	c := Case{}.withDefaults()
	a, b, err := m.peers(&c, port)
	if err != nil {
		return 0, err
	}
	for h, p := range map[*host]ipsec.Peer{m.alpha: a, m.beta: b} {
		if err := h.m.AddPeer(ctx, p); err != nil {
			return 0, err
		}
	}
	to := netip.AddrPortFrom(b.Local, port)
	srv, err := m.beta.serveEcho(ctx, to)
	if err != nil {
		return 0, err
	}
	defer srv.close()
	conn, err := m.alpha.dial(ctx, a.Local, to)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for h, peer := range map[*host]string{m.alpha: "beta", m.beta: "alpha"} {
		if err := h.m.RemoveGuard(ctx, peer); err != nil {
			return 0, err
		}
	}
	if _, err := m.wire.look(); err != nil {
		return 0, err
	}
	for _, h := range []*host{m.alpha, m.beta} {
		if err := h.StopCharon(ctx); err != nil {
			return 0, err
		}
	}
	if err := echo(conn, 1); err != nil {
		return 0, err
	}
	if err := m.hangUp(conn, port); err != nil {
		return 0, err
	}
	s, err := m.wire.look()
	if err != nil {
		return 0, err
	}
	if err := s.check(port); !errors.Is(err, ErrClear) || !s.Readable {
		return 0, fmt.Errorf("without guard and SA: %v, readable %v; the check of the wire cannot fail", err, s.Readable)
	}
	return s.Clear[port], nil
}

func kernelRelease() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}
