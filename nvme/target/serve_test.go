package target_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/nvme/target"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	subsystemNQN = "nqn.2026-01.org.ironwarp:disk"
	hostNQN      = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"
	diskSize     = 4 << 20
)

// served is a server on loopback, whose subsystem has one namespace on a file.
type served struct {
	t      testing.TB
	ctx    context.Context
	at     netip.AddrPort
	via    *transport.Config // what hosts dial with
	file   string
	store  *backing.Store
	ns     *target.Namespace
	server *target.Server
	ulp    *verbs.ULP
	stop   func()
}

// serve serves a subsystem. medium, if not nil, is put before the file.
func serve(t testing.TB, cfg target.Config, sub target.Subsystem, medium func(target.Medium) target.Medium) *served {
	t.Helper()
	loopback := &transport.Config{Protector: transport.LoopbackOnly()}
	return serveAt(t, netip.MustParseAddrPort("127.0.0.1:0"), loopback, loopback, cfg, sub, medium)
}

// serveInMemory serves a subsystem to hosts in memory, for tests by a clock that waits for everybody (testing/synctest).
func serveInMemory(t testing.TB, cfg target.Config) *served {
	t.Helper()
	fabric := verbstest.New()
	here := fabric.Host("target")
	return serveAt(t, here.Addr(0), here.Transport(), fabric.Host("host").Transport(), cfg, target.Subsystem{}, nil)
}

// serveAt serves a subsystem at an address, of which ours is the target's end and theirs that of its hosts.
func serveAt(t testing.TB, at netip.AddrPort, ours, theirs *transport.Config, cfg target.Config, sub target.Subsystem, medium func(target.Medium) target.Medium) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &served{t: t, ctx: ctx, via: theirs, file: filepath.Join(t.TempDir(), "disk"), server: target.NewServer(cfg)}
	if err := os.WriteFile(s.file, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.store, err = backing.Open(s.file, backing.Options{}); err != nil {
		t.Fatal(err)
	}
	m := target.Medium(s.store)
	if medium != nil {
		m = medium(m)
	}
	if s.ns, err = target.NewNamespace(target.NamespaceConfig{Medium: m, Reservations: s.file + ".reservations"}); err != nil {
		t.Fatal(err)
	}
	sub.NQN, sub.Serial = subsystemNQN, "1"
	if err := s.server.Set(sub); err != nil {
		t.Fatal(err)
	}
	if err := s.server.Attach(subsystemNQN, 1, s.ns); err != nil {
		t.Fatal(err)
	}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if s.ulp, err = dev.NewULP("nvme", verbs.ULPConfig{}); err != nil {
		t.Fatal(err)
	}
	ln, err := dev.Listen(ctx, at, verbs.ListenConfig{Transport: ours})
	if err != nil {
		t.Fatal(err)
	}
	s.at = ln.Addr()
	over := make(chan error, 1)
	go func() { over <- s.server.Serve(ctx, ln, s.ulp) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if u := s.ulp.Usage(); u != (verbs.Limits{}) {
			t.Errorf("the RNIC is left with %+v", u)
		}
		dev.Close()
		<-s.server.Detach(subsystemNQN, 1)
		s.store.Close()
	}
	t.Cleanup(s.stop)
	return s
}

// id is a host identifier.
func id(n byte) block.ID { return block.ID{15: n} }

// host connects a host.
func (s *served) host(n byte) *nvmetest.Host {
	s.t.Helper()
	h, err := nvmetest.Connect(s.ctx, s.at, s.via, subsystemNQN, hostNQN, id(n))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(h.Admin.Close)
	return h
}

// queue connects a host and a queue of its controller.
func (s *served) queue(n byte) (*nvmetest.Host, *nvmetest.Queue) {
	s.t.Helper()
	h := s.host(n)
	return h, s.add(h, 1)
}

func (s *served) add(h *nvmetest.Host, qid uint16) *nvmetest.Queue {
	s.t.Helper()
	q, err := h.Queue(s.ctx, qid)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(q.Close)
	return q
}

// rw is a command on blocks of namespace 1.
func rw(q *nvmetest.Queue, op nvme.Opcode, slba uint64, blocks uint32) nvme.Command {
	c := q.New(op)
	c.SetNSID(1)
	c.SetRange(slba, blocks)
	return c
}

// want fails the test unless a command ended as it should.
func want(t testing.TB, what string, e nvme.Completion, err error, st nvme.Status) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if e.Status.Code() != st.Code() {
		t.Fatalf("%s: %v, not %v", what, e.Status, st)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for !f() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(what)
		}
	}
}
