package ikematrix

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// firstPort is the first row's; each row has its own, so that a packet in clear
// names its row.
const firstPort = 20000

// Run tries the rows of the plan for this machine's data plane, each as a test
// of its own, and returns the report; few has fewer rows, see Plan. It skips the
// test where no lab can run.
func Run(t *testing.T, few bool) *Report {
	lab.Require(t)
	plane := esp.Userland
	if esp.ProbeKernel() == nil {
		plane = esp.Kernel
	}
	r := &Report{Plane: plane.String(), Kernel: kernelRelease()}
	rows := Plan(plane, few)
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
func (r *Report) series(t *testing.T, plane esp.Plane, rows []Row, port uint16, creds *credentials) uint16 {
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
	plane       esp.Plane
	alpha, beta *host
	wire        *wire
	creds       *credentials
	rows        uint64
}

func newMatrix(t *testing.T, plane esp.Plane, charon string, creds *credentials) (*matrix, error) {
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
		if err := errors.Join(err, left.check(), m.wire.end()); err != nil {
			t.Errorf("after the last row: %v", err)
		}
	})
	return m, err
}

// charonSetting is the part of strongswan.conf that a case needs.
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
	res.Clear = s.clear()
	wireErr := s.check()
	heard := map[string][]string{}
	for _, w := range words {
		heard[w.h.Name()] = w.lines()
	}
	var never *setupError
	switch {
	case wireErr != nil:
		res.Surprise = wireErr.Error()
	case err == nil && row.Refusal != nil:
		res.Surprise = fmt.Sprintf("it works, and should be refused: %s", row.Refusal.Why)
	case err == nil:
		res.Works, res.Agreed, res.Stream = true, a, row.Stream
		res.Surprise = cmp.Or(m.covered(&row, &s), exchanged(row.Exchange, slices.Concat(heard["alpha"], heard["beta"])))
	case row.Refusal == nil || !errors.As(err, &never):
		res.Surprise = err.Error()
	default:
		res.Why, res.By, res.Words = row.Refusal.Why, row.Refusal.By, row.Refusal.Words
		res.Surprise = row.Refusal.check(err, slices.Concat(heard["alpha"], heard["beta"]))
	}
	if err := m.forget(t.Context()); err != nil {
		res.Surprise = strings.TrimSpace(res.Surprise + " " + err.Error())
	}
	if errors.Is(err, guard.ErrNoIPv6) && wireErr == nil {
		t.Skip(err)
	}
	if res.Surprise != "" {
		for _, h := range []*host{m.alpha, m.beta} {
			logTail(t, "strongSwan of "+h.Name(), heard[h.Name()])
			logTail(t, h.Name(), h.log.take())
		}
	}
	return res
}

// covered checks that a row's traffic is on the wire as ESP, and that its text is
// readable there if, and only if, ESP does not encrypt.
func (m *matrix) covered(row *Row, s *seen) string {
	switch {
	case s.ESP == 0:
		return "no packet of ESP on the wire"
	case s.IKE == 0:
		return "no packet of IKE on the wire"
	case s.Readable() > 0 != row.null():
		return fmt.Sprintf("the payload is readable in %d packets of ESP, and ESP encrypts: %v", s.Readable(), !row.null())
	}
	return ""
}

// phase1 is what strongSwan's log calls IKEv1's exchanges of phase 1, which its lists
// do not have.
var phase1 = map[string]string{main1: "Main Mode", aggressive: "Aggressive Mode"}

// exchanged checks by strongSwan's log which exchange made the IKE SA.
func exchanged(want string, heard []string) string {
	asked := phase1[want] == ""
	for kind, name := range phase1 {
		if !slices.ContainsFunc(heard, func(line string) bool { return strings.Contains(line, "initiating "+name) }) {
			continue
		}
		if kind != want {
			return fmt.Sprintf("the IKE SA was made by %s, and the row is %s", name, want)
		}
		asked = true
	}
	if !asked {
		return "strongSwan did not begin " + phase1[want]
	}
	return ""
}

func kernelRelease() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}
