package ikematrix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

func TestWhatARowLeavesOutsideESPIsFound(t *testing.T) {
	kind := func(what, quotes string, n int) map[lab.Kind]int {
		return map[lab.Kind]int{{What: what, Quotes: quotes}: n}
	}
	before := lab.Counts{ESP: 5, Kinds: kind("tcp port 7", "", 2), ClearTCP: map[uint16]int{7: 2}, Canary: kind("ESP", "", 3)}
	if s := (seen{before.Since(before)}); s.check() != nil || s.ESP != 0 || s.clear() != 0 || s.Readable() != 0 {
		t.Errorf("nothing new: %+v", s)
	}
	for name, c := range map[string]struct {
		now   lab.Counts
		clear bool
	}{
		"ESP and ARP":       {lab.Counts{ESP: 1000, IKE: 20, Kinds: kind("ARP", "", 2)}, false},
		"NULL ESP":          {lab.Counts{ESP: 1000, Canary: kind("ESP", "", 20)}, false},
		"the row's port":    {lab.Counts{ESP: 1000, Kinds: kind("tcp port 7", "", 1)}, true},
		"another":           {lab.Counts{Kinds: kind("udp port 8", "", 1)}, true},
		"a fragment":        {lab.Counts{Kinds: kind("sctp fragment", "", 1)}, true},
		"an ICMP error":     {lab.Counts{Kinds: kind("ICMP type 3 code 3", "udp port 7", 1)}, true},
		"the canary in ARP": {lab.Counts{Canary: kind("ARP", "", 1)}, true},
	} {
		if err := (&seen{c.now}).check(); errors.Is(err, ErrClear) != c.clear {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusalsHaveToBeTheExpectedOnes(t *testing.T) {
	negotiation := &negotiation.Error{Kind: negotiation.ErrNoProposal}
	r := &Refusal{Why: "x", By: byStrongSwan, Words: "unsupported mode"}
	if s := r.check(negotiation, []string{"a", "12[ESP]  unsupported mode"}); s != "" {
		t.Errorf("the expected words: %s", s)
	}
	if s := r.check(negotiation, []string{"something else"}); !strings.Contains(s, "without the words") {
		t.Errorf("other words: %q", s)
	}
	if s := r.check(errors.New("no route"), []string{"unsupported mode"}); !strings.Contains(s, "no route") {
		t.Errorf("another error: %q", s)
	}
	r = &Refusal{Why: "x", By: byUs, Words: "the words", Kind: profile.ErrRefused}
	if s := r.check(fmt.Errorf("%w: something else", profile.ErrRefused), []string{"the words"}); s == "" {
		t.Error("words of strongSwan's pass as our own")
	}
	if s := r.check(fmt.Errorf("%w: with the words", profile.ErrRefused), nil); s != "" {
		t.Errorf("our own refusal: %s", s)
	}
	if s := r.check(negotiation, []string{"the words"}); s == "" {
		t.Error("a failed negotiation passes as our own refusal")
	}
}

func TestWhatWasAgreedOnHasToBeWhatWasAskedFor(t *testing.T) {
	c := Case{Exchange: ikeV2, ESP: "aes128-sha1", Suite: "aes128gcm16-prfsha256", Group: "ecp256", PFS: on, ESN: on}.withDefaults()
	good := Agreed{Version: 2, IKE: "AES_GCM_16-128/ECP_256", ESP: "AES_CBC-128/HMAC_SHA1_96", PFS: "ECP_256", Mode: modeTunnel, ESN: true}
	if err := good.check(&c, esp.Kernel, true); err != nil {
		t.Error(err)
	}
	for what, harm := range map[string]func(*Agreed){
		"version": func(a *Agreed) { a.Version = 1 }, "IKE": func(a *Agreed) { a.IKE = "AES_CBC-128/HMAC_SHA1_96/ECP_256" },
		"ESP": func(a *Agreed) { a.ESP = "NULL/HMAC_SHA1_96" }, "PFS": func(a *Agreed) { a.PFS = "" },
		"mode": func(a *Agreed) { a.Mode = modeTransport }, "ESN": func(a *Agreed) { a.ESN = false }, "encapsulation": func(a *Agreed) { a.Encap = true },
	} {
		bad := good
		harm(&bad)
		if bad.check(&c, esp.Kernel, true) == nil {
			t.Errorf("another %s is taken", what)
		}
	}
	if good.check(&c, esp.Userland, true) == nil {
		t.Error("ESN with userland ESP is taken")
	}
	first := good
	first.PFS = ""
	if err := first.check(&c, esp.Kernel, false); err != nil {
		t.Errorf("the first child of an IKEv2 SA, which has no exchange of its own: %v", err)
	}
}

func TestExchangeOfPhase1HasToBeWhatWasAskedFor(t *testing.T) {
	const mainMode, aggressiveMode, other = "07[IKE] initiating Main Mode IKE_SA beta[1] to 10.99.0.2", "07[IKE] initiating Aggressive Mode IKE_SA beta[1] to 10.99.0.2", "05[CFG] initiating 'beta-out'"
	for _, tc := range []struct {
		want string
		said []string
		ok   bool
	}{
		{main1, []string{other, mainMode}, true}, {aggressive, []string{aggressiveMode, other}, true}, {ikeV2, []string{other}, true},
		{main1, []string{aggressiveMode}, false}, {aggressive, []string{mainMode}, false}, {aggressive, []string{mainMode, aggressiveMode}, false},
		{ikeV2, []string{mainMode}, false}, {main1, []string{other}, false}, {aggressive, nil, false},
	} {
		if s := exchanged(tc.want, tc.said); (s == "") != tc.ok {
			t.Errorf("%s after %q: %q", tc.want, tc.said, s)
		}
	}
}

func testReport() *Report {
	agreed := &Agreed{Version: 2, IKE: "I", ESP: "E", Mode: modeTunnel}
	return &Report{Plane: esp.Userland.String(), StrongSwan: "5.9.8", Kernel: "6.1", Control: 3, Complete: true, Asked: []Asked{{What: "ESN", IKE: ikeV2, Words: "ESN not supported"}}, Results: []Result{
		{Case: Case{}.withDefaults(), Works: true, Agreed: agreed, Stream: true},
		{Case: Case{Mode: modeTransport}.withDefaults(), Why: "it has none", By: byStrongSwan, Words: "unsupported mode"},
	}}
}

func TestSurprisesAndWeakRunsFail(t *testing.T) {
	if f := testReport().Failed(); len(f) != 0 {
		t.Errorf("a good run fails: %v", f)
	}
	for what, harm := range map[string]func(*Report){
		"a surprise":                   func(r *Report) { r.Results[0].Surprise = "!" },
		"a control that finds nothing": func(r *Report) { r.Control = 0 },
		"a run that breaks off":        func(r *Report) { r.Complete = false },
	} {
		r := testReport()
		harm(r)
		if len(r.Failed()) != 1 {
			t.Errorf("%s: %v", what, r.Failed())
		}
	}
}

func TestReportIsReadAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	if err := testReport().Write(path); err != nil {
		t.Fatal(err)
	}
	r, err := ReadReport(path)
	if err != nil || r.Summary() != testReport().Summary() || *r.Results[0].Agreed != *testReport().Results[0].Agreed {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadReport(path); err == nil {
		t.Error("half a report is taken")
	}
}

func TestDocumentIsWrittenByDataPlaneAndCheckedAgainstTheRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	userland, kernel := testReport(), testReport()
	kernel.Plane = esp.Kernel.String()
	for _, r := range []*Report{userland, kernel, userland} {
		if err := WriteDocument(path, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*Report{userland, kernel} {
		if diff, err := CheckDocument(path, r); err != nil || diff != "" {
			t.Errorf("%s: %s %v", r.Plane, diff, err)
		}
		if v, err := DocumentVersion(path, r.Plane); err != nil || v != "5.9.8" {
			t.Errorf("%s: version %q, %v", r.Plane, v, err)
		}
	}
	b, _ := os.ReadFile(path)
	for _, want := range []string{"| aes128gcm16 | works |", "| 1 | it has none | strongSwan | `unsupported mode` | 1 |", "transport | IPv4 |  | refused: 1 |", "| E, RDMA |", "Linux 6.1 in a virtual", "| ESN | IKEv2 | `ESN not supported` |"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is not in:\n%s", want, b)
		}
	}
	for what, harm := range map[string]func(*Report){
		"a row that no longer works": func(r *Report) { r.Results[0].Works, r.Results[0].Why = false, "it broke" },
		"other algorithms":           func(r *Report) { r.Results[0].Agreed.ESP = "NULL" },
		"a row less":                 func(r *Report) { r.Results = r.Results[:1] },
		"clear packets":              func(r *Report) { r.Results[0].Clear = 1 },
	} {
		r := testReport()
		harm(r)
		if diff, err := CheckDocument(path, r); err != nil || diff == "" {
			t.Errorf("%s: no difference found, %v", what, err)
		}
	}
	if err := os.WriteFile(path, []byte("# Something else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteDocument(path, userland); !errors.Is(err, ErrDocument) {
		t.Errorf("another document is overwritten: %v", err)
	}
}
