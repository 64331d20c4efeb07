package iscsitest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsitest"
)

func TestURLs(t *testing.T) {
	for url, want := range map[string]iscsitest.Target{
		"iscsi://192.0.2.1/iqn.2026-01.org.example:disk/0":              {Address: "192.0.2.1:3260", Name: "iqn.2026-01.org.example:disk"},
		"iser://[2001:db8::1]:3261/iqn.2026-01.org.example:disk/7":      {Address: "[2001:db8::1]:3261", Name: "iqn.2026-01.org.example:disk", LUN: 7, Over: iscsitest.ISER},
		"iser-streaming://beta/eui.0123456789abcdef/16383":              {Address: "beta:3260", Name: "eui.0123456789abcdef", LUN: 16383, Over: iscsitest.ISERStreaming},
		"http://192.0.2.1/iqn.2026-01.org.example:disk/0":               {},
		"iscsi://192.0.2.1/iqn.2026-01.org.example:disk":                {},
		"iscsi://192.0.2.1/disk/0":                                      {},
		"iscsi://192.0.2.1/iqn.2026-01.org.example:disk/16384":          {},
		"iscsi://192.0.2.1/iqn.2026-01.org.example:disk/-1":             {},
		"iscsi:///iqn.2026-01.org.example:disk/0":                       {},
		"iscsi://alice%secret@192.0.2.1/iqn.2026-01.org.example:disk/0": {},
		"iscsi://alice@192.0.2.1/iqn.2026-01.org.example:disk/0":        {},
		"": {},
	} {
		got, err := iscsitest.ParseURL(url)
		if want.Name == "" {
			if !errors.Is(err, iscsitest.ErrTarget) {
				t.Errorf("%s: %+v, %v", url, got, err)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", url, got, err)
		}
		if again, err := iscsitest.ParseURL(got.URL()); err != nil || again != want {
			t.Errorf("%s: %+v, %v", got.URL(), again, err)
		}
	}
}

// TestCasesAreNamedOnce, and each says where its sentence stands.
func TestCasesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range iscsitest.Cases() {
		if seen[c.ID] || c.Source == "" || c.Says == "" || !strings.Contains(c.ID, ".") {
			t.Errorf("%+v", c)
		}
		seen[c.ID] = true
	}
	if len(seen) < 250 {
		t.Errorf("%d cases", len(seen))
	}
}

// failing is the report about a case that our target fails: it does not know the secret.
func failing(t *testing.T) *iscsitest.Report {
	t.Helper()
	x := chap.Credentials{Name: "alice", Secret: []byte("secret of the initiator"), OwnName: "disk", OwnSecret: []byte("secret of the target")}
	target := serve(t, []chap.Credentials{x})
	x.OwnSecret = []byte("what it does not know")
	target.CHAP = &x
	report, err := iscsitest.Run(t.Context(), target, iscsitest.Options{Only: []string{"chap.mutual", "chap.login", "data.write"}})
	if err != nil {
		t.Fatal(err)
	}
	if report.Count(iscsitest.Fail) != 1 || report.Count(iscsitest.Skip) != 1 || report.Count(iscsitest.Pass) != 1 || !report.Bad() {
		t.Fatalf("%+v", report)
	}
	return report
}

