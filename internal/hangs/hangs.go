// Package hangs makes, for tests, sockets and descriptors about which system calls wait for as long as somebody likes.
package hangs

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// userfaultfd(2), ioctl_userfaultfd(2).
const (
	uffdAPI      = 0xaa
	uffdioAPI    = 0xc018aa3f
	uffdRegister = 0xc020aa00
	uffdZeroPage = 0xc020aa04
	missing      = 1 // UFFDIO_REGISTER_MODE_MISSING
)

// Lock has the lock of a socket held in the kernel until unlock is called, or the test ends: a thread sends from memory whose
// page does not come. Any user can do that by FUSE; userfaultfd, which Lock uses, needs root. It skips the test where there
// is none.
func Lock(t testing.TB, c syscall.Conn) (unlock func()) {
	t.Helper()
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0) // poll(2) is for one that does not block
	if errno != 0 {
		t.Skipf("userfaultfd: %v", errno)
	}
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	ioctl := func(request uintptr, arg ...uint64) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uffd, request, uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
			t.Errorf("ioctl %#x of userfaultfd: %v", request, errno)
		}
	}
	ioctl(uffdioAPI, uffdAPI, 0, 0)
	ioctl(uffdRegister, at, uint64(page), missing, 0)
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	if cerr := raw.Control(func(orig uintptr) { fd, err = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0) }); errors.Join(cerr, err) != nil {
		t.Fatal(cerr, err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _, _ = unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(at), 1, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	}()
	for fault := []unix.PollFd{{Fd: int32(uffd), Events: unix.POLLIN}}; ; {
		n, err := unix.Poll(fault, 20_000)
		if n == 1 && fault[0].Revents == unix.POLLIN {
			break
		}
		if n == 1 || !errors.Is(err, unix.EINTR) {
			t.Fatalf("nobody sends: %d, %v", n, err)
		}
	}
	done := false
	unlock = func() {
		if done {
			return
		}
		done = true
		ioctl(uffdZeroPage, at, uint64(page), 0, 0)
		<-sent
		_ = errors.Join(unix.Close(int(uffd)), unix.Close(fd), unix.Munmap(mem))
	}
	t.Cleanup(unlock)
	return unlock
}

// Descriptor is one whose last close takes as long as the test.
func Descriptor(t testing.TB) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reader, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = reader.(*net.TCPConn).SetLinger(0)
		reader.Close() // which ends the connection
	})
	for err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = c.Write(make([]byte, 1<<20))
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(err, f.Close(), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})); err != nil {
		t.Fatal(err)
	}
	return fd
}
