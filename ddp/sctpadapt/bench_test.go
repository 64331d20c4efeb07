package sctpadapt_test

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
)

// tally is a Sink that counts.
type tally struct{ n, bytes int }

func (c *tally) Segment(seg []byte) error            { c.n++; c.bytes += len(seg); return nil }
func (*tally) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (*tally) DirectBuffer() ([]byte, error)         { return nil, io.ErrShortBuffer }
func (*tally) DirectDone(int) error                  { return nil }
func (*tally) BatchEnd()                             {}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSegments sends segments of 1,400 bytes over one stream on loopback, and
// reports the CPU time of both ends together for each.
func BenchmarkSegments(b *testing.B) {
	x := connect(b, sctpadapt.Config{}, sctpadapt.Config{}, nil)
	s, r := x.session(b)
	c := &tally{}
	over := make(chan error)
	go func() { over <- r.Receive(c) }()
	hdr, payload := make([]byte, 14), [][]byte{make([]byte, 1386)}
	b.SetBytes(1400)
	b.ReportAllocs()
	used := cpu()
	b.ResetTimer()
	for range b.N {
		if err := s.Append(hdr, payload); err != nil {
			b.Fatal(err)
		}
		if s.Full() {
			if err := s.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
	s.Flush()
	s.CloseWrite()
	if err := <-over; err != io.EOF || c.n != b.N {
		b.Fatalf("%d of %d segments, %v", c.n, b.N, err)
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu()-used)/float64(b.N)/1e3, "cpu-us/op")
	s.Close()
	r.Close()
}
