package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
)

// TestClockOfStrongSwanStepsUnderVerifiedIO moves the wall clock of both strongSwans
// (through Debian's faketime library) forward and back under load, by more than the
// lifetime of any SA. SA lifetimes are counted on the monotonic clock, both in
// strongSwan and in the daemon, whose runtime uses it for all timers; the daemon's own
// wall clock cannot be moved without moving this machine's.
func TestClockOfStrongSwanStepsUnderVerifiedIO(t *testing.T) {
	require(t)
	libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if len(libs) == 0 {
		t.Skip("no libfaketimeMT.so.1: apt install faketime")
	}
	clock := filepath.Join(t.TempDir(), "clock")
	set := func(offset string) {
		if err := os.WriteFile(clock+".new", []byte(offset+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	set("+0h")
	s := &scene{charonEnv: []string{"LD_PRELOAD=" + libs[0], "FAKETIME_TIMESTAMP_FILE=" + clock, "FAKETIME_NO_CACHE=1",
		"DONT_FAKE_MONOTONIC=1", "FAKETIME_FORCE_MONOTONIC_FIX=0"}}
	s.start(t)
	l := s.begin(t, node.Load{})
	for _, hours := range []int{29, -29, -9605, 9605, 0} {
		step := fmt.Sprintf("%+dh", hours)
		set(step)
		s.mustFlow(t, l)
		// A rekey and a new child at the new time.
		old := s.children(t)
		for _, n := range s.nodes() {
			if _, err := n.Client().RekeyIKE(t.Context(), s.other(n).Name()); err != nil {
				t.Logf("%s: rekey of the IKE SA at %s: %v", n.Name(), step, err)
			}
			s.mustFlow(t, l)
		}
		s.eventually(t, "a child is deleted", l, func(context.Context) bool { return s.deleteAtOnce(t, []*node.Node{s.alpha})["alpha"] > 0 })
		s.awaitNewChild(t, l, old)
		s.mustFlow(t, l)
		for _, n := range s.nodes() {
			showsTime(t, n, time.Now().Add(time.Duration(hours)*time.Hour))
		}
	}
	for _, n := range s.nodes() {
		sas, err := n.Client().SAs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sa := range sas {
			if sa.AgeSeconds < 0 || sa.AgeSeconds > time.Since(l.began).Seconds()+5 {
				t.Errorf("%s says that %s is %.0f s old", n.Name(), sa.Child, sa.AgeSeconds)
			}
		}
	}
	s.sameStreams(t, l)
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}

// showsTime fails the test unless strongSwan's log was last written at about that
// time of day.
func showsTime(t *testing.T, n *node.Node, want time.Time) {
	t.Helper()
	log, err := os.ReadFile(n.CharonLog())
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	last, _, _ := bytes.Cut(lines[len(lines)-1], []byte(" "))
	got, err := time.Parse("15:04:05", string(last))
	if err != nil {
		t.Fatalf("%s: the last line of strongSwan's log begins with %q: %v", n.Name(), last, err)
	}
	seconds := func(t time.Time) int { return t.Hour()*3600 + t.Minute()*60 + t.Second() }
	const day = 24 * 3600
	if off := (seconds(got) - seconds(want.Local()) + 3*day/2) % day; off < day/2-300 || off > day/2+300 {
		t.Errorf("%s: strongSwan takes it to be %s, and its clock was set to %s", n.Name(), last, want.Local().Format("15:04:05"))
	}
}
