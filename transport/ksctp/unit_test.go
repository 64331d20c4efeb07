package ksctp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Notifications as Linux 6.1 gives them on a machine of little endian.
func TestNotifications(t *testing.T) {
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("its bytes are of a machine of little endian")
	}
	up := notification(unhex(t, "01800000"+"14000000"+"00000000"+"0a000a00"+"01000000"))
	if c, err := up.assocChange(); err != nil || up.kind() != noteAssocChange || c.state != commUp || c.out != 10 || c.in != 10 || len(c.info) != 0 {
		t.Errorf("up: %+v, %v", c, err)
	}
	// An ABORT came: User-Initiated Abort, "bye".
	lostBy := notification(unhex(t, "01800000"+"1c000000"+"0100000c"+"0a000a00"+"01000000"+"000c0007"+"627965"+"00"))
	c, err := lostBy.assocChange()
	if err != nil || c.state != commLost {
		t.Errorf("lost: %+v, %v", c, err)
	}
	if k := c.abortCause(); k.Code != assoc.CauseUserAbort || string(k.Info) != "bye" {
		t.Errorf("the cause: %v", k)
	}
	for errno, want := range map[unix.Errno]error{
		unix.ECONNRESET:   &assoc.AbortError{Cause: assoc.Cause{Code: assoc.CauseUserAbort}},
		0:                 &assoc.AbortError{Cause: assoc.Cause{Code: assoc.CauseUserAbort}},
		unix.ECONNABORTED: &assoc.AbortError{Local: true, Cause: assoc.Cause{Code: assoc.CauseUserAbort}},
		unix.ETIMEDOUT:    assoc.ErrPeerUnreachable,
	} {
		if err := lost(c, errno); !errors.Is(err, want) {
			t.Errorf("lost with errno %d: %v, want %v", errno, err, want)
		}
	}
	down := append(unhex(t, "02800000"+"94000000"+"02001d2f0a630002"), make([]byte, 120)...)
	down = append(down, unhex(t, "01000000"+"00000000"+"01000000")...)
	if a, state, err := notification(down).pathChange(); err != nil || a != netip.MustParseAddrPort("10.99.0.2:7471") || state != pathUnreachable {
		t.Errorf("path: %v, %d, %v", a, state, err)
	}
	mapped := append(unhex(t, "02800000"+"94000000"+"0a001d2f"+"00000000"+"00000000000000000000ffff0a630002"+"00000000"), make([]byte, 100)...)
	mapped = append(mapped, unhex(t, "05000000"+"02000000"+"01000000")...)
	if a, state, err := notification(mapped).pathChange(); err != nil || a != netip.MustParseAddrPort("10.99.0.2:7471") || state != pathConfirmed {
		t.Errorf("path: %v, %d, %v", a, state, err)
	}
	ind := notification(unhex(t, "07800000"+"10000000"+"01000000"+"01000000"))
	if v, err := ind.adaptation(); err != nil || v != 1 || ind.kind() != noteAdaptation {
		t.Errorf("indication: %d, %v", v, err)
	}
	remote := notification(unhex(t, "04800000"+"18000000"+"00010000"+"01000000"+"00010000"+"00000000"))
	if k, err := remote.remoteError(); err != nil || k.Code != assoc.CauseInvalidStream || len(k.Info) != 8 {
		t.Errorf("remote error: %v, %v", k, err)
	}
}

// Whatever a notification holds, nothing is read beyond its end.
func FuzzNotification(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01\x80\x00\x00\x1c\x00\x00\x00\x01\x00\x00\x0c\x0a\x00\x0a\x00\x01\x00\x00\x00\x00\x0c\x00\x07bye\x00"))
	f.Add(append([]byte("\x02\x80\x00\x00\x94\x00\x00\x00\x02\x00\x1d\x2f"), make([]byte, 136)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := notification(b[:len(b):len(b)])
		n.kind()
		if c, err := n.assocChange(); err == nil {
			if k := c.abortCause(); len(k.Info) > assoc.MaxCauseInfo {
				t.Errorf("%d bytes of a cause are kept", len(k.Info))
			}
		}
		n.pathChange()
		n.remoteError()
		n.adaptation()
		if info, ok := rcvinfo(b); ok && len(info) < rcvinfoLen {
			t.Errorf("struct sctp_rcvinfo of %d bytes", len(info))
		}
	})
}

