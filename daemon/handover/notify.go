package handover

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// barrierTime is how long systemd may take to have read what it was told.
const barrierTime = 5 * time.Second

// tell sends systemd a message with descriptors. It fails with the system's error.
func (s *Store) tell(text string, fds ...int) error {
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(c)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		switch err := unix.Sendmsg(c, []byte(text), rights, &unix.SockaddrUnix{Name: s.notify}, 0); err {
		case unix.EINTR:
		case nil:
			return nil
		default:
			return fmt.Errorf("notify systemd at %s: %w", s.notify, err)
		}
	}
}

// barrier waits until systemd has read all that it was told before: it closes a descriptor then (BARRIER=1). It fails if that
// takes long.
func (s *Store) barrier() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = s.tell("BARRIER=1", int(w.Fd()))
	w.Close()
	if err != nil {
		return err
	}
	poll := []unix.PollFd{{Fd: int32(r.Fd()), Events: 0}}
	for end := time.Now().Add(barrierTime); ; {
		n, err := unix.Poll(poll, int(max(0, time.Until(end).Milliseconds())))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n == 0:
			return fmt.Errorf("systemd has not read it within %v", barrierTime)
		default:
			return nil
		}
	}
}
