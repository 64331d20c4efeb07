package programs

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const uid = 4711

// newPrograms are those of a host whose configuration is now, with ULP alice.
func newPrograms(t *testing.T, now func() *config.Config) *Programs {
	users := local.NewConsumers(now)
	users.Add(t.Context(), now().ULPs[0], nil)
	return New(Config{Log: slog.New(slog.DiscardHandler), Config: now, Consumers: users, Peers: func() map[string][]netip.Addr { return nil }})
}

func withAlice() *config.Config {
	c := config.Default("")
	c.ULPs = []config.ULP{{Name: "alice", Users: []config.Account{{ID: uid, Name: "alice"}}, Peers: []string{"beta"}}}
	return c
}

// pair is a Unix connection and its two ends.
func pair(t *testing.T) (ours, program *net.UnixConn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

// A program has connected, and before it is among those that a reload reconsiders, the ULP of its user is removed.
func TestProgramThatConnectsDuringAReloadHasNoRightsThatWereTaken(t *testing.T) {
	now := withAlice()
	p := newPrograms(t, func() *config.Config { return now })
	user := local.User{UID: uid}
	who, ok := p.cfg.Consumers.Admit(user)
	if !ok {
		t.Fatal("a user of the ULP is refused")
	}
	now = config.Default("")
	who.EndRequests()
	p.cfg.Consumers.Remove(who.Consumer)
	p.Reconsider()

	ours, program := pair(t)
	var served sync.WaitGroup
	served.Go(func() {
		defer who.Requests.Done()
		p.Serve(t.Context(), ours, user, who)
	})
	if n, _ := program.Read(make([]byte, 1<<12)); n > 0 {
		t.Error("a program of a ULP that there is no more is told what it may have")
	}
	program.Close()
	served.Wait()
}
