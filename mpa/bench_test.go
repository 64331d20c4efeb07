package mpa

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// counter is a Sink that copies payloads into place, as DDP does, and reports
// when a number of bytes has arrived.
type counter struct {
	mem    []byte
	hdr    int
	got    int
	want   int
	cur    int
	done   chan struct{}
	direct bool
}

func (s *counter) Segment(seg []byte) error {
	copy(s.mem, seg[s.hdr:])
	s.add(len(seg) - s.hdr)
	return nil
}

func (s *counter) add(n int) {
	if s.got += n; s.got >= s.want {
		s.got -= s.want
		s.done <- struct{}{}
	}
}

func (s *counter) Direct(head []byte, total int) (int, bool, error) {
	s.cur = total - s.hdr
	return s.hdr, s.direct, nil
}
func (s *counter) DirectBuffer() ([]byte, error) { return s.mem[:s.cur], nil }
func (s *counter) DirectDone(n int) error {
	s.cur -= n
	s.add(n)
	return nil
}
func (s *counter) BatchEnd() {}

const benchChunk = 4 << 20

// cpuTime has the benchmark report the CPU time of both ends and the kernel
// for each GB, which other work on the machine disturbs least.
func cpuTime(b *testing.B) (report func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric((used()-before).Seconds()*1e9/(float64(b.N)*benchChunk), "cpu-s/GB") }
}

// BenchmarkStream moves 4 MiB per iteration in segments of a tagged DDP header
// and a payload; compare with BenchmarkRawTCP.
func BenchmarkStream(b *testing.B) {
	for _, emss := range []int{1460, 4096, 8960, 16384, 32768, 65483} {
		for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
			for _, markers := range []bool{false, true} {
				b.Run(fmt.Sprintf("emss=%d/crc=%v/markers=%v", emss, crc == CRCPrefer, markers), func(b *testing.B) {
					benchStream(b, &Config{CRC: crc, Markers: markers, EMSS: func() int { return emss }})
				})
			}
		}
	}
	for _, crc := range []CRCMode{CRCPrefer, CRCAvoid} {
		b.Run(fmt.Sprintf("large/crc=%v", crc == CRCPrefer), func(b *testing.B) {
			benchStream(b, &Config{CRC: crc, LargeFPDU: MaxLargeFPDU})
		})
	}
}

func benchStream(b *testing.B, cfg *Config) {
	cfg.Pool = &Pool{}
	tx, rx := connect(b, "tcp", cfg, cfg)
	s := &counter{mem: make([]byte, 1<<20), hdr: 14, want: benchChunk, done: make(chan struct{}, 64), direct: true}
	go rx.Receive(s)
	hdr, data := make([]byte, 14), make([]byte, 1<<20)
	sgl := make([][]byte, 1)
	b.SetBytes(benchChunk)
	b.ReportAllocs()
	defer cpuTime(b)()
	for b.Loop() {
		for sent := 0; sent < benchChunk; {
			if tx.Full() {
				if err := tx.Flush(); err != nil {
					b.Fatal(err)
				}
			}
			n := min(tx.MULPDU()-14, benchChunk-sent)
			off := sent % (len(data) - 65536)
			sgl[0] = data[off : off+n]
			if err := tx.Append(hdr, sgl); err != nil {
				b.Fatal(err)
			}
			sent += n
		}
		if err := tx.Flush(); err != nil {
			b.Fatal(err)
		}
		<-s.done
	}
}

func BenchmarkRawTCP(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("write=%d", size), func(b *testing.B) {
			c, d := netPair(b, "tcp")
			done := make(chan struct{}, 64)
			go func() {
				buf, got := make([]byte, 256<<10), 0
				for {
					n, err := d.Read(buf)
					if err != nil {
						return
					}
					if got += n; got >= benchChunk {
						got -= benchChunk
						done <- struct{}{}
					}
				}
			}()
			data := make([]byte, 1<<20)
			b.SetBytes(benchChunk)
			defer cpuTime(b)()
			for b.Loop() {
				for sent := 0; sent < benchChunk; sent += size {
					if _, err := c.Write(data[:size]); err != nil {
						b.Fatal(err)
					}
				}
				<-done
			}
		})
	}
}

// ponger answers each segment with one of the same size.
type ponger struct {
	counter
	c   *Conn
	hdr []byte
	sgl [][]byte
}

func (s *ponger) Segment(seg []byte) error {
	if err := s.c.Append(s.hdr, s.sgl); err != nil {
		return err
	}
	if done, err := s.c.TryFlush(); err != nil || !done {
		return s.c.Flush()
	}
	return nil
}

type waiter struct {
	counter
	c chan struct{}
}

func (s *waiter) Segment([]byte) error { s.c <- struct{}{}; return nil }

// BenchmarkPingPong measures the round trip of 64 bytes of payload.
func BenchmarkPingPong(b *testing.B) {
	b.Run("mpa", func(b *testing.B) {
		cfg := &Config{Pool: &Pool{}}
		x, y := connect(b, "tcp", cfg, cfg)
		sgl := [][]byte{make([]byte, 64)}
		hdr := make([]byte, 18)
		go y.Receive(&ponger{c: y, hdr: make([]byte, 18), sgl: sgl})
		// As the engine would: the receiving goroutine sends the next ping.
		w := &pinger{ponger: ponger{c: x, hdr: hdr, sgl: sgl}, left: b.N}
		b.ReportAllocs()
		b.ResetTimer()
		if err := w.ponger.Segment(nil); err != nil {
			b.Fatal(err)
		}
		if err := x.Receive(w); err != io.EOF && err != errEnough {
			b.Fatal(err)
		}
	})
	b.Run("mpa-handover", func(b *testing.B) {
		cfg := &Config{Pool: &Pool{}}
		x, y := connect(b, "tcp", cfg, cfg)
		sgl := [][]byte{make([]byte, 64)}
		go y.Receive(&ponger{c: y, hdr: make([]byte, 18), sgl: sgl})
		w := &waiter{c: make(chan struct{}, 1)}
		go x.Receive(w)
		hdr := make([]byte, 18)
		for b.Loop() {
			x.Append(hdr, sgl)
			if done, err := x.TryFlush(); err != nil || !done {
				b.Fatal(done, err)
			}
			<-w.c
		}
	})
	b.Run("net", func(b *testing.B) {
		x, y := netPair(b, "tcp")
		go func() {
			buf := make([]byte, 64)
			for {
				if _, err := io.ReadFull(y, buf); err != nil {
					return
				}
				if _, err := y.Write(buf); err != nil {
					return
				}
			}
		}()
		pingNet(b, x)
	})
}

type pinger struct {
	ponger
	left int
}

func (s *pinger) Segment(seg []byte) error {
	if s.left--; s.left <= 0 {
		return errEnough
	}
	return s.ponger.Segment(seg)
}

func pingNet(b *testing.B, x net.Conn) {
	buf := make([]byte, 64)
	for b.Loop() {
		if _, err := x.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(x, buf); err != nil {
			b.Fatal(err)
		}
	}
}
