package iscsitest

import (
	"strings"
	"testing"
)

// TestAnswerInWordsHasNoResponse: what a case has found is printed, and with a response of CHAP and its challenge
// secrets can be tried.
func TestAnswerInWordsHasNoResponse(t *testing.T) {
	a := &answer{pairs: keyPairs{{Key: "CHAP_N", Value: "disk"}, {Key: "CHAP_R", Value: "0x0123456789"}, {Key: "MaxBurstLength", Value: "65536"}}}
	for _, s := range []string{a.String(), a.pairs.String()} {
		if strings.Contains(s, "0123") || !strings.Contains(s, "CHAP_N=disk") || !strings.Contains(s, "MaxBurstLength=65536") {
			t.Error(s)
		}
	}
	if r, ok := a.key("CHAP_R"); !ok || r != "0x0123456789" {
		t.Errorf("the case itself sees %q", r)
	}
}
