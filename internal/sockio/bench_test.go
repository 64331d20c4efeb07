package sockio

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// BenchmarkWriteLoopback sends batches of slices to a peer that discards them;
// compare with BenchmarkNetBuffers and BenchmarkNetWrite.
func BenchmarkWriteLoopback(b *testing.B) {
	for _, size := range []int{1464, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c, _ := drained(b)
			w := NewWriter(c)
			n := batch(size)
			data := make([]byte, size)
			b.SetBytes(int64(n * size))
			b.ReportAllocs()
			for b.Loop() {
				for range n {
					w.Append(data)
				}
				if err := w.Flush(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNetBuffers(b *testing.B) {
	for _, size := range []int{1464, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c, _ := drained(b)
			n := batch(size)
			data := make([]byte, size)
			b.SetBytes(int64(n * size))
			for b.Loop() {
				bufs := make(net.Buffers, n)
				for i := range bufs {
					bufs[i] = data
				}
				if _, err := bufs.WriteTo(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNetWrite(b *testing.B) {
	for _, size := range []int{1464, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c, _ := drained(b)
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := c.Write(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPingPong measures the round trip of 64 bytes.
func BenchmarkPingPong(b *testing.B) {
	b.Run("sockio", func(b *testing.B) {
		p := connect(b, "tcp", "127.0.0.1:0")
		go func() {
			r, w, buf := NewReader(p[1]), NewWriter(p[1]), make([]byte, 64)
			for readFull(r, buf) == nil {
				w.Append(buf)
				if w.Flush() != nil {
					return
				}
			}
		}()
		r, w, buf := NewReader(p[0]), NewWriter(p[0]), make([]byte, 64)
		for b.Loop() {
			w.Append(buf)
			if _, err := w.TryFlush(); err != nil {
				b.Fatal(err)
			}
			if err := readFull(r, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("net", func(b *testing.B) {
		p := connect(b, "tcp", "127.0.0.1:0")
		go io.Copy(struct{ io.Writer }{p[1]}, struct{ io.Reader }{p[1]})
		buf := make([]byte, 64)
		for b.Loop() {
			if _, err := p[0].Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(p[0], buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func batch(size int) int { return max(1, min(64, 512<<10/size)) }

// drained returns a connection whose peer throws away what it gets.
func drained(b *testing.B) (net.Conn, net.Conn) {
	p := connect(b, "tcp", "127.0.0.1:0")
	go func() {
		buf := make([]byte, 256<<10)
		for {
			if _, err := p[1].Read(buf); err != nil {
				return
			}
		}
	}()
	return p[0], p[1]
}
