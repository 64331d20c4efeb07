package sctpadapt_test

import (
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// recorder writes packets into a capture file, as UDP over IPv4.
type recorder struct {
	mu sync.Mutex
	w  *pcapgo.Writer
	n  int64
}

func (r *recorder) record(fromClient bool, p []byte) bool {
	ports := [2]layers.UDPPort{40000, 9899}
	if !fromClient {
		ports[0], ports[1] = ports[1], ports[0]
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: []byte{127, 0, 0, 1}, DstIP: []byte{127, 0, 0, 1}}
	udp := &layers.UDP{SrcPort: ports[0], DstPort: ports[1]}
	udp.SetNetworkLayerForChecksum(ip)
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(p)); err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	r.w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, r.n*1000), CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}, b.Bytes())
	return false
}

// tshark, an implementation of others, decodes our chunks and finds nothing wrong
// with them.
func TestTsharkUnderstandsUs(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: apt install tshark")
	}
	name := filepath.Join(t.TempDir(), "ours.pcap")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	r := &recorder{w: w}
	mtu := func(c *sctp.Config) { c.MTU = 1500 }
	x := connectWith(t, mtu, sctpadapt.Config{}, sctpadapt.Config{}, func(t testing.TB, to netip.AddrPort) netip.AddrPort {
		return relayed(sctptest.Faults{Drop: r.record, Loss: 0.05, Duplicate: 0.05})(t, to)
	})
	a, b := x.session(t)
	for i := range 200 {
		hdr := ddp.AppendUntagged(nil, true, 0x43, 0, 0, uint32(i+1), 0)
		if err := a.Append(hdr, [][]byte{make([]byte, i*2)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	a.CloseWrite()
	if err := b.Receive(&tally{}); err != io.EOF {
		t.Fatal(err)
	}
	b.Close()
	a.Close()
	if err := x.aa.Shutdown(patient(t)); err != nil {
		t.Error(err)
	}
	<-x.ab.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", name, "-o", "sctp.checksum:CRC 32c", "-V").CombinedOutput()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, out)
	}
	said := string(out)
	for _, want := range []string{
		"INIT chunk", "INIT_ACK chunk", "COOKIE_ECHO chunk", "COOKIE_ACK chunk", "DATA chunk", "SACK chunk", "SHUTDOWN chunk", "SHUTDOWN_ACK chunk", "SHUTDOWN_COMPLETE chunk",
		"Adaptation Layer Indication parameter (Indication: 1)", "DDP Segment Chunk", "DDP Stream Session Control", "Duplicate TSN", "Gap Acknowledgement",
	} {
		if !strings.Contains(strings.ToLower(said), strings.ToLower(want)) {
			t.Errorf("tshark sees no %s", want)
		}
	}
	for _, bad := range []string{"Malformed", "incorrect", "Checksum Status: Bad", "Dissector bug", "Unreassembled"} {
		if i := strings.Index(said, bad); i >= 0 {
			t.Errorf("tshark says: ... %s ...", said[max(0, i-300):min(len(said), i+100)])
		}
	}
	if n := strings.Count(said, "Checksum Status: Good"); n < 50 {
		t.Errorf("tshark finds %d good checksums", n)
	}
}
