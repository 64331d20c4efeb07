package peers

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestCaptureIsInClearAndTheWireIsNot reads a disk in ESP that is full of the canary, while it is captured in three ways: with
// payload, which has the canary and is the control for the other two, without it, and on the wire. A capture with SIGINT at its
// end is a whole file of root's.
func TestCaptureIsInClearAndTheWireIsNot(t *testing.T) {
	for _, carrier := range []string{"tcp", "sctp"} {
		t.Run(carrier, func(t *testing.T) {
			if carrier == "sctp" {
				lab.RequireKernelSCTP(t)
				t.Attr("row", "the kernel's SCTP, captured by the daemon: in clear, with payload only where it is asked for, while the wire has ESP")
			}
			captureIsInClear(t, carrier)
		})
	}
}

func captureIsInClear(t *testing.T, carrier string) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", carrier); err != nil {
		t.Fatal(err)
	}
	wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.attach()
	end := s.captureTwice(s.alpha, "beta")
	atts, err := s.alpha.Client().Attachments(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.readDisk(atts[0].Socket)
	end()
	counts, err := wire.Stop() // which fails where the canary is
	if err != nil {
		t.Fatal(err)
	}
	if counts.ESP == 0 {
		t.Errorf("the capture of the wire proves nothing: %v", counts)
	}
}

// captureTwice has a host's daemon capture with payload, and without it what it has to do with a peer. The function that is
// returned ends both, fails the test unless one has the canary and the other does not, and returns the files.
func (s *scene) captureTwice(n *node.Node, peer string) (end func() (payload, headers string)) {
	s.t.Helper()
	files := map[string]string{}
	var ends []func()
	for name, args := range map[string][]string{"payload": {"--payload"}, "headers": {"--peer", peer}} {
		file := filepath.Join(n.Dir(), name+".pcapng")
		files[name] = file
		cmd := n.Command(s.t.Context(), program.Path(s.t), append([]string{"capture", "-w", file}, args...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
		ends = append(ends, func() {
			cmd.Process.Signal(os.Interrupt)
			if err := cmd.Wait(); err != nil || !bytes.Contains(said.Bytes(), []byte("0 dropped")) {
				s.t.Errorf("ironwarp capture: %v: %s", err, said.String())
			}
		})
	}
	status := func() int {
		st, err := n.Client().Status(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		return len(st.Captures)
	}
	s.until("both captures run", func() bool { return status() == 2 })
	return func() (payload, headers string) {
		s.t.Helper()
		for _, f := range ends {
			f()
		}
		if n := status(); n != 0 {
			s.t.Errorf("%d captures are left", n)
		}
		for name, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				s.t.Fatal(err)
			}
			st, err := os.Stat(file)
			if err != nil || st.Mode().Perm() != 0o600 {
				s.t.Errorf("%s: %v, %v", name, st, err)
			}
			has := 0
			text := n.Canary().Bytes(16)
			for i := range 8 {
				has += bytes.Count(data, text[i:i+8])
			}
			if (has > 0) != (name == "payload") || len(data) < 1000 {
				s.t.Errorf("the capture of %s, of %d bytes, has the canary %d times", name, len(data), has)
			}
		}
		return files["payload"], files["headers"]
	}
}