// What is counted as outstanding is never less than what is, however much memory
// the kernel takes for a message.
func TestSentLog(t *testing.T) {
	var l sentLog
	memory := 0
	used := func() (int, error) { return memory, nil }
	const size = 1000
	const charge = size + 1300 // as Linux charges for it
	outstanding := 0
	for i := range 100000 {
		l.reserve(batchLen, used)
		l.add(uint16(i%10), size)
		outstanding, memory = outstanding+1, memory+charge
		if outstanding == 3000 { // an acknowledgement comes
			outstanding, memory = 2000, 2000*charge
		}
		if i%977 == 0 {
			l.trim(used)
			if l.n < outstanding {
				t.Fatalf("after %d messages %d are known, %d are outstanding", i, l.n, outstanding)
			}
			if l.n > outstanding*charge/(size+minCharge)+1 {
				t.Fatalf("after %d messages %d are known, %d are outstanding", i, l.n, outstanding)
			}
			if n := l.of(3); n < outstanding/10-1 || l.bytes() != l.n*size {
				t.Fatalf("%d of a stream, %d bytes of %d messages", n, l.bytes(), l.n)
			}
		}
	}
	if len(l.ring) > 1<<14 {
		t.Errorf("the log has grown to %d entries", len(l.ring))
	}
	memory = 0
	l.trim(used)
	if l.n != 0 || l.of(3) != 0 || l.bytes() != 0 {
		t.Errorf("%d messages are known, none is outstanding", l.n)
	}
}

// The kernel never holds more messages than DDP-SSNs can order (RFC 5043 section
// 10), since it charges for each.
func TestBufferHoldsFewerMessagesThanNumbers(t *testing.T) {
	if n := 2 * maxBuffer / (minCharge + 1); n >= 1<<15 {
		t.Errorf("%d messages fit", n)
	}
}

func TestDeathByTheClockLeavesTheKernelNoSay(t *testing.T) {
	for _, d := range []time.Duration{time.Second, time.Minute, 20 * time.Minute} {
		c := Config{Params: assoc.Params{DeadAfter: d, AssocMaxRetrans: 1}}
		if n := c.assocMaxRetrans(); time.Duration(n)*minRTOLimit < d || n > 1<<16-1 {
			t.Errorf("%v: the kernel gives up after %d retransmissions", d, n)
		}
	}
	if n := (&Config{Params: assoc.Params{}.Filled()}).assocMaxRetrans(); n != assoc.DefaultAssocMaxRetrans {
		t.Errorf("%d retransmissions by default", n)
	}
}

func TestSocketAddresses(t *testing.T) {
	for _, s := range []string{"192.0.2.1:7471", "[2001:db8::1]:7471"} {
		a := netip.MustParseAddrPort(s)
		for _, v6 := range []bool{a.Addr().Is6(), true} {
			b := make([]byte, sockaddrStorage)
			if _, err := sockio.PutSockaddr(b, a, v6); err != nil {
				t.Error(err)
			}
			got, err := sockaddr(b)
			if err != nil || got != a {
				t.Errorf("%v came back as %v, %v", a, got, err)
			}
		}
	}
	for _, b := range [][]byte{nil, {2}, {2, 0, 1, 1}, make([]byte, sockaddrStorage)} {
		if a, err := sockaddr(b); err == nil {
			t.Errorf("%x is the address %v", b, a)
		}
	}
}

// What a batch has sent it does not keep alive.
func TestBatchForgetsWhatItHasSent(t *testing.T) {
	var s sending
	b := s.getBatch()
	m := assoc.Outgoing{Stream: 3, PPID: 16, Bufs: [][]byte{bytes.Repeat([]byte{1}, 10), {2}}}
	for b.add(&m) {
	}
	if b.n != batchLen || b.bufs != 2*batchLen {
		t.Errorf("a batch has %d messages with %d buffers", b.n, b.bufs)
	}
	s.putBatch(b)
	if !reflect.DeepEqual(b.iovs, [batchBufs]unix.Iovec{}) || b.n != 0 || b.bufs != 0 {
		t.Error("a batch that was put away still points to messages")
	}
}

