package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pki"
	"github.com/ironwarp/ironwarp/transport"
)

// kindsOf are the error values that package ipsec and those below it export, by name,
// with their words. Those of charon come with advice of their own, and those of pki
// concern who makes certificates.
func kindsOf(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../ipsec/*.go")
	below, err2 := filepath.Glob("../ipsec/*/*.go")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, name := range append(files, below...) {
		if room := filepath.Base(filepath.Dir(name)); strings.HasSuffix(name, "_test.go") || room == "charon" || room == "pki" {
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
	for _, r := range ikeReasons {
		known[r.kind.Error()] = true
		e := ikeProblem("beta", fmt.Errorf("set up: %w", r.kind))
		if e.Reason != r.reason || !strings.Contains(e.Fix, r.fix) || !strings.Contains(e.Message, "beta") {
			t.Errorf("%v: %+v", r.kind, e)
		}
	}
	for name, words := range kindsOf(t) {
		if !known[words] && !notForUsers[name] {
			t.Errorf("%s (%s) has no entry in ikeReasons", name, words)
		}
	}
}

// TestOperationsExplainEveryIPsecFailure: the words that a user sees stand in the
// document, with what to do.
func TestOperationsExplainEveryIPsecFailure(t *testing.T) {
	doc, err := os.ReadFile("../docs/operations.md")
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
	e := ikeProblem("beta", err)
	if e.Reason != api.ReasonCertExpired || !strings.HasPrefix(e.Fix, "renew it") || !strings.Contains(e.Fix, "keeps trying") {
		t.Errorf("%+v", e)
	}
	e = ikeProblem("beta", &negotiation.Error{Peer: "beta", Kind: negotiation.ErrFailed, Log: []string{"one", "what charon said"}})
	if e.Reason != api.ReasonNegotiation || !strings.Contains(e.Message, "strongSwan says: what charon said") {
		t.Errorf("%+v", e)
	}
}

func TestRefusalsOfFlowsComeWithAdvice(t *testing.T) {
	var out bytes.Buffer
	var r refusals
	r.add(slog.New(slog.NewTextHandler(&out, nil)), "beta", transport.Flow{}, &ipsec.AdmitError{Peer: "beta", Kind: pad.ErrWrongIdentity, Detail: "mallory.example"})
	n, last, fix := r.count()
	if n != 1 || !strings.Contains(last, "mallory.example") || !strings.Contains(fix, "remote_id") || !strings.Contains(out.String(), "advice=") {
		t.Errorf("%d, %q, %q, %s", n, last, fix, out.String())
	}
	r.add(slog.New(slog.DiscardHandler), "", transport.Flow{}, errors.New("something else"))
	if _, _, fix := r.count(); fix != "" {
		t.Errorf("advice for something else: %q", fix)
	}
}

func TestFailuresOfStrongSwanKeepTheirAdvice(t *testing.T) {
	for _, kind := range []error{charon.ErrNotRunning, charon.ErrRefused, charon.ErrPermission, charon.ErrTooOld, charon.ErrHangs, charon.ErrGone, charon.ErrProtocol} {
		e := ikeProblem("beta", fmt.Errorf("list: %w", &charon.Error{Op: "connect", Socket: "/run/vici", Kind: kind, Advice: "do this"}))
		if e.Reason != api.ReasonStrongSwan || e.Code != api.CodeUnavailable || !strings.Contains(e.Message, kind.Error()) ||
			!strings.Contains(e.Message, "/run/vici") || strings.Contains(e.Message, "do this") || !strings.HasPrefix(e.Fix, "do this; `ironwarp doctor`") {
			t.Errorf("%v: %+v", kind, e)
		}
	}
}

// TestNewSecretIsNamedWhenAuthenticationFails covers the time in a rotation when
// only this host has the new secret.
func TestNewSecretIsNamedWhenAuthenticationFails(t *testing.T) {
	p := newPeer(config.Peer{Name: "beta", Protection: config.ProtectIPsec, Auth: config.AuthPSK, PSKFile: "/etc/ironwarp/secrets/beta.psk"})
	failed := &negotiation.Error{Peer: "beta", Kind: negotiation.ErrAuthFailed, Advice: "the pre-shared keys differ"}
	if e := p.ikeProblem(failed); strings.Contains(e.Fix, "another secret") {
		t.Errorf("nothing was rotated: %+v", e)
	}
	p.newKeys = time.Date(2030, 1, 2, 15, 4, 5, 0, time.UTC)
	says(t, p.ikeProblem(failed), api.CodeUnavailable, "authentication failed", "another secret since 15:04:05", "rotate-secret", "/etc/ironwarp/secrets/beta.psk", "the pre-shared keys differ")
	if e := p.ikeProblem(&negotiation.Error{Peer: "beta", Kind: negotiation.ErrUnreachable}); strings.Contains(e.Fix, "another secret") {
		t.Errorf("another failure: %+v", e)
	}
}

// TestOwnCertificateThatCannotBeUsedIsNamed: the peer would only say that it does
// not believe this host.
func TestOwnCertificateThatCannotBeUsedIsNamed(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.Init(dir, pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ca.Issue(pki.Request{Name: "alpha", SANs: []string{"192.0.2.1"}, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	k, err := loadCredentials(config.Peer{Auth: config.AuthCert, CertFile: got.CertFile, KeyFile: got.KeyFile, CAFiles: []string{ca.CertFile()}, CRLURIs: []string{"file:///x"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(k.cas) != 1 || k.cas[0].CRLURIs[0] != "file:///x" {
		t.Errorf("authorities %+v", k.cas)
	}
	now := time.Now()
	if e := k.certProblem("beta", now); e != nil {
		t.Errorf("a valid one: %+v", e)
	}
	if e := k.certProblem("beta", now.Add(2*time.Hour)); e == nil || e.Reason != api.ReasonCertExpired || !strings.Contains(e.Message, "this host's certificate: ") || !strings.Contains(e.Message, "CN=alpha") {
		t.Errorf("expired: %+v", e)
	}
	if e := k.certProblem("beta", now.Add(-time.Hour)); e == nil || e.Reason != api.ReasonCertNotYet || !strings.Contains(e.Fix, "clock") {
		t.Errorf("not yet valid: %+v", e)
	}
	other, err := ca.Issue(pki.Request{Name: "alpha2", SANs: []string{"192.0.2.1"}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := loadCredentials(config.Peer{Auth: config.AuthCert, CertFile: got.CertFile, KeyFile: got.KeyFile, CAFiles: []string{ca.CertFile()}})
	if err != nil || !again.equal(&k) {
		t.Errorf("the same files are others: %v", err)
	}
	changed, err := loadCredentials(config.Peer{Auth: config.AuthCert, CertFile: other.CertFile, KeyFile: other.KeyFile, CAFiles: []string{ca.CertFile()}})
	if err != nil || changed.equal(&k) {
		t.Errorf("another certificate is the same: %v", err)
	}
}
