package programs

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
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

// told is the next message that a program gets.
func told(t *testing.T, program *net.UnixConn) string {
	t.Helper()
	var n [4]byte
	_, err := io.ReadFull(program, n[:])
	text := make([]byte, binary.BigEndian.Uint32(n[:]))
	if err == nil {
		_, err = io.ReadFull(program, text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A reload adds a peer while a program is being told, for the first time, with whom it may have streams.
func TestProgramIsToldLastWhatItMayHave(t *testing.T) {
	now := withAlice()
	p := newPrograms(t, func() *config.Config { return now })
	before, after := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var mu sync.Mutex // guards peers and reload
	peers := []netip.Addr{before}
	var others sync.WaitGroup
	reload := func() {
		mu.Lock()
		peers = append(peers, after)
		mu.Unlock()
		p.Reconsider()
	}
	once := sync.OnceFunc(func() {
		s := p.all()[0]
		if s.telling.TryLock() { // nothing keeps the reload from telling now
			s.telling.Unlock()
			reload()
		} else {
			others.Go(reload)
		}
	})
	p.cfg.Peers = func() map[string][]netip.Addr {
		mu.Lock()
		have := map[string][]netip.Addr{"beta": peers}
		again := len(peers) > 1
		mu.Unlock()
		if !again {
			once()
		}
		return have
	}
	user := local.User{UID: uid}
	who, ok := p.cfg.Consumers.Admit(user)
	if !ok {
		t.Fatal("a user of the ULP is refused")
	}
	ours, program := pair(t)
	others.Go(func() {
		defer who.Requests.Done()
		p.Serve(t.Context(), ours, user, who)
	})
	told(t, program)
	if last := told(t, program); !strings.Contains(last, after.String()) {
		t.Errorf("it is told last: %s", last)
	}
	program.Close()
	others.Wait()
}
