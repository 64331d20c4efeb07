package piontest

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pion "github.com/pion/sctp"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

const size = 1400

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// counter is a Receiver that counts.
type counter struct {
	n, want atomic.Int64
	done    chan struct{}
}

func (c *counter) Message(*assoc.Message) bool {
	if c.n.Add(1) == c.want.Load() {
		close(c.done)
	}
	return false
}
func (c *counter) Event(assoc.Event) {}
func (c *counter) BatchEnd()         {}

func socket(b *testing.B) *net.UDPConn {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	c.SetReadBuffer(4 << 20)
	b.Cleanup(func() { c.Close() })
	return c
}

// BenchmarkOurs and BenchmarkPion send unordered messages of 1,400 bytes over
// loopback; cpu-us/op is the CPU time of both ends together.
func BenchmarkOurs(b *testing.B) {
	c := &counter{done: make(chan struct{})}
	c.want.Store(int64(b.N))
	cfg := config(newBox())
	cfg.Accept = func(*sctp.Assoc) assoc.Receiver { return c }
	eb, err := sctp.Listen(socket(b), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer eb.Close()
	ea, err := sctp.Listen(socket(b), config(newBox()))
	if err != nil {
		b.Fatal(err)
	}
	defer ea.Close()
	a, err := ea.Dial(context.Background(), eb.Addr(), sctp.DialConfig{RemotePort: pionPort, Receiver: func(*sctp.Assoc) assoc.Receiver { return newBox() }})
	if err != nil {
		b.Fatal(err)
	}
	grow(b, a, size)
	ms := make([]assoc.Outgoing, 64)
	for i := range ms {
		ms[i].Bufs = [][]byte{make([]byte, size)}
	}
	b.SetBytes(size)
	used := cpu()
	b.ResetTimer()
	for n := b.N; n > 0; {
		k, err := a.Send(context.Background(), ms[:min(n, len(ms))])
		if err != nil {
			b.Fatal(err)
		}
		n -= k
	}
	<-c.done
	b.StopTimer()
	b.ReportMetric(float64(cpu()-used)/float64(b.N)/1e3, "cpu-us/op")
}

func BenchmarkPion(b *testing.B) {
	sa, sb := socket(b), socket(b)
	ca := &to{UDPConn: sa, peer: sb.LocalAddr().(*net.UDPAddr).AddrPort()}
	cb := &to{UDPConn: sb, peer: sa.LocalAddr().(*net.UDPAddr).AddrPort()}
	served := make(chan *pion.Association, 1)
	go func() {
		p, err := pion.Server(config2(cb))
		if err != nil {
			b.Error(err)
		}
		served <- p
	}()
	client, err := pion.Client(config2(ca))
	if err != nil {
		b.Fatal(err)
	}
	server := <-served
	defer server.Close()
	defer client.Close()
	s, err := client.OpenStream(1, pion.PayloadTypeWebRTCBinary)
	if err != nil {
		b.Fatal(err)
	}
	s.SetReliabilityParams(true, pion.ReliabilityTypeReliable, 0)
	b.SetBytes(size)
	p := make([]byte, size)
	used := cpu()
	b.ResetTimer()
	go func() {
		for range b.N {
			if _, err := s.WriteSCTP(p, pion.PayloadTypeWebRTCBinary); err != nil {
				return
			}
			for s.BufferedAmount() > 1<<20 { // pion has no back-pressure of its own
				<-time.After(50 * time.Microsecond)
			}
		}
	}()
	r, err := server.AcceptStream()
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for range b.N {
		if _, err := r.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu()-used)/float64(b.N)/1e3, "cpu-us/op")
}

// config2 lets pion send 1,400 bytes in one chunk.
func config2(c net.Conn) pion.Config {
	cfg := pionConfig(c)
	cfg.MTU = 1472
	cfg.MaxReceiveBufferSize = 4 << 20
	return cfg
}
