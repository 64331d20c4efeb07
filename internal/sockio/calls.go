package sockio

import "syscall"

// calls makes the system calls of a Reader or Writer, none of which sleeps. Package
// syscall's Syscall tells Go's scheduler of each. If all of the process was asleep before,
// as where one message is awaited after the other, that wakes the runtime's monitor, too,
// which costs as many switches of threads as the message itself. So only some calls are
// made known: the monitor, which looks after goroutines that never pause, is awake soon
// after such a goroutine has begun.
type calls struct{ n uint8 }

// known reports whether the scheduler is told of the next call.
func (c *calls) known() bool {
	c.n++
	return c.n%knownEvery == 0
}

// call makes a system call with a descriptor and three more arguments.
//
//go:uintptrescapes
func (c *calls) call(trap, fd, p, n, flags uintptr, long bool) (uintptr, syscall.Errno) {
	if long || c.known() {
		n, _, errno := syscall.Syscall6(trap, fd, p, n, flags, 0, 0)
		return n, errno
	}
	n, _, errno := syscall.RawSyscall6(trap, fd, p, n, flags, 0, 0)
	return n, errno
}
