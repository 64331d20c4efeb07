package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// systemd is its store of descriptors, and what else it is told. It always listens: a daemon waits, also at its end, while ten messages
// are unread.
type systemd struct {
	t *testing.T
	l *net.UnixConn

	mu    sync.Mutex // guards what is below
	store []*os.File
	told  []string // that next has not returned
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	path := filepath.Join(shortDir(t), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	s := &systemd{t: t, l: l}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve()
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		s.empty()
	})
	return s
}

func (s *systemd) serve() {
	b, oob := make([]byte, 4096), make([]byte, 4096)
	for {
		n, on, _, _, err := s.l.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		var fds []int
		if msgs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(msgs) == 1 {
			fds, _ = unix.ParseUnixRights(&msgs[0])
		}
		tags := strings.Split(string(b[:n]), "\n")
		name := ""
		for _, tag := range tags {
			if v, ok := strings.CutPrefix(tag, "FDNAME="); ok {
				name = v
			}
		}
		s.mu.Lock()
		switch tags[0] {
		case "FDSTORE=1":
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				s.store = append(s.store, os.NewFile(uintptr(fd), name))
			}
			fds = nil
		case "FDSTOREREMOVE=1":
			s.store = slices.DeleteFunc(s.store, func(f *os.File) bool { return f.Name() == name && f.Close() == nil })
		default:
			s.told = append(s.told, string(b[:n]))
		}
		s.mu.Unlock()
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

// next waits for what it is told next, of all but descriptors.
func (s *systemd) next() (text string) {
	s.t.Helper()
	eventually(s.t, "systemd is told something", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.told) == 0 {
			return false
		}
		text, s.told = s.told[0], s.told[1:]
		return true
	})
	return text
}

// passed are copies of what is stored, as a service gets them.
func (s *systemd) passed() []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []*os.File{}
	for _, f := range s.store {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, os.NewFile(uintptr(fd), f.Name()))
	}
	slices.Reverse(out)
	return out
}

// put adds a file of a text, in the place of another one at i.
func (s *systemd) put(i int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.store[i].Name()
	s.store[i].Close()
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		s.t.Fatal(err)
	}
	s.store[i] = os.NewFile(uintptr(fd), name)
	if _, err := s.store[i].WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *systemd) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.store)
}

func (s *systemd) empty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.store {
		f.Close()
	}
	s.store = nil
}

// patient has a daemon of a host wait at its end for what NBD clients have requested, and not cut them off after two seconds, which a
// busy machine may take.
func (h *host) patient() {
	h.drain = waitTime
	h.again()
}

// restart has another daemon in the place of the one that runs.
func (s *systemd) restart(h *host) {
	h.stop()
	h.passed = s.passed()
	h.start()
}

// TestNBDClientsOutliveTheDaemon: clients that write and read without a pause, several at once, notice nothing of twenty restarts of the
// attaching daemon but that some answers take longer; nothing is lost, done twice or in another order, and systemd keeps nothing
// that has been taken over.
func TestNBDClientsOutliveTheDaemon(t *testing.T) {
	sd := newSystemd(t)
	alpha, beta, image := pair(t, 4<<20)
	alpha.patient()
	first := alpha.attach("disk")
	clients := []*nbdtest.Client{first, alpha.nbd("disk"), alpha.nbd("disk")}
	const blocks, size = 64, 4096
	stop := make(chan struct{})
	rounds := make(chan struct{}, 1)
	var all sync.WaitGroup
	for who, c := range clients {
		all.Go(func() {
			for round := uint64(1); ; round++ {
				select {
				case <-stop:
					return
				case rounds <- struct{}{}:
				default:
				}
				for typ := uint16(cmdWrite); ; typ = cmdRead {
					for b := range uint64(blocks) {
						var payload []byte
						if typ == cmdWrite {
							payload = bytes.Repeat(binary.BigEndian.AppendUint64(nil, round<<16|b), size/8)
						}
						if err := c.Send(0, typ, b, (uint64(who)*blocks+b)*size, size, payload); err != nil {
							t.Errorf("client %d, round %d: %v", who, round, err)
							return
						}
					}
					for range blocks {
						r, err := c.Receive(func(uint64) int { return map[uint16]int{cmdRead: size}[typ] })
						if err != nil || r.Error != 0 {
							t.Errorf("client %d, round %d: %+v, %v", who, round, r, err)
							return
						}
						if typ == cmdRead && binary.BigEndian.Uint64(r.Data) != round<<16|r.Cookie {
							t.Errorf("client %d, round %d, block %d: %#x", who, round, r.Cookie, r.Data[:8])
						}
					}
					if typ == cmdRead {
						break
					}
				}
			}
		})
	}
	for i := range 20 {
		for range 5 {
			<-rounds
		}
		if sd.restart(alpha); t.Failed() {
			t.Fatalf("restart %d\n%s", i, alpha.log)
		}
	}
	eventually(t, "the clients are taken over", func() bool { return sd.count() == 0 })
	close(stop)
	all.Wait()
	ok(t, first, cmdFlush, 0, 0, nil)
	if _, err := os.Stat(image); err != nil {
		t.Fatal(err)
	}
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Do(0, cmdRead, 0, 512, nil); err == nil {
		t.Error("a client is served after its disk was detached")
	}
	_ = beta
}

