package sockio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pairs returns one connected pair of each kind of connection.
func pairs(t testing.TB) map[string][2]net.Conn {
	t.Helper()
	p1, p2 := net.Pipe()
	m := map[string][2]net.Conn{
		"tcp":  connect(t, "tcp", "127.0.0.1:0"),
		"unix": connect(t, "unix", filepath.Join(t.TempDir(), "s")),
		"pipe": {p1, p2},
	}
	t.Cleanup(func() { p1.Close(); p2.Close() })
	return m
}

func connect(t testing.TB, network, addr string) [2]net.Conn {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial(network, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return [2]net.Conn{a, b}
}

func eachPair(t *testing.T, f func(t *testing.T, a, b net.Conn)) {
	for name, p := range pairs(t) {
		t.Run(name, func(t *testing.T) { f(t, p[0], p[1]) })
	}
}

// readFull reads with r until p is full.
func readFull(r *Reader, p []byte) error {
	for len(p) > 0 {
		half := len(p) / 2
		n, err := r.TryReadv([][]byte{p[:half], p[half:]})
		if errors.Is(err, ErrWouldBlock) {
			if err := r.WaitReadable(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		// The two halves were filled one after the other, so p[:n] is full.
		p = p[n:]
	}
	return nil
}

func TestEverySliceArrivesInOrder(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		rng := rand.New(rand.NewPCG(1, 2))
		var want []byte
		w, r := NewWriter(a), NewReader(b)
		const slices = 3000 // more than IOV_MAX
		for range slices {
			p := make([]byte, rng.IntN(900))
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			w.Append(p)
			want = append(want, p...)
		}
		if w.Pending() != len(want) {
			t.Fatalf("Pending() = %d, want %d", w.Pending(), len(want))
		}
		got := make([]byte, len(want))
		res := make(chan error, 1)
		go func() { res <- readFull(r, got) }()
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := <-res; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatal("the bytes received differ from those sent")
		}
		if w.Pending() != 0 || w.Slices() != 0 {
			t.Fatalf("after Flush %d bytes in %d slices are pending", w.Pending(), w.Slices())
		}
	})
}

func TestTryFlushStopsAtAFullSocketAndFlushGoesOn(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			p := pairs(t)[network]
			w, r := NewWriter(p[0]), NewReader(p[1])
			want := make([]byte, 24<<20)
			for i := range want {
				want[i] = byte(i * 7 >> 3)
			}
			for off := 0; off < len(want); off += 1 << 20 {
				w.Append(bytes.Clone(want[off : off+1<<20]))
			}
			done, err := w.TryFlush()
			if err != nil || done {
				t.Fatalf("TryFlush of 24 MiB that nobody reads: done=%v err=%v", done, err)
			}
			if w.Pending() == 0 || w.Pending() == len(want) {
				t.Fatalf("%d of %d bytes are pending: want a part", w.Pending(), len(want))
			}
			got := make([]byte, len(want))
			res := make(chan error, 1)
			go func() { res <- readFull(r, got) }()
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := <-res; err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatal("the bytes received differ from those sent")
			}
		})
	}
}

func TestTryFlushNeedsAFileDescriptor(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	w := NewWriter(a)
	w.Append([]byte("x"))
	if done, err := w.TryFlush(); done || err != nil {
		t.Fatalf("TryFlush on a pipe: done=%v err=%v, want false, nil", done, err)
	}
}

func TestAppendJoinsOnlyNeighboursOfOneAllocation(t *testing.T) {
	c := connect(t, "tcp", "127.0.0.1:0")
	w := NewWriter(c[0])
	arena := make([]byte, 100)
	w.Append(arena[:10])
	w.Append(arena[10:20])
	w.Append(nil)
	w.Append(arena[20:30])
	if w.Slices() != 1 || w.Pending() != 30 {
		t.Fatalf("three neighbours make %d slices of %d bytes, want 1 of 30", w.Slices(), w.Pending())
	}
	w.Append(arena[40:50:50])
	if w.Slices() != 2 {
		t.Fatalf("%d slices: joined across a gap", w.Slices())
	}
	w.Append(arena[50:60]) // a neighbour, but nothing says that it is the same allocation
	if w.Slices() != 3 {
		t.Fatalf("%d slices: joined without proof that it is one allocation", w.Slices())
	}
	w.Discard()
	if w.Slices() != 0 || w.Pending() != 0 {
		t.Fatal("Discard left something")
	}
	w.Append(arena[60:70])
	if err := w.Flush(); err != nil || w.Pending() != 0 {
		t.Fatalf("Flush after Discard: %v", err)
	}
}

