package capture

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// tshark runs Wireshark's dissectors over a capture.
func tshark(t *testing.T, capture []byte, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: apt install tshark")
	}
	name := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(name, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("IRONWARP_KEEP_CAPTURES"); dir != "" {
		os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+".pcapng"), capture, 0o600)
	}
	var errs bytes.Buffer
	cmd := exec.Command(path, append([]string{"-r", name}, args...)...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %v: %v: %s", args, err, errs.String())
	}
	return string(out)
}

func TestWiresharkUnderstands(t *testing.T) {
	for _, x := range []struct {
		name, host string
		kind       transport.Kind
		setup      verbs.Setup
	}{
		{"tcp", "127.0.0.1", transport.TCP, verbs.Setup{}},
		{"tcp6", "::1", transport.TCP, verbs.Setup{}},
		{"markers", "127.0.0.1", transport.TCP, verbs.Setup{Markers: true, EMSS: func() int { return 1448 }}},
		{"large", "127.0.0.1", transport.TCP, verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU, NoCRC: true}},
		{"sctp-udp", "127.0.0.1", transport.SCTPUDP, verbs.Setup{}},
	} {
		for _, late := range []bool{false, true} {
			for _, payload := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/late=%v/payload=%v", x.name, late, payload), func(t *testing.T) {
					var c *running
					now := func(caps *Captures) { c = begin(t, caps, About{Payload: payload}) }
					first := now
					if late {
						first = nil
					}
					s := newStream(t, x.host, x.kind, x.setup, first)
					if late {
						s.talk(777)
						now(s.caps)
					}
					for _, n := range []int{1, 1000, 40000} {
						s.talk(n)
					}
					capture := c.end(t)
					fmt.Println(tshark(t, capture, "-V"))
				})
			}
		}
	}
}