// TestMoreNBDClientsThanSystemdKeeps: of more clients than there is room for, on several disks, those that have room go on with the next
// daemon. The others are disconnected, which the log says of each, and may connect again.
func TestMoreNBDClientsThanSystemdKeeps(t *testing.T) {
	const disks, each, room, size = 3, 88, 256, 512 // a disk has 128 clients at most
	sd := newSystemd(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	alpha.patient()
	var clients []*nbdtest.Client
	for d := range disks {
		name := fmt.Sprintf("disk%d", d)
		beta.export(name, beta.image(name+".img", 1<<20), false)
		clients = append(clients, alpha.attach(name))
		for range each - 1 {
			clients = append(clients, alpha.nbd(name))
		}
	}
	content := func(i int) []byte { return bytes.Repeat(binary.BigEndian.AppendUint64(nil, uint64(i)), size/8) }
	for i, c := range clients {
		ok(t, c, cmdWrite, uint64(i%each)*size, size, content(i))
	}
	alpha.stop()
	if n := sd.count(); n != 2*room {
		t.Errorf("systemd has %d descriptors; want: %d", n, 2*room)
	}
	alpha.passed = sd.passed()
	alpha.start()
	goOn := 0
	for i, c := range clients {
		r, err := c.Do(0, cmdRead, uint64(i%each)*size, size, nil)
		switch {
		case err != nil:
		case r.Error == 0 && bytes.Equal(r.Data, content(i)):
			goOn++
		default:
			t.Errorf("client %d: %+v", i, r)
		}
	}
	if n := strings.Count(alpha.log.String(), "an NBD client has to connect again"); goOn != room || n != len(clients)-room {
		t.Errorf("%d clients go on, and the log says of %d that they do not; want: %d and %d", goOn, n, room, len(clients)-room)
	}
	eventually(t, "systemd keeps nothing that was taken over", func() bool { return sd.count() == 0 })
	for d := range disks {
		name := fmt.Sprintf("disk%d", d)
		if r, err := alpha.nbd(name).Do(0, cmdRead, 0, size, nil); err != nil || r.Error != 0 || !bytes.Equal(r.Data, content(d*each)) {
			t.Errorf("a new client of %s: %+v, %v", name, r, err)
		}
	}
}

// TestClientsThatCannotGoOn: what is kept of a client is checked by who takes it over. Those that are refused are disconnected and
// forgotten, and the disk serves others.
func TestClientsThatCannotGoOn(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(t *testing.T, sd *systemd, alpha, beta *host)
		said  string
		back  bool // the disk comes back
	}{
		"garbage": {func(_ *testing.T, sd *systemd, _, _ *host) { sd.put(1, "{garbage") }, "its state", true},
		"another version": {func(_ *testing.T, sd *systemd, _, _ *host) {
			sd.put(1, `{"version": 99, "disk": "/beta/disk", "client": {"export": "disk"}}`)
		}, "version 99", true},
		"no state": {func(_ *testing.T, sd *systemd, _, _ *host) {
			sd.mu.Lock()
			defer sd.mu.Unlock()
			sd.store[1].Close()
			sd.store = sd.store[:1]
		}, "its state has 0 bytes", true},
		"no connection": {func(_ *testing.T, sd *systemd, _, _ *host) {
			sd.mu.Lock()
			defer sd.mu.Unlock()
			sd.store[0].Close()
			sd.store = sd.store[1:]
		}, "its connection is gone", true},
		"a state that is too long": {func(_ *testing.T, sd *systemd, _, _ *host) { sd.put(1, strings.Repeat("x", 1<<20)) }, "bytes; 1 to", true},
		"another disk": {func(_ *testing.T, sd *systemd, _, _ *host) {
			sd.put(1, `{"version": 1, "disk": "/beta/other", "client": {"export": "other"}}`)
		}, "its disk is not attached any more", true},
		"one descriptor more": {func(t *testing.T, sd *systemd, _, _ *host) {
			fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			sd.mu.Lock()
			defer sd.mu.Unlock()
			sd.store = append(sd.store, os.NewFile(uintptr(fd), sd.store[0].Name()))
		}, "something else was kept beside it", true},
		"a disk that was larger": {func(_ *testing.T, sd *systemd, _, _ *host) {
			sd.put(1, `{"version": 1, "disk": "/beta/disk", "client": {"export": "disk", "size": 99999744, "flags": 1, "min_block": 512}}`)
		}, "cannot go on", true},
		"nothing is attached any more": {func(t *testing.T, _ *systemd, alpha, _ *host) {
			if err := os.Remove(filepath.Join(alpha.dir, "state", "attachments.json")); err != nil {
				t.Fatal(err)
			}
		}, "its disk is not attached any more", false},
	} {
		t.Run(name, func(t *testing.T) {
			sd := newSystemd(t)
			alpha, beta, _ := pair(t, 1<<20)
			alpha.patient()
			c := alpha.attach("disk")
			ok(t, c, cmdRead, 0, 512, nil)
			alpha.stop()
			if n := sd.count(); n != 2 {
				t.Fatalf("%d descriptors are kept, want 2", n)
			}
			x.spoil(t, sd, alpha, beta)
			alpha.passed = sd.passed()
			alpha.start()
			sd.mu.Lock()
			for _, f := range sd.store { // systemd has told the daemon to have them
				f.Close()
			}
			sd.mu.Unlock()
			if _, err := c.Do(0, cmdRead, 0, 512, nil); err == nil {
				t.Error("the client goes on")
			}
			if !strings.Contains(alpha.log.String(), x.said) {
				t.Errorf("the log does not say %q:\n%s", x.said, alpha.log)
			}
			if x.back {
				alpha.attach("disk")
			}
		})
	}
}

