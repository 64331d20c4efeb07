package chaos

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
)

// TestUpgradeOfOneHostAtATimeUnderVerifiedIO runs the program of the last tag on both hosts,
// and then this tree's on one of them and on both. The exporting host is upgraded under
// verified I/O, the disk comes back by itself after the attaching host's upgrade, and what was
// written before is there. As the last tag may speak the same versions of the protocols, it
// runs also with those of a release before.
func TestUpgradeOfOneHostAtATimeUnderVerifiedIO(t *testing.T) {
	require(t)
	for name, older := range map[string]bool{"the last tag": false, "with older protocols": true} {
		t.Run(name, func(t *testing.T) {
			tag, binary := node.Release(t, older)
			t.Logf("from %s", tag)
			both := rnbd.Version.String() // what they speak while one is of the tag
			if older {
				both = (rnbd.Version &^ 0xff).String()
			}
			t.Run("exporting host first", func(t *testing.T) {
				s := &scene{kind: transport.TCP, binary: binary}
				s.start(t)
				check := s.remember(t)
				l := s.begin(t, node.Load{})
				s.speak(t, both)
				s.upgradeExporting(t, l)
				s.speak(t, both)
				carried := s.upgradeAttaching(t, l)
				s.speak(t, rnbd.Version.String())
				check()
				s.judge(t, carried)
			})
			t.Run("attaching host first", func(t *testing.T) {
				s := &scene{kind: transport.TCP, binary: binary}
				s.start(t)
				check := s.remember(t)
				s.upgradeAttaching(t, s.begin(t, node.Load{}))
				s.speak(t, both)
				l := s.begin(t, node.Load{})
				s.upgradeExporting(t, l)
				s.speak(t, rnbd.Version.String())
				done := l.end(t)
				check()
				s.judge(t, done.Written+done.Read)
			})
		})
	}
}

// upgrade has a host run this tree's program. Its command line is used with the daemon of
// before, as it is between the installation and the restart.
func (s *scene) upgrade(t *testing.T, n *node.Node) {
	t.Helper()
	n.Install(program.Path(t))
	for _, args := range [][]string{{"status"}, {"--json", "session", "ls"}, {"export", "ls"}} {
		_, err := n.Ironwarp(t.Context(), nil, args...)
		must(t, err)
	}
	must(t, n.Stop())
	must(t, n.Start(t.Context()))
}

// upgradeExporting upgrades beta, and the load goes on.
func (s *scene) upgradeExporting(t *testing.T, l *load) {
	t.Helper()
	s.upgrade(t, s.beta)
	s.mustFlow(t, l)
}

// upgradeAttaching upgrades alpha, which ends the load, and waits for its disk. It returns how
// many bytes a new load has carried.
func (s *scene) upgradeAttaching(t *testing.T, l *load) int64 {
	t.Helper()
	s.upgrade(t, s.alpha)
	<-l.ended // fio has lost its server
	s.eventually(t, "the disk is attached again", nil, func(ctx context.Context) bool {
		list, err := s.alpha.Client().Attachments(ctx)
		return err == nil && len(list) == 1 && list[0].State == api.AttachReady
	})
	done := s.begin(t, node.Load{}).end(t)
	return done.Written + done.Read
}

// remember writes a block that the load leaves alone, and returns what checks that it is there.
func (s *scene) remember(t *testing.T) (check func()) {
	t.Helper()
	const place = 48 << 20
	want := bytes.Repeat([]byte("upgraded"), 512)
	do := func(command uint16, payload []byte) []byte {
		t.Helper()
		c := s.nbd(t, s.alpha, s.disk.Socket)
		defer c.Close()
		r, err := c.Do(0, command, place, 4096, payload)
		if err != nil || r.Error != 0 {
			t.Fatalf("command %d: error %d, %v", command, r.Error, err)
		}
		return r.Data
	}
	do(nbdWrite, want)
	return func() {
		t.Helper()
		if !bytes.Equal(do(nbdRead, nil), want) {
			t.Error("what was written before the upgrade is not there")
		}
	}
}

// speak fails the test unless beta has agreed with alpha on that version of RNBD last.
func (s *scene) speak(t *testing.T, want string) {
	t.Helper()
	var last string
	for line := range strings.Lines(s.beta.LogTail(1 << 30)) {
		if i := strings.Index(line, " rnbd="); i >= 0 && strings.Contains(line, `"session introduced"`) {
			last = strings.Fields(line[i+len(" rnbd="):])[0]
		}
	}
	if last != want {
		t.Fatalf("the hosts speak RNBD %q, want %q", last, want)
	}
}
