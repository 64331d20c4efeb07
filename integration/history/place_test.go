package history

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// third is a third host, gamma, which attaches beta's disk as well. Beta has its state on
// the storage that loses power.
type third struct {
	*powered
	gamma *proc
}

func newThird(t *testing.T, off checks.Check) *third {
	t.Helper()
	s := &third{}
	s.powered = newPowered(t, off, func(p *powered) {
		file := filepath.Join(p.beta.dir, "ironwarp.yaml")
		main, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p.beta.write("ironwarp.yaml", strings.Replace(string(main), "state_dir: state", "state_dir: "+filepath.Join(p.m.dir, "state"), 1))
		s.gamma = p.newProc("gamma", checks.None)
		s.gamma.write("ironwarp.yaml", mainFile(t, s.gamma.port))
		s.gamma.write("peers.d/beta.yaml", peerFile("beta", p.beta.port)+"local_address: 127.0.0.2\n")
		p.beta.write("peers.d/gamma.yaml", strings.Replace(peerFile("gamma", s.gamma.port), "127.0.0.1", "127.0.0.2", 1))
	})
	s.gamma.start()
	return s
}

// allow has beta let others attach the disk.
func (s *third) allow(who string) {
	s.Helper()
	s.beta.write("exports.d/disk.yaml", fmt.Sprintf("name: disk\npath: %s\nallow: [%s]\n", s.d.path, who))
	s.beta.reload()
}

// A writer whose path was cut, and whose disk another host took over before the
// exporting host lost its power, is not let in again: its last write would land on what
// the other host wrote. The checker would not find that, as that write was under way
// all the time.
func TestOvertakenWriterStaysAwayAfterAPowerCut(t *testing.T) {
	off := checks.None
	if checks.Weakened {
		off = checks.WriterReservation
	}
	s := newThird(t, off)
	s.attach(s.d)
	c := s.dial(s.d)
	s.must(c.start(opWrite, 0, 1, true))
	// Alpha keeps its place over a power cut.
	s.wire.setDown(true)
	s.powerCut()
	s.allow("alpha, gamma")
	if _, err := s.gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil); err == nil || !strings.Contains(err.Error(), "its place is kept") {
		t.Errorf("another host attaches it: %v", err)
	}
	s.wire.setDown(false)
	s.must(c.start(opWrite, 0, 1, true))
	command(t, "sync", "--file-system", s.m.dir)

	s.wire.setDown(true)
	s.rec.fault("host cut off", true)
	late := c.start(opWrite, 0, 1, true)
	until(t, "a write waits for the path", func() bool { return s.inFlight() > 0 })
	s.allow("gamma")
	s.rec.attached(s.d.number)
	until(t, "gamma attaches the disk", func() bool {
		_, err := s.gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
		return err == nil
	})
	other := must(dialClient(s.rec, s.d.number, filepath.Join(s.gamma.dir, "run", "nbd", "beta-disk.sock"), "disk"))(t)
	s.must(other.start(opWrite, 0, 1, true))
	s.powerCut()
	s.gamma.kill()
	other.kill()
	s.allow("alpha") // so that gamma's place is not kept
	end := s.rec.excuse(s.d.number, "its writer was overtaken")
	s.wire.setDown(false)
	if landed := s.wait(late); landed != checks.Weakened {
		t.Fatalf("the write of before: carried out %v, %v", landed, late.errno)
	}
	if checks.Weakened {
		return
	}
	if at := s.attachment(s.d); at.State != api.AttachFailed || at.Problem == nil || !strings.Contains(at.Problem.Message, "opened for writing elsewhere") || !strings.Contains(at.Problem.Fix, "ironwarp attach beta/disk") {
		t.Errorf("status: %+v, %+v", at, at.Problem)
	}
	if log := s.alpha.logTail(); !strings.Contains(log, "opened for writing elsewhere while this host was away (by whom: ") {
		t.Error("the log does not say why I/O fails")
	}
	s.reattach(s.d)
	end()
	c = s.dial(s.d)
	s.must(c.readAll(1)...)
	s.must(c.start(opWrite, 0, 1, true))
	s.audit(s.d, s.d.path)
	for _, w := range s.rec.judge(t, true) {
		t.Error(w)
	}
}
