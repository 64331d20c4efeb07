package daemon

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/printable"
)

// What a host says of its pools and volumes steers no terminal of the host that manages them, and begins no line of what is shown.
func TestAnswersOfAManagedPeerCanBeShown(t *testing.T) {
	const steers = "v1\x1b]0;x\x07\u202e\n`ironwarp`"
	volumes := []api.Volume{{Name: steers, Pool: steers, Size: 1<<53 + 1, Allow: []api.PeerLease{{Peer: steers}}, Problem: &api.Error{Code: steers, Message: steers, Fix: "one\ntwo"}}}
	text, err := json.Marshal(map[string]any{"result": volumes})
	if err != nil {
		t.Fatal(err)
	}
	out, err := answerOf("beta", text)
	if err != nil {
		t.Fatal(err)
	}
	var got []api.Volume
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	v := got[0]
	for _, s := range []string{v.Name, v.Pool, v.Allow[0].Peer, v.Problem.Code, v.Problem.Message, v.Problem.Fix} {
		if printable.Check(s) != nil || s == "" {
			t.Errorf("%q is shown", s)
		}
	}
	if v.Size != 1<<53+1 || v.Problem.Fix != "one two" {
		t.Errorf("%+v %+v", v, v.Problem)
	}

	var e *api.Error
	if _, err := answerOf("beta", []byte(`{"error": {"code": "not_found", "message": "a\u001b[2J", "fix": "rm -rf /\nnow"}}`)); !errors.As(err, &e) || e.Code != api.CodeNotFound ||
		e.Message != "peer beta: a\ufffd[2J" || e.Fix != "what peer beta says is to be done there: rm -rf / now" {
		t.Errorf("%+v", err)
	}
	for _, text := range []string{"", "{}", "[]", `{"result": }`, `{"result": "x"`} {
		if _, err := answerOf("beta", []byte(text)); !errors.As(err, &e) || e.Code != api.CodeUnavailable {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzAnswerOf has any answer, of which nothing is shown that steers a terminal.
func FuzzAnswerOf(f *testing.F) {
	f.Add([]byte(`{"result": [{"name": "a\u001b", "n": 1e400}]}`))
	f.Add([]byte(`{"error": {"code": "x", "message": "\u009b"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := answerOf("beta", b)
		if err != nil {
			out = []byte(strings.ReplaceAll(err.Error(), "\n", " "))
		}
		if err := printable.Check(string(out)); err != nil {
			t.Errorf("%q: %v", out, err)
		}
	})
}
