package sctp

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// sink counts messages.
type sink struct {
	n    atomic.Int64
	want int64
	done chan struct{}
}

func (s *sink) Message(*assoc.Message) bool {
	if s.n.Add(1) == s.want {
		close(s.done)
	}
	return false
}
func (s *sink) Event(assoc.Event) {}
func (s *sink) BatchEnd()         {}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSend sends messages of one size over loopback, in batches of 64, and
// tells the CPU time of both ends together for each.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{64, 1400, 1440} {
		for _, plain := range []bool{false, true} {
			name := fmt.Sprint(size)
			if plain {
				name += "-no-offload"
			}
			b.Run(name, func(b *testing.B) {
				s := &sink{want: int64(b.N), done: make(chan struct{})}
				eb := listen(b, "127.0.0.1", Config{Accept: func(*Assoc) assoc.Receiver { return s }, NoOffload: plain})
				ea := listen(b, "127.0.0.1", Config{NoOffload: plain})
				a, err := ea.Dial(patient(b), eb.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return &sink{} }})
				if err != nil {
					b.Fatal(err)
				}
				for a.MaxMessage() < size { // an association begins with short packets
					runtime.Gosched()
				}
				p := make([]byte, size)
				ms := make([]assoc.Outgoing, 64)
				for i := range ms {
					ms[i] = assoc.Outgoing{PPID: 16, Bufs: [][]byte{p}}
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				c := cpu()
				b.ResetTimer()
				for n := b.N; n > 0; {
					k, err := a.Send(context.Background(), ms[:min(n, len(ms))])
					if err != nil {
						b.Fatal(err)
					}
					n -= k
				}
				<-s.done
				b.StopTimer()
				b.ReportMetric(float64(cpu()-c)/float64(b.N)/1e3, "cpu-us/op")
				if testing.Verbose() {
					b.Logf("%+v", a.Stats())
				}
			})
		}
	}
}

// BenchmarkPingPong is the round trip of a message of 64 bytes.
func BenchmarkPingPong(b *testing.B) {
	back := make(chan struct{}, 1)
	ra := &bouncer{back: back}
	rb := &bouncer{}
	eb := listen(b, "127.0.0.1", Config{Accept: func(a *Assoc) assoc.Receiver { rb.a = a; return rb }})
	ea := listen(b, "127.0.0.1", Config{})
	a, err := ea.Dial(patient(b), eb.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return ra }})
	if err != nil {
		b.Fatal(err)
	}
	ms := []assoc.Outgoing{{Bufs: [][]byte{make([]byte, 64)}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.TrySend(ms); err != nil {
			b.Fatal(err)
		}
		<-back
	}
}

// bouncer sends back what comes, or tells.
type bouncer struct {
	a    *Assoc
	back chan struct{}
	ms   [1]assoc.Outgoing
	bufs [1][]byte
}

func (r *bouncer) Message(m *assoc.Message) bool {
	if r.back != nil {
		r.back <- struct{}{}
		return false
	}
	r.bufs[0] = m.Payload
	r.ms[0].Bufs = r.bufs[:]
	r.a.TrySend(r.ms[:])
	return false
}
func (r *bouncer) Event(assoc.Event) {}
func (r *bouncer) BatchEnd()         {}
