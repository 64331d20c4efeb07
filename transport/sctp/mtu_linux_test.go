package sctp

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// namespace puts the test into a network namespace of its own, whose loopback
// device is up.
func namespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace of its own takes root: run the test as root")
	}
	runtime.LockOSThread() // and the thread ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("a network namespace cannot be made here (%v): run the test as root outside of containers that forbid it", err)
	}
	device(t, unix.SIOCSIFFLAGS, unix.IFF_UP)
}

// device changes the loopback device.
func device(t *testing.T, request uintptr, value uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	if request == unix.SIOCSIFFLAGS {
		r.SetUint16(uint16(value))
	} else {
		r.SetUint32(value)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(r))); errno != 0 {
		t.Fatal(errno)
	}
}

// The size of packets follows the device's MTU, down and up, and what was queued
// for the longer ones arrives.
func TestDeviceChangesItsMTU(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			namespace(t)
			device(t, unix.SIOCSIFMTU, 5000)
			x := connect(t, addr, Config{}, Config{})
			x.ra.Wait(t, "a larger size", func() bool { return x.a.Stats().PathMTU > 4990 })
			if n := x.a.Stats().PathMTU; n > 5000 {
				t.Fatalf("IP packets of %d bytes, the device has 5000", n)
			}
			device(t, unix.SIOCSIFMTU, 1400)
			const n = 300
			longest := x.a.MaxMessage()
			for i := 0; i < n; {
				_, err := x.a.Send(patient(t), []assoc.Outgoing{{Bufs: [][]byte{make([]byte, min(longest, x.a.MaxMessage()))}}})
				switch {
				case err == nil:
					i++
				case !errors.Is(err, assoc.ErrTooLong): // the size changes meanwhile
					t.Fatal(err)
				}
			}
			x.rb.WaitFor(t, n)
			x.ra.Wait(t, "a smaller size", func() bool {
				mtu := x.a.Stats().PathMTU
				return mtu <= 1400 && mtu > 1396
			})
			if s := x.a.Stats(); s.LostMTU != 0 {
				t.Errorf("the host has refused the packets, and they are taken for lost on the way: %+v", s)
			}
			if got := len(x.rb.Messages()[0].Payload); got != longest {
				t.Errorf("the first message has %d bytes, want %d", got, longest)
			}
		})
	}
}

// UDP_SEGMENT stays in use when packets are refused for their length.
func TestSegmentingSurvivesRefusedPackets(t *testing.T) {
	namespace(t)
	device(t, unix.SIOCSIFMTU, 1400)
	e := listen(t, "127.0.0.1", Config{})
	sink, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	k := e.sock.(*socket)
	if !k.segment.Load() {
		t.Skip("this kernel has no UDP_SEGMENT: Linux 4.18 has it")
	}
	var s sender
	s.init()
	fill := func(size int, kind packetKind) {
		for range 5 {
			s.batch.begin(1, 2, 3)
			s.batch.kind = kind
			s.batch.buf = append(s.batch.buf, make([]byte, size-headerLen)...)
			s.batch.end()
		}
	}
	to := sink.LocalAddr().(*net.UDPAddr).AddrPort()
	fill(1452, packetPlain)
	if err := k.send(to, &s); err == nil || s.refused != 1452 || !k.segment.Load() {
		t.Errorf("too long packets: %v, refused %d, UDP_SEGMENT %v", err, s.refused, k.segment.Load())
	}
	s.batch.reset()
	fill(1352, packetPlain)
	fill(1452, packetLoose)
	fill(1452, packetAlone) // as probes: no error, but told
	if err := k.send(to, &s); err != nil || s.refused != 1452 || !k.segment.Load() {
		t.Errorf("%v, refused %d, UDP_SEGMENT %v", err, s.refused, k.segment.Load())
	}
	b := make([]byte, 1<<16)
	for i := range 10 {
		want := 1352
		if i >= 5 {
			want = 1452
		}
		if n, err := sink.Read(b); err != nil || n != want {
			t.Errorf("packet %d has %d bytes, want %d: %v", i, n, want, err)
		}
	}
}
