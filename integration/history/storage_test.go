package history

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// storage is an ext4 on a loop device. Its power can be cut while the host runs on:
// what the file system has written to the device is in the image, and what is only in
// the page cache is not.
type storage struct {
	t     *testing.T
	image string
	dir   string // where it is mounted
	loop  string // device, "" while it is not there
}

const imageSize = 24 << 20

// noStorage is why there can be no storage here, "" if there can.
func noStorage() string {
	if os.Geteuid() != 0 {
		return "it mounts file systems, which takes root"
	}
	for _, name := range []string{"losetup", "mkfs.ext4", "fsfreeze"} {
		if _, err := exec.LookPath(name); err != nil {
			return name + " is missing (packages mount, e2fsprogs and util-linux)"
		}
	}
	if out, err := exec.Command("losetup", "--find").CombinedOutput(); err != nil {
		return "there are no loop devices: " + strings.TrimSpace(string(out))
	}
	return ""
}

func needStorage(t *testing.T) {
	t.Helper()
	if why := noStorage(); why != "" {
		t.Skip(why)
	}
}

func newStorage(t *testing.T, dir string) *storage {
	t.Helper()
	m := &storage{t: t, image: filepath.Join(dir, "image"), dir: filepath.Join(dir, "fs")}
	if err := os.WriteFile(m.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(m.image, imageSize); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	command(m.t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", m.image)
	m.mount()
	t.Cleanup(m.unmount)
	return m
}

// command runs a program and returns what it prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (m *storage) mount() {
	m.t.Helper()
	m.loop = command(m.t, "losetup", "--find", "--show", m.image)
	command(m.t, "mount", "-t", "ext4", m.loop, m.dir)
}

func (m *storage) unmount() {
	m.t.Helper()
	if m.loop == "" {
		return
	}
	command(m.t, "umount", m.dir)
	command(m.t, "losetup", "--detach", m.loop)
	m.loop = ""
}

// freeze makes all writes wait, until thaw is called.
func (m *storage) freeze() (thaw func()) {
	m.t.Helper()
	command(m.t, "fsfreeze", "--freeze", m.dir)
	thaw = sync.OnceFunc(func() { command(m.t, "fsfreeze", "--unfreeze", m.dir) })
	m.t.Cleanup(thaw)
	return thaw
}

// cut does to the unused storage what a loss of power does.
func (m *storage) cut() {
	m.t.Helper()
	command(m.t, "cp", "--sparse=always", m.image, m.image+".cut")
	m.unmount() // what this writes comes too late
	command(m.t, "mv", m.image+".cut", m.image)
	m.mount()
}

// powered is a scene whose beta has its disk on storage.
type powered struct {
	*scene
	m *storage
	d *disk
}

func newPowered(t *testing.T, off checks.Check, setUp ...func(p *powered)) *powered {
	t.Helper()
	needStorage(t)
	p := &powered{}
	p.scene = newScene(t, off, func(s *scene) {
		p.scene, p.m = s, newStorage(t, s.dir)
		t.Cleanup(s.beta.kill) // it has a file open there
		p.d = s.newDisk("disk", filepath.Join(p.m.dir, "disk.img"))
		command(t, "sync", p.d.path)
		for _, f := range setUp {
			f(p)
		}
	})
	return p
}

// powerCut takes power from beta and gives it back.
func (p *powered) powerCut() {
	p.Helper()
	p.rec.fault("power cut", true)
	e := event{call: p.rec.now()}
	p.beta.kill()
	p.m.cut()
	e.ret = p.rec.now()
	for _, d := range p.disks {
		e.disk = d.number
		p.rec.happened(e)
	}
	p.beta.start()
}
