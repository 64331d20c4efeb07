package sas

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
)

// kindsOf are the error values that package ipsec and those below it export, by name,
// with their words. Those of charon come with advice of their own, and those of pki
// concern who makes certificates. The rooms in without are left out.
func kindsOf(t *testing.T, without ...string) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../ipsec/*.go")
	below, err2 := filepath.Glob("../../ipsec/*/*.go")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, name := range append(files, below...) {
		if room := filepath.Base(filepath.Dir(name)); strings.HasSuffix(name, "_test.go") || room == "charon" || room == "pki" || slices.Contains(without, room) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Names) != 1 || len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, "Err") {
				return true
			}
			if call, ok := v.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
				if lit, ok := call.Args[0].(*ast.BasicLit); ok {
					kinds[v.Names[0].Name] = strings.Trim(lit.Value, `"`)
				}
			}
			return true
		})
	}
	if len(kinds) < 25 {
		t.Fatalf("only %d kinds found: %v", len(kinds), kinds)
	}
	return kinds
}

// notForUsers are kinds that no user of the daemon can cause.
var notForUsers = map[string]bool{"ErrUnknownPeer": true, "ErrPeerExists": true, "ErrClosed": true}

// TestEveryKindOfIPsecFailureHasAReasonAndAdvice finds a new kind that nobody has
// thought of here.
func TestEveryKindOfIPsecFailureHasAReasonAndAdvice(t *testing.T) {
	known := map[string]bool{}
	for _, r := range reasons {
		known[r.kind.Error()] = true
		e := Problem("beta", fmt.Errorf("set up: %w", r.kind))
		if e.Reason != r.reason || !strings.Contains(e.Fix, r.fix) || !strings.Contains(e.Message, "beta") {
			t.Errorf("%v: %+v", r.kind, e)
		}
	}
	// Who invites and joins is told by the command, before there is a peer.
	for name, words := range kindsOf(t, "invite") {
		if !known[words] && !notForUsers[name] {
			t.Errorf("%s (%s) has no entry in reasons", name, words)
		}
	}
}

// TestOperationsExplainEveryIPsecFailure: the words that a user sees stand in the
// document, with what to do.
func TestOperationsExplainEveryIPsecFailure(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(doc)), " ")
	for name, words := range kindsOf(t) {
		words, _, _ = strings.Cut(words, " on this kernel")
		if !notForUsers[name] && !strings.Contains(text, words) {
			t.Errorf("docs/operations.md does not have %q (%s)", words, name)
		}
	}
}

func TestSpecialReasonsComeFirst(t *testing.T) {
	// A certificate that has expired is a failed authentication, too.
	err := &negotiation.Error{Peer: "beta", Kind: errors.Join(negotiation.ErrAuthFailed, auth.ErrCertExpired), Advice: "renew it"}
	e := Problem("beta", err)
	if e.Reason != api.ReasonCertExpired || !strings.HasPrefix(e.Fix, "renew it") || !strings.Contains(e.Fix, "keeps trying") {
		t.Errorf("%+v", e)
	}
	e = Problem("beta", &negotiation.Error{Peer: "beta", Kind: negotiation.ErrFailed, Log: []string{"one", "what charon said"}})
	if e.Reason != api.ReasonNegotiation || !strings.Contains(e.Message, "strongSwan says: what charon said") {
		t.Errorf("%+v", e)
	}
}

func TestFailuresOfStrongSwanKeepTheirAdvice(t *testing.T) {
	for _, kind := range []error{charon.ErrNotRunning, charon.ErrRefused, charon.ErrPermission, charon.ErrTooOld, charon.ErrHangs, charon.ErrGone, charon.ErrProtocol} {
		e := Problem("beta", fmt.Errorf("list: %w", &charon.Error{Op: "connect", Socket: "/run/vici", Kind: kind, Advice: "do this"}))
		if e.Reason != api.ReasonStrongSwan || e.Code != api.CodeUnavailable || !strings.Contains(e.Message, kind.Error()) ||
			!strings.Contains(e.Message, "/run/vici") || strings.Contains(e.Message, "do this") || !strings.HasPrefix(e.Fix, "do this; `ironwarp doctor`") {
			t.Errorf("%v: %+v", kind, e)
		}
	}
}
