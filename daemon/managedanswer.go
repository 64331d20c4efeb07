package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/printable"
)

// answerOf is what a peer has answered to a managedRequest, with nothing in it that people cannot be shown: names and texts are the peer's
// own. It fails with the peer's error, and with CodeUnavailable at what is no answer.
func answerOf(peer string, text []byte) (json.RawMessage, error) {
	var a managedAnswer
	if err := json.Unmarshal(text, &a); err != nil || a.Result == nil && a.Error == nil {
		return nil, notUnderstood(peer)
	}
	if a.Error != nil {
		return nil, saidBy(peer, a.Error)
	}
	dec := json.NewDecoder(bytes.NewReader(a.Result))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, notUnderstood(peer)
	}
	return json.Marshal(shown(v))
}

func notUnderstood(peer string) error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the answer of peer %s is not understood", peer), Fix: "do both hosts have the same version? See `ironwarp version`"}
}

// shown is a decoded JSON value whose strings and keys can be shown.
func shown(v any) any {
	switch v := v.(type) {
	case string:
		return shownText(v)
	case []any:
		for i := range v {
			v[i] = shown(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[shownText(k)] = shown(x)
		}
		return out
	}
	return v
}

// shownText is a text in one line.
func shownText(s string) string { return printable.Text(strings.ReplaceAll(s, "\n", " ")) }

// saidBy is an error that a peer has answered. Its words are its own, and what is to be done is said as what that host says.
func saidBy(peer string, e *api.Error) *api.Error {
	code := api.CodeInternal
	if api.IsCode(e.Code) {
		code = e.Code
	}
	said := &api.Error{Code: code, Message: fmt.Sprintf("peer %s: %s", peer, shownText(e.Message))}
	if e.Fix != "" {
		said.Fix = fmt.Sprintf("what peer %s says is to be done there: %s", peer, shownText(e.Fix))
	}
	return said
}