func TestDetachLetsGoOfTheSlices(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		w, r := NewWriter(a), NewReader(b)
		p := []byte("hello ")
		w.Append(p)
		w.Append([]byte("wo"))
		kept := w.Detach(make([]byte, 0, 20))
		copy(p, "xxxxxx")
		w.Append([]byte("rld"))
		if string(kept) != "hello wo" || w.Pending() != 11 {
			t.Fatalf("detached %q, %d pending", kept, w.Pending())
		}
		w.Detach(nil)
		copy(kept, "yyyyyyyy")
		flushed := make(chan error, 1)
		go func() { flushed <- w.Flush() }()
		got := make([]byte, 11)
		if err := readFull(r, got); err != nil || string(got) != "hello world" {
			t.Fatalf("%q, %v", got, err)
		}
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadvOrWaitLetsGoOfBuffersBeforeItWaits(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		r := NewReader(b)
		idle := make(chan struct{}, 1)
		go func() {
			<-idle
			a.Write([]byte("data"))
			a.Close()
		}()
		buf := make([]byte, 10)
		let := func() { buf = nil; idle <- struct{}{} }
		if n, err := r.ReadvOrWait([][]byte{buf}, let); n != 0 || err != ErrWouldBlock || buf != nil {
			t.Fatalf("ReadvOrWait of nothing: %d, %v, buffer %v", n, err, buf)
		}
		never := func() { t.Error("idle called with data there") }
		buf = make([]byte, 10)
		if n, err := r.ReadvOrWait([][]byte{buf[:1], buf[1:]}, never); err != nil || string(buf[:n]) != "data" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		for {
			n, err := r.ReadvOrWait([][]byte{buf}, func() {})
			if err == ErrWouldBlock {
				continue
			}
			if n != 0 || err != io.EOF {
				t.Fatalf("at the end: %d, %v", n, err)
			}
			break
		}
		if n, err := r.ReadvOrWait(nil, never); n != 0 || err != nil {
			t.Fatalf("into nothing: %d, %v", n, err)
		}
	})
}

func TestReaderReportsEndAndEmptiness(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		r := NewReader(b)
		buf := [][]byte{make([]byte, 4)}
		if n, err := r.TryReadv(buf); n != 0 || !errors.Is(err, ErrWouldBlock) {
			t.Fatalf("TryReadv of nothing: %d, %v", n, err)
		}
		if n, err := r.TryReadv(nil); n != 0 || err != nil {
			t.Fatalf("TryReadv into nothing: %d, %v", n, err)
		}
		a.Close()
		if err := readFull(r, make([]byte, 1)); err != io.EOF {
			t.Fatalf("after the peer closed: %v, want io.EOF", err)
		}
	})
}

func TestWaitReadableSeesDataThatCameBefore(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write([]byte("hello"))
			wrote <- err
		}()
		r := NewReader(b)
		if err := r.WaitReadable(); err != nil {
			t.Fatal(err)
		}
		if err := r.WaitReadable(); err != nil { // nothing was taken in between
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if err := readFull(r, got); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
	})
}

func TestDeadlinesEndWaiting(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		r, w := NewReader(b), NewWriter(a)
		past := time.Unix(1, 0)
		if err := b.SetReadDeadline(past); err != nil {
			t.Fatal(err)
		}
		if err := r.WaitReadable(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("WaitReadable past its deadline: %v", err)
		}
		if err := a.SetWriteDeadline(past); err != nil {
			t.Fatal(err)
		}
		w.Append(make([]byte, 10))
		if err := w.Flush(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Flush past its deadline: %v", err)
		}
		if w.Pending() != 10 {
			t.Fatalf("%d bytes pending, want 10", w.Pending())
		}
		if err := errors.Join(b.SetReadDeadline(time.Time{}), a.SetWriteDeadline(time.Time{})); err != nil {
			t.Fatal(err)
		}
		res := make(chan error, 1)
		go func() { res <- w.Flush() }()
		if err := readFull(r, make([]byte, 10)); err != nil {
			t.Fatalf("after the deadline was lifted: %v", err)
		}
		if err := <-res; err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseUnblocksBothSides(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b net.Conn) {
		r, w := NewReader(a), NewWriter(a)
		for range 64 {
			w.Append(make([]byte, 1<<20))
		}
		res := make(chan error, 2)
		go func() { res <- readFull(r, make([]byte, 1)) }()
		go func() { res <- w.Flush() }()
		a.Close()
		for range 2 {
			if err := <-res; !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("after Close: %v", err)
			}
		}
	})
}

func TestWriteErrorsCarryTheErrno(t *testing.T) {
	p := connect(t, "tcp", "127.0.0.1:0")
	p[1].(*net.TCPConn).SetLinger(0)
	p[1].Close() // sends RST
	r := NewReader(p[0])
	var ne *net.OpError
	if err := readFull(r, make([]byte, 1)); !errors.As(err, &ne) {
		t.Fatalf("read from a reset connection: %v", err)
	}
	w := NewWriter(p[0])
	w.Append([]byte("x"))
	if _, err := w.TryFlush(); !errors.As(err, &ne) || ne.Op != "write" {
		t.Fatalf("write to a reset connection: %v", err)
	}
	if err := w.Flush(); !errors.As(err, &ne) || ne.Op != "write" {
		t.Fatalf("flush to a reset connection: %v", err)
	}
}

func TestNoAllocationsInSteadyState(t *testing.T) {
	p := connect(t, "tcp", "127.0.0.1:0")
	w, r := NewWriter(p[0]), NewReader(p[1])
	out, b1, b2 := make([]byte, 1000), make([]byte, 700), make([]byte, 8000)
	bufs := [][]byte{b1, b2}
	allocs := testing.AllocsPerRun(200, func() {
		for off := 0; off < len(out); off += 100 {
			w.Append(out[off : off+100 : off+100])
		}
		if done, err := w.TryFlush(); !done || err != nil {
			t.Fatalf("TryFlush: %v %v", done, err)
		}
		w.Append(out)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 2*len(out); {
			if err := r.WaitReadable(); err != nil {
				t.Fatal(err)
			}
			n, err := r.TryReadv(bufs)
			if err != nil && err != ErrWouldBlock {
				t.Fatal(err)
			}
			got += n
		}
	})
	if allocs != 0 {
		t.Fatalf("%v allocations per round, want 0", allocs)
	}
}
