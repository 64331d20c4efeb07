package ksctp_test

import (
	"sync/atomic"
	"testing"

	lksctp "github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// counter is a Receiver that counts, and tells when it has all.
type counter struct {
	n, want atomic.Int64
	all     chan struct{}
}

func (c *counter) Message(*assoc.Message) bool {
	if c.n.Add(1) == c.want.Load() {
		c.all <- struct{}{}
	}
	return false
}
func (c *counter) Event(assoc.Event) {}
func (c *counter) BatchEnd()         {}

func pair(b testing.TB, r assoc.Receiver) (x, y *ksctp.Assoc) {
	b.Helper()
	kernel(b)
	l := listen(b, ksctp.Config{Local: loopback})
	x, err := ksctp.Dial(patient(b), ksctp.Config{}, l.Addr())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { x.Close(); <-x.Done() })
	if y, err = l.Accept(patient(b)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { y.Close(); <-y.Done() })
	x.Start(&counter{all: make(chan struct{}, 1)})
	y.Start(r)
	return x, y
}

const benchSize = 1400

// BenchmarkMessages is one way over loopback, messages of 1400 bytes, 32 at a time.
func BenchmarkMessages(b *testing.B) {
	r := &counter{all: make(chan struct{}, 1)}
	x, _ := pair(b, r)
	ms := repeat(one(0, make([]byte, benchSize)), 32)
	b.SetBytes(benchSize)
	b.ReportAllocs()
	r.want.Store(int64(b.N))
	b.ResetTimer()
	for left := b.N; left > 0; {
		n, err := x.TrySend(ms[:min(left, len(ms))])
		if err != nil {
			b.Fatal(err)
		}
		if left -= n; n == 0 {
			if err := x.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	<-r.all
}

// BenchmarkPlainSocket is the same with a system call for each message and sockets
// that block.
func BenchmarkPlainSocket(b *testing.B) {
	kernel(b)
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
		check(err)
		b.Cleanup(func() { unix.Close(fd) })
		check(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20))
		check(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20))
		check(unix.SetsockoptInt(fd, unix.IPPROTO_SCTP, lksctp.SCTP_NODELAY, 1))
		return fd
	}
	l, x := socket(), socket()
	check(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	check(err)
	check(unix.Connect(x, at))
	y, _, err := unix.Accept(l)
	check(err)
	b.Cleanup(func() { unix.Close(y) })
	info := make([]byte, 16)
	info[2] = 1 // unordered
	oob := append([]byte{32, 0, 0, 0, 0, 0, 0, 0, 132, 0, 0, 0, 2, 0, 0, 0}, info...)
	p := make([]byte, benchSize)
	b.SetBytes(benchSize)
	b.ResetTimer()
	go func() {
		for range b.N {
			if _, err := unix.SendmsgN(x, p, oob, nil, 0); err != nil {
				panic(err)
			}
		}
	}()
	q := make([]byte, 64<<10)
	for range b.N {
		_, _, _, _, err := unix.Recvmsg(y, q, nil, 0)
		check(err)
	}
}

// A message costs no memory from sending to handing over once all is set up.
func TestNothingIsAllocatedPerMessage(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := &counter{all: make(chan struct{}, 1)}
	x, _ := pair(t, r)
	ms := repeat(one(0, make([]byte, benchSize)), 32)
	per := testing.AllocsPerRun(500, func() {
		r.want.Store(r.n.Load() + 32)
		if n, err := x.TrySend(ms); n != 32 || err != nil {
			t.Fatal(n, err)
		}
		<-r.all
	})
	if per >= 1 {
		t.Errorf("%v allocations for 32 messages", per)
	}
}
