package doctor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/pki"
)

// withCertificate has a peer whose authority has issued this host a certificate
// of that life.
func withCertificate(t *testing.T, life time.Duration) config.Peer {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.Init(filepath.Join(dir, "ca"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := ca.Issue(pki.Request{Name: "alpha", Life: life, NotBefore: time.Now().Add(-48 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return config.Peer{Name: "beta", Protection: config.ProtectIPsec, Auth: config.AuthCert, CertFile: own.CertFile, KeyFile: own.KeyFile, CAFiles: []string{ca.CertFile()}}
}

func TestCertificatesAreReadAndTheirTimeLookedAt(t *testing.T) {
	look := func(p config.Peer) map[string]Finding {
		x := &examination{cfg: &config.Config{Peers: []config.Peer{p}}}
		x.secrets()
		return map[string]Finding{"secrets": x.out[0]}
	}
	good := withCertificate(t, 90*24*time.Hour)
	check(t, look(good), "secrets", OK, "1 peer")
	check(t, look(withCertificate(t, 7*24*time.Hour)), "secrets", Warn, "ends on", "ironwarp reload")
	check(t, look(withCertificate(t, -24*time.Hour)), "secrets", Fail, "was valid until")
	open := good
	open.KeyFile = filepath.Join(t.TempDir(), "open.key")
	b, err := os.ReadFile(good.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open.KeyFile, b, 0o644); err != nil {
		t.Fatal(err)
	}
	check(t, look(open), "secrets", Fail, "beta", "0644")
	missing := good
	missing.CAFiles = []string{"/nonexistent"}
	check(t, look(missing), "secrets", Fail, "ca_files")
}

func TestClockThatCannotBeRightIsFound(t *testing.T) {
	x := &examination{cfg: &config.Config{Peers: []config.Peer{{Protection: config.ProtectIPsec}}}}
	x.clock(time.Date(1970, 1, 1, 0, 1, 0, 0, time.UTC))
	x.clock(time.Now())
	check(t, map[string]Finding{"clock": x.out[0]}, "clock", Fail, "1970-01-01", "timedatectl")
	if x.out[1].Level == Fail {
		t.Errorf("%+v", x.out[1])
	}
}
