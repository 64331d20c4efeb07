package driver

import (
	"path/filepath"
	"strings"
	"sync"

	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"
)

// programs stands for blkid, mkfs, fsck and those that make a file system larger: it knows which disks have which file system.
type programs struct {
	exec.Interface

	mu      sync.Mutex        // guards the fields below it
	formats map[string]string // file system, by device
	ran     []string          // command lines
	fail    string            // the program that fails
}

// newMounts is a mounter without a kernel.
func newMounts() (*mount.SafeFormatAndMount, *programs) {
	p := &programs{formats: make(map[string]string)}
	return mount.NewSafeFormatAndMount(mount.NewFakeMounter(nil), p), p
}

func (p *programs) Command(name string, args ...string) exec.Cmd {
	out, err := p.run(name, args)
	script := func() ([]byte, []byte, error) { return out, nil, err }
	cmd := &testingexec.FakeCmd{CombinedOutputScript: []testingexec.FakeAction{script}, OutputScript: []testingexec.FakeAction{script}, RunScript: []testingexec.FakeAction{script}}
	return testingexec.InitFakeCmd(cmd, name, args...)
}

func (p *programs) run(name string, args []string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ran = append(p.ran, filepath.Base(name)+" "+strings.Join(args, " "))
	disk := args[len(args)-1]
	switch name := filepath.Base(name); {
	case name == p.fail:
		return nil, &testingexec.FakeExitError{Status: 1}
	case name == "blkid":
		if format, ok := p.formats[disk]; ok {
			return []byte("DEVNAME=" + disk + "\nTYPE=" + format + "\n"), nil
		}
		return nil, &testingexec.FakeExitError{Status: 2}
	case strings.HasPrefix(name, "mkfs."):
		p.formats[disk] = strings.TrimPrefix(name, "mkfs.")
	}
	return nil, nil
}

// commands are the command lines of a program so far.
func (p *programs) commands(name string) (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.ran {
		if strings.HasPrefix(c, name) {
			list = append(list, c)
		}
	}
	return list
}
