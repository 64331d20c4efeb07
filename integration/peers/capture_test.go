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
	files := map[string]string{}
	var end []func()
	for name, args := range map[string][]string{"payload": {"--payload"}, "headers": {"--peer", "beta"}} {
		file := filepath.Join(s.alpha.Dir(), name+".pcapng")
		files[name] = file
		cmd := s.alpha.Command(t.Context(), program.Path(t), append([]string{"capture", "-w", file}, args...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end = append(end, func() {
			cmd.Process.Signal(os.Interrupt)
			if err := cmd.Wait(); err != nil || !bytes.Contains(said.Bytes(), []byte("0 dropped")) {
				t.Errorf("ironwarp capture: %v: %s", err, said.String())
			}
		})
	}
	status := func() int {
		st, err := s.alpha.Client().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(st.Captures)
	}
	s.until("both captures run", func() bool { return status() == 2 })
	atts, err := s.alpha.Client().Attachments(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.readDisk(atts[0].Socket)
	for _, f := range end {
		f()
	}
	if n := status(); n != 0 {
		t.Errorf("%d captures are left", n)
	}
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(file)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		has := 0
		text := s.beta.Canary().Bytes(16)
		for i := range 8 {
			has += bytes.Count(data, text[i:i+8])
		}
		if (has > 0) != (name == "payload") || len(data) < 1000 {
			t.Errorf("the capture of %s, of %d bytes, has the canary %d times", name, len(data), has)
		}
	}
	counts, err := wire.Stop() // which fails where the canary is
	if err != nil {
		t.Fatal(err)
	}
	if counts.ESP == 0 {
		t.Errorf("the capture of the wire proves nothing: %v", counts)
	}
}
