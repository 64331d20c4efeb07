package ipsec

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// asNobody runs f on a thread that has no privileges.
func asNobody(f func() error) error {
	if os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		const nobody = 65534
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			done <- fmt.Errorf("setresuid: %w", e)
			return
		}
		done <- f()
	}()
	return <-done
}