// TestReports: what machines read says what the verdicts are, and nothing has a response of CHAP, by which secrets
// could be tried.
func TestReports(t *testing.T) {
	report := failing(t)
	var b bytes.Buffer
	if err := iscsitest.WriteJUnit(&b, report); err != nil {
		t.Fatal(err)
	}
	var x struct {
		Suites []struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Skipped  int `xml:"skipped,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
					Text    string `xml:",chardata"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b.Bytes(), &x); err != nil {
		t.Fatal(err)
	}
	if len(x.Suites) != 1 || x.Suites[0].Tests != 3 || x.Suites[0].Failures != 1 || x.Suites[0].Skipped != 1 {
		t.Errorf("%+v", x)
	}
	for _, c := range x.Suites[0].Cases {
		if (c.Failure != nil) != (c.Name == "chap.mutual") {
			t.Errorf("%+v", c)
		}
		if f := c.Failure; f != nil && (!strings.Contains(f.Message, "its own secret") || !strings.Contains(f.Text, "RFC 7143") || !strings.Contains(f.Text, "CHAP_R=*")) {
			t.Errorf("%+v", f)
		}
	}
	j, err := json.Marshal(report)
	if err != nil || !bytes.Contains(j, []byte(`"verdict":"FAIL"`)) || !bytes.Contains(j, []byte(`"over":"tcp"`)) {
		t.Errorf("%s, %v", j, err)
	}
	section := report.Markdown("A target")
	for _, want := range []string{"## A target, iscsi\n", "| chap | 1 | 1 | 0 | 0 | 0 |\n", "| data | 0 | 0 | 0 | 1 | 0 |\n", "- FAIL `chap.mutual` (RFC 7143"} {
		if !strings.Contains(section, want) {
			t.Errorf("%q is not in %s", want, section)
		}
	}
	for _, s := range []string{b.String(), string(j), section} {
		if strings.Contains(s, "CHAP_R=0x") || strings.Contains(s, "secret of the initiator") {
			t.Errorf("a secret, or what helps to guess it, is in %s", s)
		}
	}
}

// TestCapture: it has what was sent and received, in the order of each direction, without the response of CHAP.
func TestCapture(t *testing.T) {
	for _, r := range failing(t).Results {
		if r.Verdict != iscsitest.Fail {
			continue
		}
		var want [2][]byte
		for _, e := range r.Trace {
			if e.PDU != nil && e.Sent {
				want[0] = append(want[0], e.PDU.Bytes()...)
			} else if e.PDU != nil {
				want[1] = append(want[1], e.PDU.Bytes()...)
			}
		}
		var b bytes.Buffer
		if err := r.WriteCapture(&b, time.Now()); err != nil {
			t.Fatal(err)
		}
		f, err := pcapgo.NewNgReader(&b, pcapgo.DefaultNgReaderOptions)
		if err != nil {
			t.Fatal(err)
		}
		var got [2][]byte
		next := [2]uint32{1, 1}
		for {
			p, _, err := f.ReadPacketData()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			x := gopacket.NewPacket(p, layers.LayerTypeIPv4, gopacket.Default)
			tcp, ok := x.Layer(layers.LayerTypeTCP).(*layers.TCP)
			if !ok {
				t.Fatalf("%v", x)
			}
			way := 0
			if tcp.SrcPort == iscsitest.DefaultPort {
				way = 1
			}
			if tcp.Seq != next[way] || tcp.Ack != next[1-way] {
				t.Errorf("sequence numbers %d and %d, want %d and %d", tcp.Seq, tcp.Ack, next[way], next[1-way])
			}
			got[way] = append(got[way], tcp.Payload...)
			next[way] += uint32(len(tcp.Payload))
		}
		if !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[1]) || len(got[0]) == 0 {
			t.Errorf("%d and %d bytes, want %d and %d", len(got[0]), len(got[1]), len(want[0]), len(want[1]))
		}
		if bytes.Contains(got[0], []byte("CHAP_R=0x")) {
			t.Error("the response of CHAP is in the capture")
		}
	}
}

// TestTargetThatIsNotThere is no verdict.
func TestTargetThatIsNotThere(t *testing.T) {
	report, err := iscsitest.Run(t.Context(), iscsitest.Target{Address: "127.0.0.1:1", Name: name}, iscsitest.Options{})
	if !errors.Is(err, iscsitest.ErrUnreachable) {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestTargetThatGoesAway: it is said after which case, and the others do not wait for it for an hour.
func TestTargetThatGoesAway(t *testing.T) {
	left := 4
	dial := through(func(nc net.Conn) net.Conn { return nc })
	o := iscsitest.Options{Recover: time.Millisecond, Only: []string{"login"}, Dial: func(ctx context.Context, address string) (net.Conn, error) {
		if left--; left < 0 {
			return nil, errors.New("it is gone")
		}
		return dial(ctx, address)
	}}
	report, err := iscsitest.Run(t.Context(), serve(t, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range report.Results {
		if (r.Verdict == iscsitest.TargetDown) != (i > 0) {
			t.Errorf("%d: %s", i, r.Line())
		}
	}
	if !report.Bad() {
		t.Error(report.Summary())
	}
}
