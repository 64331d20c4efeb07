package nbd

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// wrapped is a connection as a listener that counts its clients returns it.
type wrapped struct{ *net.UnixConn }

// The socket of a client takes a reply of 1 MiB at once, whether the listener wraps it or not.
func TestUnixSocketTakesALargeReply(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may have such a buffer everywhere")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		ends[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	c := newConn(NewServer(Config{}), wrapped{ends[0].(*net.UnixConn)})
	c.sock.Append(make([]byte, 1<<20+32)) // a header comes first
	if done, err := c.sock.TryFlush(); err != nil || !done {
		t.Errorf("%d bytes are left: %v", c.sock.Pending(), err)
	}
}
