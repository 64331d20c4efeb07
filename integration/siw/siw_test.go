package siw

import (
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestVariantsSayWhatTheyAre(t *testing.T) {
	seen := make(map[string]bool)
	for _, v := range Variants() {
		if seen[v.Name()] {
			t.Errorf("two variants are called %s", v.Name())
		}
		seen[v.Name()] = true
		p, m := v.parameters(), v.setup()
		if crc := p["mpa_crc_required"] == "1"; crc != v.CRC || crc == m.NoCRC {
			t.Errorf("%s: siw's CRC %s, ours %v", v.Name(), p["mpa_crc_required"], !m.NoCRC)
		}
		if v.Dial != (m.PeerToPeer != 0 || m.Plain) && (v.RTR != 0 || v.MPA1) {
			t.Errorf("%s: our start-up is %+v", v.Name(), m)
		}
	}
	v := Variant{RTR: verbs.RTRRead, CRC: true}
	if p := v.parameters(); v.Name() != "siw-dials-ipv4-crc-p2p-read" || v.Feature() != "CRC, peer-to-peer by read" || p["rtr_type"] != "16384" || p["peer_to_peer"] != "1" {
		t.Errorf("%s, %s: %v", v.Name(), v.Feature(), p)
	}
	v = Variant{Dial: true, IPv6: true, RTR: verbs.RTRWrite | verbs.RTRRead}
	if p := v.parameters(); v.Name() != "we-dial-ipv6-nocrc-p2p-write-read" || p["rtr_type"] != "49152" || v.setup().PeerToPeer != v.RTR {
		t.Errorf("%s: %v", v.Name(), p)
	}
}

// Every case must be run somewhere, or be listed as one that siw can't do.
func TestNoCaseIsForgotten(t *testing.T) {
	for _, c := range Cases() {
		runs := slices.ContainsFunc(Variants(), func(v Variant) bool { return v.Dial && v.Runs(c) }) &&
			slices.ContainsFunc(Variants(), func(v Variant) bool { return !v.Dial && v.Runs(c) })
		if !runs {
			t.Errorf("%s runs nowhere", c.Name)
		}
	}
	if got := Lacking(conformance.Case{A: conformance.Atomics | conformance.SGL, B: conformance.Immediate}, true); got != conformance.Atomics {
		t.Errorf("siw, which acts, lacks %v", got)
	}
	if got := Lacking(conformance.Case{A: conformance.Atomics, B: conformance.Immediate | conformance.Inline}, false); got != conformance.Immediate {
		t.Errorf("siw, which does not act, lacks %v", got)
	}
}

func TestResultsThatBreakOffAreIncomplete(t *testing.T) {
	const one = `{"Variant":"v","Case":"c","SiwActs":true,"Failed":true,"Seconds":1.5,"Flows":["a-b"]}` + "\n"
	for in, want := range map[string]bool{one + `{"End":true}` + "\n": true, one: false} {
		rs, complete, err := ReadResults(strings.NewReader(in))
		if err != nil || complete != want || len(rs) != 1 || !rs[0].SiwActs || rs[0].Flows[0] != "a-b" {
			t.Errorf("%+v, %v, %v", rs, complete, err)
		}
	}
	if _, _, err := ReadResults(strings.NewReader(one + `{"Var`)); err == nil {
		t.Error("half a line is taken")
	}
}
