package ibsimnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// require fails the test, or skips it where a program of others is missing.
func require(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// socket is a name for the sockets of one test's network.
func socket(t testing.TB) string {
	return fmt.Sprintf("ironwarp-%d-%s", os.Getpid(), strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()))
}

// until asks until yes, or fails the test after half a minute. What is awaited has no event that the test could hear.
func until(t testing.TB, what string, yes func() bool) {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(30 * time.Second); !yes(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 30 seconds", what)
		}
		<-ticker.C
	}
}

// startNetwork starts ibsim with nodes, until the test ends.
func startNetwork(t testing.TB, nodes ...string) (name string) {
	t.Helper()
	name = socket(t)
	p, err := StartIBSim(t.TempDir(), name, nodes)
	require(t, err)
	t.Cleanup(p.Stop)
	until(t, "ibsim is there", func() bool {
		c, err := Dial(t.Context(), name, nodes[0])
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return name
}

// startOpenSM starts opensm at a node until the test ends, and returns it and where its log is.
func startOpenSM(t testing.TB, socket, node, options string) (p *Process, log string) {
	t.Helper()
	dir := t.TempDir()
	p, err := StartOpenSM(dir, socket, node, "daemon FALSE\nsingle_thread TRUE\nlog_flags 0x83\nforce_log_flush TRUE\n"+options)
	require(t, err)
	t.Cleanup(p.Stop)
	return p, filepath.Join(dir, "opensm.log")
}

// logged reports whether a log has text.
func logged(log, text string) bool {
	b, _ := os.ReadFile(log)
	return strings.Contains(string(b), text)
}

// client attaches a client of our own at a node, until the test ends.
func client(t testing.TB, socket, node string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), socket, node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a MAD to a port's QP and returns the answer, or nil if that is silent: the answer to a second question, which
// the other end takes after the first, has come before. marker is that question.
func ask(t testing.TB, c *Client, lid mad.LID, qp uint32, m, marker mad.MAD) (answer *mad.MAD, length int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	first, err := c.Send(ctx, lid, qp, m)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Send(ctx, lid, qp, marker)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, n, id, err := c.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		switch id {
		case first:
			answer, length = &m, n
		case second:
			return answer, length
		}
	}
}
