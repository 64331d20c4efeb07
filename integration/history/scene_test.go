package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/history/register"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
)

const (
	diskBlocks = 64
	diskSize   = diskBlocks * blockSize
)

// disk is an export of beta's that alpha attaches. All its sectors carry its number.
type disk struct {
	number uint8
	name   string
	path   string
}

// scene is two daemons, alpha with the clients and beta with the disks, and the path
// between them.
type scene struct {
	*testing.T
	dir         string
	rec         *recorder
	alpha, beta *proc
	wire        *wire
	disks       []*disk

	mu      sync.Mutex
	clients []*client
}

// newScene starts the daemons. setUp may change them before.
func newScene(t *testing.T, off checks.Check, setUp func(s *scene)) *scene {
	t.Helper()
	if testing.Short() {
		t.Skip("daemons that are killed and storage that is taken away are no short test")
	}
	s := newHosts(t, off)
	s.beta.write("ironwarp.yaml", mainFile(t, s.beta.port))
	s.wire = newWire(t, fmt.Sprintf("127.0.0.1:%d", s.beta.port))
	s.newAlpha(s.wire.port())
	s.beta.write("peers.d/alpha.yaml", peerFile("alpha", s.alpha.port))
	if setUp != nil {
		setUp(s)
	}
	s.beta.start()
	s.alpha.start()
	return s
}

// newHosts makes a scene of two daemons that are not configured yet.
func newHosts(t *testing.T, off checks.Check) *scene {
	t.Helper()
	dir, err := os.MkdirTemp("", "iwh") // the name of a Unix socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &scene{T: t, dir: dir, rec: newRecorder()}
	t.Cleanup(func() {
		for _, c := range s.clients {
			c.kill()
		}
	})
	s.alpha, s.beta = s.newProc("alpha", off), s.newProc("beta", off)
	return s
}

// newAlpha configures alpha, whose peer is at a port of this host.
func (s *scene) newAlpha(port uint16) {
	s.Helper()
	s.alpha.write("ironwarp.yaml", mainFile(s, s.alpha.port))
	s.alpha.write("peers.d/beta.yaml", peerFile("beta", port))
}

func mainFile(t testing.TB, port uint16) string {
	t.Helper()
	return fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n", port, iwarptest.FreeUDPPort(t))
}

func peerFile(name string, port uint16) string {
	return fmt.Sprintf("name: %s\naddress: 127.0.0.1\nport: %d\nprotection: loopback\ntransport: tcp\n", name, port)
}

func (s *scene) newProc(name string, off checks.Check) *proc {
	s.Helper()
	p := &proc{t: s.T, name: name, dir: filepath.Join(s.dir, name), port: iwarptest.FreePort(s), off: off}
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("log of %s:\n%s", name, p.logTail())
		}
		p.kill()
	})
	return p
}

// newDisk makes a file and declares it as an export.
func (s *scene) newDisk(name, path string) *disk {
	s.Helper()
	d := &disk{number: uint8(len(s.disks) + 1), name: name, path: path}
	s.disks = append(s.disks, d)
	if err := os.WriteFile(path, make([]byte, diskSize), 0o600); err != nil {
		s.Fatal(err)
	}
	s.export(d, path)
	return d
}

// newFile is a file of a disk's size that is full of another disk's sectors.
func (s *scene) newFile(path string, number uint8) {
	s.Helper()
	b := make([]byte, diskSize)
	for i := range uint32(diskBlocks) {
		fillBlock(b[i*blockSize:(i+1)*blockSize], number, i, i+1)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		s.Fatal(err)
	}
}

// export declares an export of a file or device.
func (s *scene) export(d *disk, path string) {
	s.beta.write("exports.d/"+d.name+".yaml", fmt.Sprintf("name: %s\npath: %s\nallow: [alpha]\n", d.name, path))
}

// attach attaches a disk to alpha, as soon as beta permits it.
func (s *scene) attach(d *disk) {
	s.Helper()
	s.rec.attached(d.number)
	until(s.T, "beta offers "+d.name, func() bool {
		_, err := s.alpha.api.Attach(s.Context(), api.AttachRequest{Peer: "beta", Export: d.name}, nil)
		return err == nil
	})
}

// reattach detaches disks by force, and attaches them again.
func (s *scene) reattach(disks ...*disk) {
	s.Helper()
	for _, d := range disks {
		end := s.rec.excuse(d.number, "the disk is detached by force")
		if err := s.alpha.api.Detach(s.Context(), "beta", d.name, true); err != nil {
			s.Fatal(err)
		}
		end()
	}
	for _, d := range disks {
		s.attach(d)
	}
}

