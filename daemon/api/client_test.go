package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers at a control socket with h.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "iw")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv, done := &http.Server{Handler: h}, make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l)
	}()
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		srv.Close()
		<-done
		os.RemoveAll(dir)
	})
	return c
}

func TestStreamedAnswers(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/ping":
			w.Write([]byte(`{"progress":"one"}` + "\n" + `{"reply":{"seq":1,"microseconds":2}}` + "\n" + `{"result":{"received":7}}` + "\n"))
		case "/v1/bench":
			w.Write([]byte(`{"progress":"one"}` + "\n" + `{"error":{"code":"timeout","message":"m","fix":"f"}}` + "\n"))
		case "/v1/attachments":
			w.Write([]byte(`{"progress":"one"}` + "\n"))
		}
	})
	var seen []Event
	res, err := c.Ping(t.Context(), PingRequest{}, func(ev Event) { seen = append(seen, ev) })
	if err != nil || res.Received != 7 || len(seen) != 2 || seen[0].Progress != "one" || seen[1].Reply.Micros != 2 {
		t.Errorf("%+v, %+v, %v", res, seen, err)
	}
	_, err = c.Bench(t.Context(), BenchRequest{}, nil)
	if !errors.Is(err, &Error{Code: CodeTimeout}) || err.Error() != "m\nf" {
		t.Errorf("an error at the end: %v", err)
	}
	_, err = c.Attach(t.Context(), AttachRequest{}, nil)
	if !errors.Is(err, &Error{Code: CodeUnavailable}) || !strings.Contains(err.Error(), "ended in the middle of its answer") {
		t.Errorf("an answer that breaks off: %v", err)
	}
}

func TestErrorsOfTheDaemonAndOfOthers(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/info" {
			w.WriteHeader(http.StatusTeapot)
			w.Write([]byte("I am not the daemon"))
			return
		}
		w.WriteHeader(http.StatusConflict)
		w.Write([]byte(`{"code":"exists","message":"it is there"}`))
	})
	if _, err := c.Info(t.Context()); !errors.Is(err, &Error{Code: CodeInternal}) || !strings.Contains(err.Error(), "418") {
		t.Errorf("somebody else: %v", err)
	}
	if _, err := c.AddPeer(t.Context(), PeerSpec{}); !errors.Is(err, &Error{Code: CodeExists}) || NotRunning(err) {
		t.Errorf("the daemon: %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	dir := t.TempDir()
	_, err := NewClient(filepath.Join(dir, "none")).Info(t.Context())
	if !NotRunning(err) || !errors.Is(err, &Error{Code: CodeUnavailable}) || !strings.Contains(err.Error(), "the socket does not exist") {
		t.Errorf("no socket: %v", err)
	}
	// A socket file that nobody listens at any more.
	l, err := net.Listen("unix", filepath.Join(dir, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	_, err = NewClient(filepath.Join(dir, "dead")).Info(t.Context())
	if !NotRunning(err) || !strings.Contains(err.Error(), "the daemon has died") {
		t.Errorf("dead socket: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := serve(t, func(http.ResponseWriter, *http.Request) {})
	if _, err := c.Info(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSplitDisk(t *testing.T) {
	if p, e, err := SplitDisk("beta/docs"); p != "beta" || e != "docs" || err != nil {
		t.Error(p, e, err)
	}
	for _, s := range []string{"", "beta", "/docs", "beta/", "a/b/c"} {
		if _, _, err := SplitDisk(s); !errors.Is(err, &Error{Code: CodeInvalid}) {
			t.Errorf("%q: %v", s, err)
		}
	}
}
