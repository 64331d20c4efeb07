package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// upTo is a limit for contenders that count operations.
func upTo(limit int) func(int) bool { return func(n int) bool { return n < limit } }

// server is an RDMA server in this process.
func server(t *testing.T, v variant) *rdmaServer {
	t.Helper()
	s, err := startRDMAServer(t.Context(), anyLoopback, v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// client is a stream to s.
func client(t *testing.T, s *rdmaServer, kind byte, v variant, size int) *rdmaClient {
	t.Helper()
	c, err := dialRDMA(t.Context(), s.addr, kind, v, size, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRDMAContendersDoWhatTheyMeasure(t *testing.T) {
	marked := markedReads
	marked.name = "markers to the client"
	for _, v := range []variant{largeCRC, largeNoCRC, smallCRC, spinning, marked, headersOf, allOf} {
		t.Run(v.name, func(t *testing.T) { exerciseContenders(t, server(t, variant{spin: v.spin}), v) })
	}
	t.Run(overSCTP.name, func(t *testing.T) { exerciseContenders(t, server(t, overSCTP), overSCTP) })
	for _, v := range markerVariants() {
		t.Run("markers to the server, "+v.name, func(t *testing.T) { exerciseContenders(t, server(t, variant{markers: true}), v) })
	}
}

func TestPollingEndsPlayPingPong(t *testing.T) {
	for _, v := range []variant{polling, progressing} {
		t.Run(v.name, func(t *testing.T) {
			c := client(t, server(t, v), rdmaEcho, v, 2*echoSlot)
			if took, err := c.pingPolled(v.polls, upTo(50)); err != nil || len(took) != 50 {
				t.Errorf("%d round trips, %v", len(took), err)
			}
		})
	}
}

func exerciseContenders(t *testing.T, s *rdmaServer, v variant) {
	for name, every := range map[string]int{"in lists": 16, "singly": 1} {
		w := client(t, s, rdmaTarget, v, 64<<10)
		if n, err := w.writesListed(t.Context(), 64<<10, every, upTo(100)); err != nil || n != 100 {
			t.Errorf("%s: %d writes, %v", name, n, err)
		}
		if err := w.sync(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The answer to the last message may be here before the goroutine that
		// wrote it has counted it.
		if err := w.qp.Shutdown(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := w.qp.Stats().SendBytes; got != 100*64<<10+echoSlot {
			t.Errorf("%s: %d bytes were sent", name, got)
		}
	}

	p := &pinger{size: 64, more: upTo(50)}
	pc, err := p.dial(t.Context(), s.addr, v)
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	if err := p.run(t.Context()); err != nil || p.n != 50 {
		t.Errorf("%d round trips, %v", p.n, err)
	}

	for _, kind := range []byte{rdmaTarget, rdmaSource} {
		r := &reader{size: 4 << 10, more: upTo(200)}
		rc, err := r.dial(t.Context(), s.addr, kind, v, 32)
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		if err := r.run(t.Context(), 32); err != nil || r.done < 200 || r.outstanding != 0 {
			t.Errorf("kind %c: %d reads, %d outstanding, %v", kind, r.done, r.outstanding, err)
		}
	}
}

func TestBothEndsWrite(t *testing.T) {
	c := client(t, server(t, variant{}), rdmaMutual, largeCRC, mutualSize)
	var theirs int
	// The server is sure to have written once its bytes are here.
	ours, theirs, err := c.mutual(t.Context(), func(n int) bool { return n < 100 || c.qp.Stats().RecvBytes < 10*mutualSize })
	if err != nil {
		t.Fatal(err)
	}
	if ours < 100 || theirs < 10 {
		t.Errorf("%d Writes of ours, %d of the server", ours, theirs)
	}
	if got := c.qp.Stats().RecvBytes; got != uint64(theirs*mutualSize+echoSlot) {
		t.Errorf("the server says %d Writes, %d bytes have come", theirs, got)
	}
}

func TestBothEndsOfTCPWrite(t *testing.T) {
	addr, err := serveTCP(t.Context(), anyLoopback)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialTCP(t.Context(), addr, tcpMutual, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// What the server writes before the client ends its direction is read.
	if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n := int(drain(c)); n%(64<<10) != 0 {
		t.Errorf("%d more bytes: not whole writes", n)
	}
}

func TestWriteIsAnsweredByAWrite(t *testing.T) {
	c := client(t, server(t, variant{}), rdmaNotice, variant{}, noticeSize)
	const rounds = 600 // the number in the last byte wraps
	took, err := c.notices(upTo(rounds))
	if err != nil || len(took) != rounds {
		t.Fatalf("%d round trips, %v", len(took), err)
	}
	if got := c.qp.Stats().RecvBytes; got != rounds*noticeSize {
		t.Errorf("%d bytes have come", got)
	}
}

func TestWaitForAWriteEndsWithTheStream(t *testing.T) {
	s := server(t, variant{})
	c := client(t, s, rdmaNotice, variant{}, noticeSize)
	s.Close()
	n := notice{rdmaClient: c, size: noticeSize}
	if err := n.await(1); err == nil || !strings.Contains(err.Error(), "the stream has ended") {
		t.Errorf("error %v", err)
	}
}

func TestBytesOfAllStreamsCount(t *testing.T) {
	boom := errors.New("boom")
	sum, err := atOnce([]float64{1, 2, 4}, func(v float64) (float64, error) { return v, nil })
	if sum != 7 || err != nil {
		t.Errorf("%v, %v", sum, err)
	}
	if _, err := atOnce([]error{nil, boom}, func(err error) (float64, error) { return 1, err }); !errors.Is(err, boom) {
		t.Errorf("error %v", err)
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
