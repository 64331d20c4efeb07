package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// upTo is a limit for contenders that count operations.
func upTo(limit int) func(int) bool { return func(n int) bool { return n < limit } }

func TestRDMAContendersDoWhatTheyMeasure(t *testing.T) {
	for _, v := range []variant{largeCRC, largeNoCRC, smallCRC} {
		t.Run(v.name, func(t *testing.T) {
			s, err := startRDMAServer(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			addr := s.ln.Addr().String()

			w, err := dialRDMA(t.Context(), addr, rdmaTarget, v, 64<<10, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if n, err := w.writes(t.Context(), 64<<10, upTo(100)); err != nil || n != 100 {
				t.Errorf("%d writes, %v", n, err)
			}
			// The answer to the last message may be here before the goroutine that
			// wrote it has counted it.
			if err := w.qp.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if got := w.qp.Stats().SendBytes; got != 100*64<<10+echoSlot {
				t.Errorf("%d bytes were sent", got)
			}

			p := &pinger{size: 64, more: upTo(50)}
			pc, err := p.dial(t.Context(), addr, v)
			if err != nil {
				t.Fatal(err)
			}
			defer pc.Close()
			if err := p.run(t.Context()); err != nil || p.n != 50 {
				t.Errorf("%d round trips, %v", p.n, err)
			}

			r := &reader{size: 4 << 10, more: upTo(200)}
			rc, err := r.dial(t.Context(), addr, v, 32)
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			if err := r.run(t.Context(), 32); err != nil || r.done < 200 || r.outstanding != 0 {
				t.Errorf("%d reads, %d outstanding, %v", r.done, r.outstanding, err)
			}
		})
	}
}

func TestProcessTimeIsRead(t *testing.T) {
	if d, err := processCPU([]int{os.Getpid()}); err != nil || d < 0 {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := processCPU([]int{1 << 30}); err == nil {
		t.Error("a process that does not exist has used time")
	}
}

func TestServerThatEndsEarlyIsNamedWithItsOutput(t *testing.T) {
	script := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no such port\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := startProcess(script)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = p.ready(t.Context(), func() error { return os.ErrNotExist })
	if err == nil || !strings.Contains(err.Error(), "no such port") {
		t.Errorf("error %v, want one with what the server printed", err)
	}
}
