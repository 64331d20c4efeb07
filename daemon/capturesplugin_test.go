package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/scsi"
)

// dissect has Wireshark's dissectors and our plugin look at a capture.
func dissect(t *testing.T, file []byte, args ...string) string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: apt install tshark")
	}
	name := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tshark, append([]string{"-r", name, "-X", "lua_script:../packaging/wireshark/ironwarp.lua", "-o", "tcp.try_heuristic_first:TRUE"}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || strings.Contains(errs.String(), "Lua") {
		t.Fatalf("tshark: %v: %s", err, errs.String())
	}
	return string(out)
}

// understood checks that Wireshark says what is wanted, and nothing of what is wrong.
func understood(t *testing.T, said string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("Wireshark does not say %q", w)
		}
	}
	for _, w := range []string{"Malformed", "Lua Error", "egment not captured", "unseen segment", "etransmission"} {
		if i := strings.Index(said, w); i >= 0 {
			t.Errorf("Wireshark says: %s", said[max(0, i-600):min(len(said), i+200)])
		}
	}
}

// What hosts say about disks is understood from a session's first message on: whole, and by what Immediate Data says where
// payload is cut.
func TestWiresharkUnderstandsDisks(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	whole, cut := beta.capture(t.Context(), api.CaptureRequest{Payload: true}, true), alpha.capture(t.Context(), api.CaptureRequest{}, true)
	disk := alpha.attach("disk")
	writeSecret(t, disk, 1)
	ok(t, disk, cmdFlush, 0, 0, nil)
	file, _ := whole.end()
	understood(t, dissect(t, file), "RTRS INFO_REQ", "RTRS INFO_RSP", "RNBD SESS_INFO", "RNBD OPEN disk", "RNBD write 65536 bytes at sector 0", "RNBD read 65536 bytes", "RNBD flush", "RTRS IO_RSP chunk")
	file, _ = cut.end()
	said := dissect(t, file)
	understood(t, said, "DDP/RDMA", "Write [", "RTRS IO_REQ chunk", "RTRS IO_RSP chunk")
	if strings.Contains(said, "RNBD") || shows(file) {
		t.Error("a capture without payload shows what was asked for")
	}
}

// What an iSCSI initiator says over RDMA is understood, in both start-ups.
func TestWiresharkUnderstandsISER(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Path: beta.image("other.img", 4<<20)})
	for n, how := range []string{"RDMA mode", "streaming mode"} {
		t.Run(how, func(t *testing.T) {
			c := beta.capture(t.Context(), api.CaptureRequest{Payload: true}, true)
			s := mustInRDMA(t, port, n == 1, "iqn.x:r")
			data := make([]byte, 64<<10)
			if st, err := s.Do(t.Context(), 0, []byte{scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 128, 0}, data, nil); err != nil || st != scsi.Good {
				t.Fatalf("%v, %v", st, err)
			}
			if st, err := s.Do(t.Context(), 0, []byte{scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 128, 0}, nil, data); err != nil || st != scsi.Good {
				t.Fatalf("%v, %v", st, err)
			}
			file, _ := c.end()
			understood(t, dissect(t, file, "-V"), "iSER over iWARP", "Write STag valid: True", "Read STag valid: True", "Opcode: SCSI Command", "Opcode: SCSI Response", "OpCode: Read Request", "OpCode: Write")
		})
	}
}
