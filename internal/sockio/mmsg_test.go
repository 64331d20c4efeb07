package sockio

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel finds each message of a batch where it looks for it, on processors of 32
// bits as well: GOARCH=386 go test.
func TestMmsghdrIsTheKernels(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	var msgs [3]Mmsghdr
	var iovs [len(msgs)]unix.Iovec
	for i := range msgs {
		text := bytes.Repeat([]byte{byte('a' + i)}, 10+i)
		iovs[i].Base = &text[0]
		iovs[i].SetLen(len(text))
		msgs[i].Hdr.Iov = &iovs[i]
		msgs[i].Hdr.SetIovlen(1)
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(pair[0]), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), 0, 0, 0)
	if errno != 0 || int(n) != len(msgs) {
		t.Fatalf("%d messages were sent: %v", n, errno)
	}
	for i := range msgs {
		b := make([]byte, 64)
		n, err := unix.Read(pair[1], b)
		if want := fmt.Sprint(10 + i); err != nil || fmt.Sprint(n) != want || b[0] != byte('a'+i) || fmt.Sprint(msgs[i].Len) != want {
			t.Errorf("message %d: %q, %v, the kernel says %d bytes", i, b[:max(n, 0)], err, msgs[i].Len)
		}
	}
}
