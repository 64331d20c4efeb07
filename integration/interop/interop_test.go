package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/integration/siw"
	"github.com/ironwarp/ironwarp/integration/vm"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

func TestCasesHaveNamesOfTheirOwn(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range cases() {
		if seen[c.Name()] {
			t.Errorf("two cases are called %s", c.Name())
		}
		seen[c.Name()] = true
	}
}

func TestScriptIsShell(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	l := &lab{binary: "/a dir/it's/ironwarp", self: "/a dir/interop", agent: "/b dir/agent"}
	if err := os.WriteFile(file, []byte(l.script(plan{cases: cases(), suite: "^a$/it's"})), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-n", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestCommandsSayWhatTheCaseSays(t *testing.T) {
	got := command("/bin/ironwarp", Case{Server: Ours, IPv6: true, SiwCRC: true, Size: 100, P2P: true}, 7300)
	for _, want := range []string{
		"siw=(rping -v -p 7300 -a fd09::2 -S 100 -c -V -C 5)",
		"ours=('/bin/ironwarp' rping -v -d -p 7300 -a fd09::2 --plaintext fd09::1 --no-crc -s)",
		"we_serve siw-client-ipv6-siwcrc-100-p2p 7300 1 1 2",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	got = command("/bin/ironwarp", Case{Server: Siw, OurCRC: true, Size: 64, MPA1: true}, 7301)
	for _, want := range []string{
		"siw=(rping -v -p 7301 -a 10.9.0.1 -S 64 -s)",
		"ours=('/bin/ironwarp' rping -v -d -p 7301 -a 10.9.0.1 --plaintext 10.9.0.1 -c -V -C 5 -S 64 --mpa-revision 1)",
		"siw_serves siw-server-ipv4-ourcrc-64-mpa1 7301 0 0 2",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
}

func good(c Case) Evidence {
	text := strings.Repeat("x", c.Size-1) + "\n"
	return Evidence{
		Startup:   Startup{Request: &mpa.Frame{CRC: c.OurCRC, Revision: 2}, Reply: &mpa.Frame{Reply: true, Revision: 2}},
		ClientOut: strings.Repeat("ping data: "+text, pings),
		ServerOut: strings.Repeat("server ping data: "+text, pings),
	}
}

func TestOnlyWholePingsCount(t *testing.T) {
	ours, siw := Case{Server: Ours, Size: 100}, Case{Server: Siw, Size: 100}
	for _, c := range []Case{ours, siw} {
		if v := judge(c, good(c)); !v.Worked || v.Result() != "ok" {
			t.Errorf("good evidence: %+v", v)
		}
	}
	for name, c := range map[string]struct {
		of   Case
		harm func(*Evidence)
		why  string
	}{
		"client failed":      {ours, func(e *Evidence) { e.ClientStatus, e.ClientErr = 1, "x\nno route\n" }, "no route"},
		"client never ran":   {ours, func(e *Evidence) { e.ClientStatus = -1 }, "-1"},
		"server failed":      {ours, func(e *Evidence) { e.ServerStatus = 124 }, "our server's exit status is 124"},
		"no ping arrived":    {siw, func(e *Evidence) { e.ServerOut = "" }, "5 of 5 pings, the server 0"},
		"no start-up":        {ours, func(e *Evidence) { e.Startup = Startup{} }, "no MPA start-up"},
		"refused":            {ours, func(e *Evidence) { e.Startup.Reply.Reject = true }, "refused"},
		"other revision":     {siw, func(e *Evidence) { e.Startup.Reply.Revision = 1 }, "reply of revision 1"},
		"CRC not wanted":     {siw, func(e *Evidence) { e.Startup.Reply.CRC = true }, "the reply's true"},
		"not peer to peer":   {Case{Size: 100, P2P: true}, func(*Evidence) {}, "does not ask"},
		"a ping was lost":    {ours, func(e *Evidence) { _, e.ClientOut, _ = strings.Cut(e.ClientOut, "\n") }, "4 of 5"},
		"the text is wrong":  {siw, func(e *Evidence) { e.ServerOut = strings.Replace(e.ServerOut, "x", "y", 1) }, "ping 0"},
		"the text was short": {siw, func(e *Evidence) { *e = good(Case{Size: 64}) }, "63 bytes"},
	} {
		e := good(c.of)
		c.harm(&e)
		if v := judge(c.of, e); v.Worked || v.Expected() || !strings.Contains(v.Why, c.why) {
			t.Errorf("%s: %+v", name, v)
		}
	}
	siw.Lacking = "siw is older than that"
	e := good(siw)
	if v := judge(siw, e); v.Expected() {
		t.Errorf("a case that can't work worked, and that is taken as expected: %+v", v)
	}
	e.ClientStatus = 1
	if v := judge(siw, e); !v.Expected() {
		t.Errorf("a case that can't work failed, and that is not expected: %+v", v)
	}
}

func TestDocumentHasARowForEachCaseAndVariant(t *testing.T) {
	var o outcome
	for _, c := range cases() {
		o.rping = append(o.rping, Verdict{Case: c, Worked: true, Tries: 1})
	}
	for _, v := range siw.Variants() {
		o.suite = append(o.suite, SuiteVerdict{Result: siw.Result{Variant: v.Name(), Case: "fault/write to no STag", RFC: "RFC 5041 section 7.1, rule 1"}, Tries: 1,
			Terminates: [][]byte{{0x11, 0x00, 0x03, 0x00}}})
	}
	r := newReport(&lab{image: &vm.Image{Kernel: "6.1.0-9-amd64", Version: "6.1.99-1"}}, o, nil, nil)
	var b strings.Builder
	r.document(&b)
	if n := strings.Count(b.String(), "| ok"); n != len(o.rping) {
		t.Errorf("%d rows of rping, want %d", n, len(o.rping))
	}
	if n := strings.Count(b.String(), "| 1 of 1 |\n"); n != len(o.suite) {
		t.Errorf("%d rows of variants, want %d", n, len(o.suite))
	}
	for _, want := range []string{"6.1.0-9-amd64", "6.1.99-1", "| write to no STag | `11 00 03 00` | DDP, type 1, code 0x00 |",
		"| RFC 5041 section 7.1 | "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
}

func TestReadyMessagesAreThoseAgreedOn(t *testing.T) {
	write := ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpWrite), 0, 0)
	read := rdmap.ReadRequest{}.Append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpReadRequest), 0, rdmap.QNReadRequest, 1, 0))
	send := ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSend), 0, rdmap.QNSend, 1, 0)
	for _, c := range []struct {
		name  string
		first []byte
		rtr   enhanced.RTR
		want  bool
	}{
		{"write", write, enhanced.RTRWrite | enhanced.RTRRead, true},
		{"read", read, enhanced.RTRRead, true},
		{"write for read", write, enhanced.RTRRead, false},
		{"read for write", read, enhanced.RTRWrite, false},
		{"write with a payload", append(write[:len(write):len(write)], 1), enhanced.RTRWrite, false},
		{"send", send, enhanced.RTRRead | enhanced.RTRWrite, false},
		{"nothing", nil, enhanced.RTRWrite, false},
	} {
		s := Startup{First: c.first, Reply: &mpa.Frame{Enhanced: &enhanced.Data{PeerToPeer: true, RTR: c.rtr}}}
		if got := s.Ready(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
