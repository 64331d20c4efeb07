package rtrs

import (
	"testing"
	"time"
)

// A session is over when its client has said so by one path, whatever has become of the others.
func TestByeOnOnePathEndsTheSession(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Hour})
	rs, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	allUp(t, cl)
	rs[0].freeze(true)
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session is over", func() bool { return j.closed.Load() == 1 })
	rs[0].freeze(false)
}
