package handover

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/nbd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unitsLimit is how many descriptors systemd keeps of the service.
func unitsLimit(t *testing.T) int {
	t.Helper()
	unit, err := os.ReadFile("../../packaging/ironwarp.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "FileDescriptorStoreMax="); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the unit says nothing of FileDescriptorStoreMax")
	return 0
}

// systemd keeps descriptors, as many as the unit allows. It closes what is beyond, and tells the service nothing of that.
type systemd struct {
	t    *testing.T
	path string
	most int
	done chan struct{}
	read chan struct{} // gets one when all is read that was sent before an empty message

	mu    sync.Mutex // guards the fields below it
	store []*os.File
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	s := &systemd{t: t, path: filepath.Join(t.TempDir(), "notify"), most: unitsLimit(t), done: make(chan struct{}), read: make(chan struct{})}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		b, oob := make([]byte, 4096), make([]byte, 4096)
		for {
			n, on, _, _, err := l.ReadMsgUnix(b, oob)
			if err != nil {
				return
			}
			if n == 0 {
				s.read <- struct{}{}
				continue
			}
			s.take(string(b[:n]), oob[:on])
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-s.done
		for _, f := range s.store { // unlocked: all has ended
			f.Close()
		}
	})
	return s
}

func (s *systemd) take(text string, oob []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		s.t.Error(err)
	}
	_, name, _ := strings.Cut(text, "FDNAME=")
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			s.t.Error(err)
		}
		for _, fd := range fds {
			if !strings.HasPrefix(text, "FDSTORE=1") || len(s.store) == s.most {
				unix.Close(fd)
				continue
			}
			unix.CloseOnExec(fd)
			s.store = append(s.store, os.NewFile(uintptr(fd), name))
		}
	}
}

// passed are copies of what is stored, as the next service gets them.
func (s *systemd) passed() (all []*os.File) {
	s.t.Helper()
	// A store does not wait for more than barrierTime until what it has sent is read.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(nil); err != nil {
		s.t.Fatal(err)
	}
	<-s.read
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.store {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, os.NewFile(uintptr(fd), f.Name()))
	}
	return all
}

// keep has a store keep that many clients of a disk, and returns how many it says that it has kept.
func keep(t *testing.T, s *Store, disk string, clients int) (kept int) {
	t.Helper()
	for range clients {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[0]), "client")
		nc, err := net.FileConn(f)
		f.Close()
		unix.Close(fds[1])
		if err != nil {
			t.Fatal(err)
		}
		if err = s.Keep(disk, nc, nbd.Handed{Export: disk}); err == nil {
			kept++
		} else if !strings.Contains(err.Error(), "are kept already") {
			t.Error(err)
		}
		nc.Close()
	}
	return kept
}

// Of more clients than systemd's store holds, those that a daemon says it has kept are there for the next one, whole, and
// those beyond are refused; clients that this daemon has from the one before it, and has not taken yet, have places in the store too.
func TestNoMoreClientsAreKeptThanSystemdHolds(t *testing.T) {
	for _, x := range []struct {
		name         string
		before, more int // clients of a disk that is not back yet, and of another one
	}{{"at once", 0, maxClients + 10}, {"beside those that wait", maxClients - 50, 60}, {"beside as many as there may be", maxClients, 3}} {
		t.Run(x.name, func(t *testing.T) {
			sd := newSystemd(t)
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			first := Load(log, sd.path, nil)
			kept := keep(t, first, "away", x.before)
			first.Close()
			second := Load(log, sd.path, sd.passed())
			kept += keep(t, second, "here", x.more)
			second.Close()
			if kept != maxClients {
				t.Errorf("%d clients are kept, of %d; want: %d", kept, x.before+x.more, maxClients)
			}
			third := Load(log, sd.path, sd.passed())
			defer third.Close()
			away, here := third.Take("away"), third.Take("here")
			for _, c := range append(away, here...) {
				c.Conn.Close()
			}
			if len(away) != x.before || len(away)+len(here) != kept {
				t.Errorf("%d clients of the one disk and %d of the other are there; want: %d and %d", len(away), len(here), x.before, kept-x.before)
			}
		})
	}
}
