package selinux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// status is what the kernel shows in selinuxfs' file status (struct selinux_kernel_status).
type status struct {
	enforcing, policyload, denyUnknown uint32
}

// page is that file, mapped.
type page []byte

// statusVersion is the version of the page's layout.
const statusVersion = 1

// The page's numbers of 32 bits.
const (
	offsetVersion     = 0
	offsetSequence    = 4
	offsetEnforcing   = 8
	offsetPolicyload  = 12
	offsetDenyUnknown = 16
)

// openStatus maps the page. It fails where the kernel has none, or one of another version.
func (m Mount) openStatus() (p page, err error) {
	f, err := os.Open(m.path("status"))
	if err == nil {
		defer f.Close()
		p, err = unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, fmt.Errorf("map SELinux's status page: %w", err)
	}
	if v := p.load(offsetVersion); v != statusVersion {
		return nil, errors.Join(fmt.Errorf("map SELinux's status page: it has version %d, not %d", v, statusVersion), p.close())
	}
	return p, nil
}

func (p page) close() error { return unix.Munmap(p) }

func (p page) load(offset int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p[offset])))
}

// read returns what the page says. The kernel makes the sequence odd while it writes,
// which takes some instructions.
func (p page) read() status {
	for {
		sequence := p.load(offsetSequence)
		if sequence&1 == 0 {
			s := status{p.load(offsetEnforcing), p.load(offsetPolicyload), p.load(offsetDenyUnknown)}
			if p.load(offsetSequence) == sequence {
				return s
			}
		}
		runtime.Gosched()
	}
}
