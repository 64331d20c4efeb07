package api

import (
	"encoding/json"
	"testing"
)

func TestMessagesDoNotNamePackages(t *testing.T) {
	for in, want := range map[string]string{
		"rnbd: no such export": "no such export",
		"beta/docs waits for its peer: rtrs: verbs: the peer left": "beta/docs waits for its peer: the peer left",
		"one; mpa: two\nddp: three (rdmap: four)":                  "one; two\nthree (four)",
		"use transport: auto, or ipsec: {vici: unix:///x}":         "use transport: auto, or ipsec: {vici: unix:///x}",
		"the disk of rnbd": "the disk of rnbd",
	} {
		if got := Plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	b, err := json.Marshal(&Error{Code: CodeInternal, Message: "cannot open: rnbd: backing: no room", Fix: "make room"})
	if want := `{"code":"internal","message":"cannot open: no room","fix":"make room"}`; err != nil || string(b) != want {
		t.Errorf("%s, want %s: %v", b, want, err)
	}
}

// Each kind of failure has an exit status of its own, and none is a success.
func TestExitStatuses(t *testing.T) {
	seen := map[int]string{0: "success", 1: "anything else"}
	for _, code := range []string{CodeInvalid, CodeNotFound, CodeExists, CodeInUse, CodeForbidden, CodeUnavailable, CodeTimeout} {
		s := ExitStatus(code)
		if before, twice := seen[s]; twice {
			t.Errorf("%s and %s are both %d", code, before, s)
		}
		seen[s] = code
	}
	if ExitStatus(CodeInternal) != 1 {
		t.Error(ExitStatus(CodeInternal))
	}
}