// TestClientThatSystemdKeepsIsNotServedOn: where the store cannot be told to forget a client, a later daemon would go on with what that had
// sent long ago: the client is disconnected, for whoever has its connection.
func TestClientThatSystemdKeepsIsNotServedOn(t *testing.T) {
	sd := newSystemd(t)
	alpha, _, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	alpha.stop()
	alpha.passed = sd.passed()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	alpha.start()
	if _, err := c.Do(0, cmdRead, 0, 512, nil); err == nil {
		t.Error("the client goes on")
	}
	alpha.attach("disk")
}

// A user who has no part in a ULP any more when the next daemon comes is not served on, and one who still has is.
func TestUsersOfClientsAreAskedForAgain(t *testing.T) {
	sd := newSystemd(t)
	alpha, _ := twoUsers(t)
	alpha.patient()
	clients := map[uint32]*nbdtest.Client{}
	for uid, disk := range map[uint32]string{alice: "a", bob: "b"} {
		at, err := alpha.as(uid).Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: disk}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if clients[uid], err = alpha.nbdAs(at, uid); err != nil {
			t.Fatal(err)
		}
		ok(t, clients[uid], cmdWrite, 0, 512, bytes.Repeat([]byte{byte(uid)}, 512))
	}
	alpha.stop()
	if n := sd.count(); n != 4 {
		t.Fatalf("%d descriptors are kept, want 4", n)
	}
	text, err := os.ReadFile(alpha.conf)
	if err != nil {
		t.Fatal(err)
	}
	alpha.write("ironwarp.yaml", strings.Replace(string(text), fmt.Sprintf("name: bob, users: [%d]", bob), fmt.Sprintf("name: bob, users: [%d]", carol), 1))
	alpha.passed = sd.passed()
	alpha.start()
	sd.empty()
	if r, err := clients[alice].Do(0, cmdRead, 0, 512, nil); err != nil || r.Error != 0 {
		t.Errorf("alice: %+v, %v", r, err)
	}
	if _, err := clients[bob].Do(0, cmdRead, 0, 512, nil); err == nil {
		t.Error("bob is served on")
	}
}
