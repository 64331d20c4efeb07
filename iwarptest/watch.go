package iwarptest

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// WatchDir counts the files that are made in a directory from now on. A file that is replaced in
// one step counts each time.
func WatchDir(t testing.TB, dir string) (made func() int) {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(watch) })
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	n := 0
	return func() int {
		t.Helper()
		buf := make([]byte, 64<<10)
		for {
			k, err := unix.Read(watch, buf)
			if err == unix.EAGAIN {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			for b := buf[:k]; len(b) >= unix.SizeofInotifyEvent; n++ {
				b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
			}
		}
	}
}