func TestWithoutTheKernelsSCTPTheErrorSaysWhatToDo(t *testing.T) {
	if Available() == nil {
		t.Skip("the kernel has SCTP")
	}
	_, err := Dial(t.Context(), Config{}, netip.MustParseAddrPort("127.0.0.1:7471"))
	_, lerr := Listen(t.Context(), Config{Local: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	for _, err := range []error{err, lerr} {
		if !errors.Is(err, ErrUnavailable) || !bytes.Contains([]byte(err.Error()), []byte("modprobe sctp")) {
			t.Errorf("%v", err)
		}
	}
}

func TestWhatIsSentInVainIsCountedByLooks(t *testing.T) {
	var v resends
	for i, c := range []struct {
		packets, again uint64
		heard          bool
		times          int
	}{
		{3, 0, true, 0},
		{3, 0, false, 0},
		{3, 40, false, 1}, // the chunks of one timeout
		{3, 40, false, 1},
		{3, 41, false, 2},
		{3, 42, false, 3},
		{4, 43, true, 0},
		{4, 43, false, 0},
		{4, 44, false, 1},
	} {
		if heard, times := v.update(c.packets, c.again); heard != c.heard || times != c.times {
			t.Errorf("look %d: %v, %d, want %v, %d", i+1, heard, times, c.heard, c.times)
		}
	}
}

// A path that comes back when the time for that is just over, before the association has been
// ended for it, has come back: when it goes again, it has all the time again.
func TestPathThatComesBackJustInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[1])
		conn, err := socket.New(fds[0], "pair")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		a := &Assoc{conn: conn, c: Config{Params: assoc.Params{DeadAfter: time.Minute}}, done: make(chan struct{}), peer: make([]netip.AddrPort, 1)}
		a.room.L = &a.mu
		a.rx.recv, a.rx.wake = assoctest.NewInbox(), make(chan struct{}, 1)
		dead := func() bool {
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.ending
		}
		a.startDeadTimer()
		first := a.deadTimer // unlocked: nobody else has it
		a.pathChanged(netip.AddrPort{}, pathAvailable)
		a.startDeadTimer()
		first.Reset(0) // it had run out, and comes late
		if dead() {
			t.Error("the association ends though a path has come back")
		}
		<-time.After(time.Minute)
		if !dead() {
			t.Error("the association does not end")
		}
	})
}

// What is known of a path is forgotten, and takes no more than so much memory.
func TestNarrowPathsAreRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Narrow
		peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
		for i := range 2 * maxNarrow {
			w.note(peer(i), narrowed{mtu: 1200, lost: 1500})
			if n := w.of(peer(i)); n.mtu != 1200 || n.lost != 1500 || len(w.peers) > maxNarrow {
				t.Fatalf("%+v of %d", n, len(w.peers))
			}
		}
		last := peer(2*maxNarrow - 1)
		<-time.After(narrowFor - time.Second)
		if n := w.of(last); n.mtu != 1200 {
			t.Errorf("forgotten too early: %+v", n)
		}
		w.note(last, narrowed{mtu: 1000, lost: 1500})
		<-time.After(2 * time.Second)
		w.note(last, narrowed{mtu: 1200, lost: 1500}) // by one that began before
		if n := w.of(last); n.mtu != 1000 {
			t.Errorf("what was found later: %+v", n)
		}
		<-time.After(narrowFor + time.Second)
		if n := w.of(last); n.mtu != 0 || len(w.peers) > maxNarrow {
			t.Errorf("never forgotten: %+v", n)
		}
		if n := (*Narrow)(nil).of(last); n.mtu != 0 {
			t.Errorf("nobody remembers %+v", n)
		}
	})
	for mtu, want := range map[int]int{65535: 1200, 1500: 1200, 1201: 1200, 1200: 1000, 1000: 576, 576: 0, 512: 0} {
		if got := shorter(mtu); got != want {
			t.Errorf("after %d comes %d, want %d", mtu, got, want)
		}
	}
}
