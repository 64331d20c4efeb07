package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cancelAfter ends a command when it has printed so many times.
type cancelAfter struct {
	bytes.Buffer
	n      int
	cancel context.CancelFunc
}

func (c *cancelAfter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "process 42") || strings.Contains(string(p), `"pid":42`) {
		if c.n--; c.n == 0 {
			c.cancel()
		}
	}
	return c.Buffer.Write(p)
}

func TestWatchLooksAgainUntilInterrupted(t *testing.T) {
	dir, err := os.MkdirTemp("", "iw")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv, done := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"info": {"version": "x", "pid": 42}}`))
	})}, make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
		os.RemoveAll(dir)
	})
	for _, format := range []string{"--json", "--json=false"} {
		ctx, cancel := context.WithCancel(t.Context())
		out := &cancelAfter{n: 3, cancel: cancel}
		var errs bytes.Buffer
		status := run(ctx, []string{"ironwarp", "status", "--socket", socket, "--watch", "--interval", "100ms", format}, nil, out, &errs)
		if status != 0 || errs.Len() > 0 || out.n > 0 {
			t.Errorf("%s: status %d, %d looks to go, %s", format, status, out.n, errs.String())
		}
		if format == "--json" && strings.Count(strings.TrimSpace(out.String()), "\n") < 2 {
			t.Errorf("not a line each:\n%s", out.String())
		}
	}
}
