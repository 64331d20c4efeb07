package capture

import (
	"bytes"
	"compress/gzip"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// packet is a TCP segment between two fixed ends.
type packet struct {
	fromServer, syn bool
	seq             uint32
	data            string
}

func file(t *testing.T, packets ...packet) []byte {
	t.Helper()
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		ip := &layers.IPv4{Version: 4, TTL: 1, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
		tcp := &layers.TCP{SrcPort: 5, DstPort: 6, Seq: p.seq, SYN: p.syn, ACK: p.fromServer || !p.syn}
		if p.fromServer {
			ip.SrcIP, ip.DstIP, tcp.SrcPort, tcp.DstPort = ip.DstIP, ip.SrcIP, 6, 5
		}
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, tcp, gopacket.Payload(p.data)); err != nil {
			t.Fatal(err)
		}
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(0, 0), CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}
		if err := w.WritePacket(ci, b.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// Segments that come twice, overlap, come too early or cross the end of the
// sequence numbers make the bytes that were sent.
func TestStreamsArePutTogether(t *testing.T) {
	b := file(t,
		packet{syn: true, seq: 0xfffffffd}, packet{fromServer: true, syn: true, seq: 9},
		packet{seq: 1, data: "defg"}, packet{seq: 0xfffffffe, data: "ab"}, packet{seq: 0xffffffff, data: "bc"},
		packet{seq: 0xfffffffe, data: "ab"}, packet{seq: 4, data: "ghi"}, packet{fromServer: true, seq: 10, data: "xyz"})
	var zipped bytes.Buffer
	gz := gzip.NewWriter(&zipped)
	gz.Write(b)
	gz.Close()
	for name, content := range map[string][]byte{"plain": b, "gzip": zipped.Bytes()} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		conns, err := Read(path)
		if err != nil || len(conns) != 1 {
			t.Fatalf("%s: %d connections, %v", name, len(conns), err)
		}
		c := conns[0]
		if string(c.FromClient) != "abcdefghi" || string(c.FromServer) != "xyz" || c.Client.String() != "10.0.0.1:5" || c.Server.Port() != 6 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestIncompleteCapturesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		content []byte
		want    string
	}{
		"a gap":        {file(t, packet{syn: true, seq: 0}, packet{seq: 2, data: "b"}), "gap"},
		"no beginning": {file(t, packet{seq: 2, data: "b"}), "beginning"},
		"no capture":   {[]byte("text"), "x"},
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, tc.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file is read")
	}
}
