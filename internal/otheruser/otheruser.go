// Package otheruser lets tests connect to Unix sockets as other users of this host.
package otheruser

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Need skips a test where it can't become another user.
func Need(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root: run it with sudo")
	}
}

// Dial connects to a Unix socket as user uid, who is in the group of the same number and
// in groups. The kernel uses the credentials of the thread that connects, so Dial uses a
// thread that ends afterwards. It fails with the kernel's error: EPERM without root's
// rights, EACCES where that user may not connect.
func Dial(path string, uid uint32, groups ...uint32) (net.Conn, error) {
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: nobody else gets this thread
		var r result
		if r.fd, r.err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); r.err == nil {
			if r.err = become(uid, groups); r.err == nil {
				r.err = unix.Connect(r.fd, &unix.SockaddrUnix{Name: path})
			}
			if r.err != nil {
				unix.Close(r.fd)
			}
		}
		done <- r
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("connect to %s as user %d: %w", path, uid, r.err)
	}
	f := os.NewFile(uintptr(r.fd), path)
	defer f.Close()
	return net.FileConn(f)
}

// become changes the user of this thread, and of no other.
func become(uid uint32, groups []uint32) error {
	var list unsafe.Pointer
	if len(groups) > 0 {
		list = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(list), 0); errno != 0 {
		return errno
	}
	id := uintptr(uid)
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, errno := unix.RawSyscall(call, id, id, id); errno != 0 {
			return errno
		}
	}
	return nil
}

// AsNobody runs f on a thread of an unprivileged user: 65534 if this process is root's,
// its own user otherwise. It fails with the kernel's error, or f's.
func AsNobody(f func() error) error {
	if os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		const nobody = 65534
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			done <- fmt.Errorf("setresuid: %w", e)
			return
		}
		done <- f()
	}()
	return <-done
}