// attachment is how alpha sees a disk.
func (s *scene) attachment(d *disk) api.Attachment {
	s.Helper()
	st, err := s.alpha.api.Status(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	i := slices.IndexFunc(st.Attachments, func(a api.Attachment) bool { return a.Export == d.name })
	if i < 0 {
		return api.Attachment{}
	}
	return st.Attachments[i]
}

// inFlight is how many I/Os alpha has under way, those that wait for the path among
// them.
func (s *scene) inFlight() (n int) {
	s.Helper()
	st, err := s.alpha.api.Status(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, x := range st.Sessions {
		n += x.InFlight
	}
	return n
}

// dial connects a client to a disk.
func (s *scene) dial(d *disk) *client {
	s.Helper()
	c, err := s.tryDial(d)
	if err != nil {
		s.Fatalf("connect to the NBD socket of %s: %v", d.name, err)
	}
	return c
}

func (s *scene) tryDial(d *disk) (*client, error) {
	c, err := dialClient(s.rec, d.number, filepath.Join(s.alpha.dir, "run", "nbd", "beta-"+d.name+".sock"), d.name)
	if err == nil {
		s.mu.Lock()
		s.clients = append(s.clients, c)
		s.mu.Unlock()
	}
	return c, err
}

// killClient ends a client.
func (s *scene) killClient(c *client) {
	c.kill()
	s.rec.fault("client killed", false)
}

// wait waits for operations and returns whether all have succeeded.
func (s *scene) wait(ops ...*op) bool {
	s.Helper()
	ok := true
	for _, o := range ops {
		until(s.T, "the end of "+o.String(), o.ended)
		ok = ok && o.out == succeeded
	}
	return ok
}

// must is wait where all have to succeed.
func (s *scene) must(ops ...*op) {
	s.Helper()
	if !s.wait(ops...) {
		for _, o := range ops {
			if o.out != succeeded {
				s.Fatalf("%v: outcome %d, %v", o, o.out, o.errno)
			}
		}
	}
}

// writeAll starts a write to each of the first n blocks.
func (c *client) writeAll(n uint32) (ops []*op) {
	for b := range n {
		ops = append(ops, c.start(opWrite, b, 1, false))
	}
	return ops
}

func (c *client) readAll(n uint32) (ops []*op) {
	for b := range n {
		ops = append(ops, c.start(opRead, b, 1, false))
	}
	return ops
}

// audit reads the file under a disk as its administrator would, without any daemon, and
// adds that read to the history.
func (s *scene) audit(d *disk, path string) {
	s.Helper()
	s.auditFrom(d, path, 0)
}

// auditFrom is audit of a small disk's number of blocks, from block first on.
func (s *scene) auditFrom(d *disk, path string, first uint32) {
	s.Helper()
	c := &session{number: 0, disk: d.number, epoch: 1 << 30, start: s.rec.now(), end: register.Never}
	for b := first; b < first+diskBlocks; b++ {
		o := &op{kind: opRead, disk: d.number, block: b, blocks: 1, conn: c}
		s.rec.invoke(o)
		p := make([]byte, blockSize)
		f, err := os.Open(path)
		if err == nil {
			_, err = f.ReadAt(p, int64(b)*blockSize)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			s.Fatal(err)
		}
		s.rec.complete(o, succeeded, 0, p)
	}
}

// scenario is a fault that a check prevents.
type scenario struct {
	name  string
	check checks.Check
	run   func(t *testing.T, off checks.Check) *scene
}

// prove runs scenarios: with the product as it is the history has to be right; without
// the check the checker has to find the fault.
func prove(t *testing.T, all ...scenario) {
	t.Helper()
	for _, x := range all {
		t.Run(x.name, func(t *testing.T) {
			if checks.Weakened && x.check == checks.None {
				t.Skip("what this shows is no check that could be switched off")
			}
			s := x.run(t, x.check)
			wrong := s.rec.judge(t, !checks.Weakened)
			t.Logf("%v; faults: %v", s.rec.counts(), s.rec.faults)
			if len(s.rec.faults) == 0 || s.rec.counts().acknowledged == 0 {
				t.Error("nothing has happened that could go wrong")
			}
			switch {
			case len(wrong) > 0 && !checks.Weakened:
				for _, w := range wrong[:min(len(wrong), 10)] {
					t.Error(w)
				}
			case len(wrong) == 0 && checks.Weakened:
				t.Error("the checker finds nothing wrong, although the check is switched off")
			case checks.Weakened:
				t.Logf("found: %s (and %d more)", wrong[0], len(wrong)-1)
			}
		})
	}
}

func must[T any](x T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}
