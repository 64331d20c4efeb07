package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pki"
	"github.com/ironwarp/ironwarp/transport"
)

func TestRefusalsOfFlowsComeWithAdvice(t *testing.T) {
	var out bytes.Buffer
	var r refusals
	r.add(slog.New(slog.NewTextHandler(&out, nil)), "beta", transport.Flow{}, &ipsec.AdmitError{Peer: "beta", Kind: pad.ErrWrongIdentity, Detail: "mallory.example"})
	n, last, fix := r.summary()
	if n != 1 || !strings.Contains(last, "mallory.example") || !strings.Contains(fix, "remote_id") || !strings.Contains(out.String(), "advice=") {
		t.Errorf("%d, %q, %q, %s", n, last, fix, out.String())
	}
	r.add(slog.New(slog.DiscardHandler), "", transport.Flow{}, errors.New("something else"))
	if _, _, fix := r.summary(); fix != "" {
		t.Errorf("advice for something else: %q", fix)
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
