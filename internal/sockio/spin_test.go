package sockio

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestSpinningReaderSeesWhatComes(t *testing.T) {
	p := connect(t, "tcp", "127.0.0.1:0")
	r, buf := NewReader(p[1]), make([]byte, 10)
	if n, err := r.ReadOrSpin(buf, 0); n != 0 || err != ErrWouldBlock {
		t.Errorf("nothing there: %d, %v", n, err)
	}
	go p[0].Write([]byte("data"))
	if n, err := r.ReadOrSpin(buf, time.Hour); err != nil || string(buf[:n]) != "data" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if n, err := r.ReadOrSpin(nil, time.Hour); n != 0 || err != nil {
		t.Errorf("into nothing: %d, %v", n, err)
	}
	go p[0].Close()
	if n, err := r.ReadOrSpin(buf, time.Hour); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

func TestSpinningLetsOthersRun(t *testing.T) {
	p := connect(t, "tcp", "127.0.0.1:0")
	turns := make(chan int)
	go func() {
		for i := range 100 {
			turns <- i // each takes both goroutines
		}
		p[0].Write([]byte("x"))
	}()
	go func() {
		for range 100 {
			<-turns
		}
	}()
	if n, err := NewReader(p[1]).ReadOrSpin(make([]byte, 1), time.Hour); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestCloseEndsSpinning(t *testing.T) {
	p := connect(t, "tcp", "127.0.0.1:0")
	res := make(chan error, 1)
	go func() {
		_, err := NewReader(p[1]).ReadOrSpin(make([]byte, 1), time.Hour)
		res <- err
	}()
	p[1].Close()
	if err := <-res; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestSpinningNeedsAFileDescriptor(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	r, buf := NewReader(b), make([]byte, 4)
	if n, err := r.ReadOrSpin(buf, time.Hour); n != 0 || err != ErrWouldBlock {
		t.Errorf("nothing there: %d, %v", n, err)
	}
	go a.Write([]byte("data"))
	if err := r.WaitReadable(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.ReadOrSpin(buf, time.Hour); err != nil || string(buf[:n]) != "data" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

func TestSpinningAllocatesNothing(t *testing.T) {
	p := connect(t, "tcp", "127.0.0.1:0")
	r, buf := NewReader(p[1]), make([]byte, 16)
	if allocs := testing.AllocsPerRun(200, func() {
		if _, err := p[0].Write(buf); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadOrSpin(buf, time.Hour); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations per read", allocs)
	}
}
