package peers

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/scsi"
)

// ofShort are the sizes of I/O whose data are in its own message, ofLong that of I/O whose data RDMA brings.
const (
	ofShort = 4096
	ofLong  = 128 << 10
)

// dissect has Wireshark's dissectors and ours name the packets of a capture, and fails the test unless they say each of these
// words so often at least, and none that means that they do not understand.
func dissect(t *testing.T, capture string, want map[string]int, but ...string) {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: apt install tshark")
	}
	var errs bytes.Buffer
	// At iSCSI's port Wireshark takes RDMA for iSCSI over TCP otherwise, as docs/capture.md says.
	cmd := exec.Command(path, "-r", capture, "-V", "-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.check_checksum:TRUE", "-X", "lua_script:../../packaging/wireshark/ironwarp.lua")
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, errs.String())
	}
	said := string(out)
	for _, wrong := range append([]string{"Malformed", "Bad CRC32", "Checksum Status: Bad", "etransmission", "egment not captured", "unseen segment", "Dissector bug", "Lua Error"}, but...) {
		if i := strings.Index(said, wrong); i >= 0 {
			t.Errorf("%s: tshark says: ... %s ...", filepath.Base(capture), said[max(0, i-600):min(len(said), i+200)])
		}
	}
	for w, n := range want {
		if got := strings.Count(said, w); got < n {
			t.Errorf("%s: tshark says %q %d times; want: %d", filepath.Base(capture), w, got, n)
		}
	}
}

// TestCaptureOfAnISERInitiatorHasItsPayloadOnlyIfAskedFor: an initiator writes the canary, in the message of the command and by RDMA, and
// reads it back, in both start-ups. With payload Wireshark dissects iSER and iSCSI; without it, the headers by which it travels.
func TestCaptureOfAnISERInitiatorHasItsPayloadOnlyIfAskedFor(t *testing.T) {
	s := newTargetScene(t, 1)
	for n, how := range []string{"RDMA mode", "streaming mode"} {
		end := s.captureTwice(s.beta, "alpha")
		var i *isertest.Initiator
		var x *isertest.Session
		s.until("the initiator is logged in, by "+how, func() bool {
			var err error
			i, x, err = s.alpha.LoginISER(t.Context(), s.portal, n == 1, "InitiatorName=iqn.2026-01.org.example:i", "TargetName="+targetName)
			if err != nil {
				t.Logf("not yet: %v", err)
			}
			return err == nil
		})
		defer i.Close()
		if _, err := x.Do(t.Context(), 0, []byte{scsi.TestUnitReady}, nil, nil); err != nil { // takes the unit attention
			t.Fatal(err)
		}
		data := s.beta.Canary().Bytes(ofLong)
		write := func(blocks int) []byte {
			return []byte{scsi.Write10, 0, 0, 0, 0, 0, 0, byte(blocks >> 8), byte(blocks), 0}
		}
		if st, err := x.DoImmediate(t.Context(), 0, write(ofShort/scsiBlock), data[:ofShort]); err != nil || st != scsi.Good {
			t.Fatalf("%s: immediate data: %v, %v", how, st, err)
		}
		if st, err := x.Do(t.Context(), 0, write(ofLong/scsiBlock), data, nil); err != nil || st != scsi.Good {
			t.Fatalf("%s: write: %v, %v", how, st, err)
		}
		in := make([]byte, ofLong)
		read := write(ofLong / scsiBlock)
		read[0] = scsi.Read10
		if st, err := x.Do(t.Context(), 0, read, nil, in); err != nil || st != scsi.Good || !bytes.Equal(in, data) {
			t.Fatalf("%s: read: %v, %v", how, st, err)
		}
		i.Close()
		payload, headers := end()
		t.Run(how, func(t *testing.T) {
			dissect(t, payload, map[string]int{"iSER over iWARP": 8, "Opcode: SCSI Command (0x01)": 4, "Opcode: SCSI Response (0x21)": 4, "OpCode: Write": 2, "OpCode: Read Request": 1})
			dissect(t, headers, map[string]int{"Message sequence number:": 8, "OpCode: Write": 2, "OpCode: Read Request": 1, "OpCode: Read Response": 1}, "iSER over iWARP", "SCSI Command")
		})
		if err := os.Remove(payload); err != nil {
			t.Error(err)
		}
		if err := os.Remove(headers); err != nil {
			t.Error(err)
		}
	}
	s.nothingInClear()
}

// TestCaptureOfAnNVMeHostHasItsPayloadOnlyIfAskedFor: a host writes the canary, in a capsule and by RDMA, and reads it back.
func TestCaptureOfAnNVMeHostHasItsPayloadOnlyIfAskedFor(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--nvme-port", "4420"); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	const subsystem, host = "nqn.2026-01.org.example:disks", "nqn.2026-01.org.example:alpha"
	s.must(s.beta, "nvme", "add", "--peer", "alpha", "--nqn", subsystem, "--host", host, "--path", image, "disks")
	end := s.captureTwice(s.beta, "alpha")
	portal := netip.AddrPortFrom(s.beta.Addr(), config.DefaultNVMePort)
	h, q := s.connectNVMe(portal, subsystem, host)
	data := s.beta.Canary().Bytes(ofLong)
	io := func(op nvme.Opcode, n int) nvme.Command {
		c := q.New(op)
		c.SetNSID(1)
		c.SetRange(0, uint32(n/512))
		return c
	}
	if e, err := q.Inline(t.Context(), io(nvme.Write, ofShort), data[:ofShort]); err != nil || e.Status != nvme.Success {
		t.Fatalf("write in the capsule: %v, %v", e.Status, err)
	}
	if e, err := q.Out(t.Context(), io(nvme.Write, ofLong), data); err != nil || e.Status != nvme.Success {
		t.Fatalf("write: %v, %v", e.Status, err)
	}
	if b, e, err := q.In(t.Context(), io(nvme.Read, ofLong), ofLong); err != nil || e.Status != nvme.Success || !bytes.Equal(b, data) {
		t.Fatalf("read: %v, %v", e.Status, err)
	}
	q.Close()
	h.Admin.Close()
	payload, headers := end()
	moved := map[string]int{"OpCode: Write": 2, "OpCode: Read Request": 3, "OpCode: Read Response": 3}
	moved["OpCode: Send"] = 6
	dissect(t, payload, moved)
	delete(moved, "OpCode: Send") // which is how Wireshark says it, and our dissector what stays of it
	moved["Message sequence number:"] = 6
	dissect(t, headers, moved)
}
