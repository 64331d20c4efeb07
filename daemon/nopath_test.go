package daemon

import (
	"bytes"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// TestIOFailsWithoutAPath: NBD clients get EIO when a session has had no path for fail_after,
// the status says so, and I/O works again with the path. A reload and an order change it for
// open sessions.
func TestIOFailsWithoutAPath(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	byPaths(t, alpha, beta, "")
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	c := alpha.attach("disk")
	want := bytes.Repeat([]byte{7}, 4096)
	ok(t, c, cmdWrite, 0, 4096, want)
	order := func(what string) {
		t.Helper()
		if _, err := alpha.api.OrderPath(t.Context(), api.PathRequest{Peer: "beta", Path: "127.0.1.2", Order: what}); err != nil {
			t.Fatal(err)
		}
	}
	session := func() api.Session { return alpha.status().Sessions[0] }
	fails := func() {
		t.Helper()
		order(api.PathDisconnect)
		began := time.Now()
		if e, _ := do(t, c, cmdWrite, 0, 4096, want); e != nbdEIO {
			t.Fatalf("a write without a path: error %d", e)
		}
		if took := time.Since(began); took > waitTime {
			t.Errorf("it took %v", took)
		}
		if e, _ := do(t, c, cmdRead, 0, 4096, nil); e != nbdEIO {
			t.Errorf("a read without a path: error %d", e)
		}
		if s := session(); s.State != api.SessionFailing || s.NoPath != "fail" || s.FailAfterSeconds != 1 {
			t.Errorf("%+v", s)
		}
		at := alpha.status().Attachments[0]
		if at.State != api.AttachFailed {
			t.Errorf("the disk is %s", at.State)
		}
		says(t, at.Problem, api.CodeUnavailable, "I/O of beta/disk fails: there has been no path to beta for 1s", "ironwarp session show beta")
		order(api.PathReconnect)
		eventually(t, "there is a path", func() bool { return session().State == "connected" })
		if got := ok(t, c, cmdRead, 0, 4096, nil); !bytes.Equal(got, want) {
			t.Error("read back differs")
		}
	}
	if s := session(); s.NoPath != "queue" || s.FailAfterSeconds != 0 {
		t.Errorf("%+v", s)
	}
	alpha.declareBy(beta, "beta", 2, "no_path: fail\nfail_after: 1s\n")
	fails()
	if _, err := alpha.api.SetPolicy(t.Context(), api.PolicyRequest{Peer: "beta", NoPath: "queue"}); err != nil {
		t.Fatal(err)
	}
	if s := session(); s.NoPath != "queue" || s.Policy != "min-inflight" {
		t.Errorf("%+v", s)
	}
	if _, err := alpha.api.SetPolicy(t.Context(), api.PolicyRequest{Peer: "beta", NoPath: "fail", FailAfter: "1s"}); err != nil {
		t.Fatal(err)
	}
	fails()
	_, err := alpha.api.SetPolicy(t.Context(), api.PolicyRequest{Peer: "beta", NoPath: "queue", FailAfter: "1s"})
	says(t, err, api.CodeInvalid, "I/O that waits without a path does not fail after 1s")
	_, err = alpha.api.SetPolicy(t.Context(), api.PolicyRequest{Peer: "beta", NoPath: "fail", FailAfter: "1ms"})
	says(t, err, api.CodeInvalid, `fail after "1ms"; allowed: 1s to 24h`)
}

// TestPathIsGivenUp: a path that could not be brought up as often as the configuration says
// stays down, which is shown with what to do, until it is reconnected, or the configuration
// says otherwise.
func TestPathIsGivenUp(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	byPaths(t, alpha, beta, overTCP)
	alpha.declareBy(beta, "beta", 2, overTCP+"reconnect_attempts: 2\n")
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	c := alpha.attach("disk")
	lose := func() {
		t.Helper()
		alpha.allUp(2)
		beta.declareBy(alpha, "alpha", 1, "")
		eventually(t, "the path is given up", func() bool { return alpha.paths()["lan"].State == api.PathGivenUp })
		p := alpha.paths()["lan"]
		says(t, p.Problem, p.Problem.Code, "given up after 2 attempts", "ironwarp path reconnect beta lan")
		if n := alpha.status().Sessions[0].ReconnectAttempts; n != 2 {
			t.Errorf("%d attempts", n)
		}
		ok(t, c, cmdRead, 0, 4096, nil) // by the other path
		beta.declareBy(alpha, "alpha", 1, overTCP)
	}
	lose()
	if _, err := alpha.api.OrderPath(t.Context(), api.PathRequest{Peer: "beta", Path: "lan", Order: api.PathReconnect}); err != nil {
		t.Fatal(err)
	}
	lose()
	alpha.declareBy(beta, "beta", 2, overTCP)
	alpha.allUp(2)
}
