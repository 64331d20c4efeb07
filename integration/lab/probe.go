package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// CharonPath is where Debian has strongSwan's IKE daemon.
const CharonPath = "/usr/lib/ipsec/charon"

const libipsecPlugin = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so"

// Missing returns an error that names everything a lab needs and this machine
// lacks, with the way to get it, or nil.
func Missing() error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("root is needed for network namespaces"))
	}
	for program, pkg := range map[string]string{"ip": "iproute2", "tcpdump": "tcpdump", "mount": "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: apt install %s", program, pkg))
		}
	}
	if _, err := os.Stat(CharonPath); err != nil {
		errs = append(errs, fmt.Errorf("%s is missing: apt install strongswan-charon", CharonPath))
	}
	if os.Geteuid() == 0 && esp.ProbeKernel() != nil {
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			errs = append(errs, errors.New("the kernel has no ESP, and /dev/net/tun, which userland ESP needs, is missing"))
		}
		if _, err := os.Stat(libipsecPlugin); err != nil {
			errs = append(errs, errors.New("the kernel has no ESP, and strongSwan's plugin for userland ESP is missing: apt install libcharon-extra-plugins"))
		}
	}
	return errors.Join(errs...)
}

// KernelSCTP returns why the kernel has no SCTP, or nil if it has.
func KernelSCTP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("the kernel has no SCTP: %w", err)
	}
	return unix.Close(fd)
}

// RequireKernelSCTP skips the test where a lab cannot run or the kernel has no
// SCTP.
func RequireKernelSCTP(t testing.TB) {
	t.Helper()
	Require(t)
	if err := KernelSCTP(); err != nil {
		t.Skipf("make interop runs it in its virtual machine, whose kernel has SCTP; here: %v", err)
	}
}

// Require skips the test, saying why, where a lab cannot run.
func Require(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a lab of network namespaces is not a short test")
	}
	if err := Missing(); err != nil {
		t.Skipf("no lab on this machine: %v", err)
	}
}
