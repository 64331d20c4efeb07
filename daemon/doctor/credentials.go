package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// expiresSoon is how long before its end a certificate is worth a warning.
const expiresSoon = 14 * 24 * time.Hour

// ipsecPeers are the configured peers that use ESP.
func (x *examination) ipsecPeers() []config.Peer {
	if x.cfg == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(x.cfg.Peers), func(p config.Peer) bool { return p.Protection != config.ProtectIPsec || p.Unresolved() })
}

// faults collects several faults in one finding.
func (f *Finding) fault(level, found string, do ...string) {
	f.Level = worse(f.Level, level)
	f.Found = strings.TrimPrefix(f.Found+"; "+found, "; ")
	for _, d := range do {
		if !slices.Contains(f.Do, d) {
			f.Do = append(f.Do, d)
		}
	}
}

// secrets checks whether keys and certificates can be read, and are valid now.
func (x *examination) secrets() {
	peers := x.ipsecPeers()
	if len(peers) == 0 {
		return
	}
	f := Finding{What: "secrets", Level: OK}
	for _, p := range peers {
		if p.Auth == config.AuthCert {
			checkCertificates(&f, p)
			continue
		}
		if _, err := auth.LoadSecret(p.PSKFile); err != nil {
			f.fault(Fail, fmt.Sprintf("peer %s: %v", p.Name, err), "Give both hosts the same secret, in a file of mode 0600, then run `ironwarp reload`.")
		}
	}
	if f.Level == OK {
		f.Found = fmt.Sprintf("those of %s, readable for their owner only", count(len(peers), "peer"))
	}
	x.addFinding(f)
}

func checkCertificates(f *Finding, p config.Peer) {
	own, err := auth.LoadCredential(p.CertFile, p.KeyFile)
	now := time.Now()
	switch {
	case err != nil:
		f.fault(Fail, fmt.Sprintf("peer %s: %v", p.Name, err), "Correct cert_file and key_file, then run `ironwarp reload`.")
	case own.CheckTime(now) != nil:
		f.fault(Fail, fmt.Sprintf("peer %s: %v", p.Name, own.CheckTime(now)), "Issue a new certificate, or set the clock if it is wrong, then run `ironwarp reload`.")
	case own.CheckTime(now.Add(expiresSoon)) != nil:
		f.fault(Warn, fmt.Sprintf("peer %s: %s ends on %s", p.Name, p.CertFile, own.Certificate().NotAfter.Format(time.DateOnly)),
			"Issue a new certificate, replace the files, and run `ironwarp reload`: streams go on.")
	}
	for _, file := range p.CAFiles {
		a, err := auth.LoadAuthority(file)
		switch {
		case err != nil:
			f.fault(Fail, fmt.Sprintf("peer %s: %v", p.Name, err), "Correct ca_files, then run `ironwarp reload`.")
		case now.After(a.Certificate().NotAfter), now.Before(a.Certificate().NotBefore):
			f.fault(Fail, fmt.Sprintf("peer %s: the authority of %s is valid from %s to %s, and the clock says %s", p.Name, file,
				a.Certificate().NotBefore.Format(time.DateOnly), a.Certificate().NotAfter.Format(time.DateOnly), now.Format(time.DateOnly)),
				"Set the clock if it is wrong, or have the authority renewed.")
		}
	}
}

// revocation checks for what strongSwan needs to check certificates.
func (x *examination) revocation() {
	var certs, fetch bool
	for _, p := range x.ipsecPeers() {
		certs = certs || p.Auth == config.AuthCert
		for _, uri := range append(append([]string{}, p.CRLURIs...), p.OCSPURIs...) {
			fetch = fetch || !strings.HasPrefix(uri, "file:")
		}
	}
	if x.ike == nil {
		return
	}
	f := Finding{What: "certificates", Level: OK, Found: "strongSwan has what it needs, revocation lists (CRL) and OCSP included"}
	has := func(name string) bool { return slices.Contains(x.ike.Plugins, name) }
	var lack []string
	for _, name := range []string{"x509", "pem", "pubkey", "constraints", "revocation"} {
		if !has(name) {
			lack = append(lack, name)
		}
	}
	if len(lack) > 0 {
		f.Level = x.levelOfMissing(certs)
		f.Found = "strongSwan has not loaded its plugins " + strings.Join(lack, ", ") + ", which it needs to check certificates"
		f.Instead = "pre-shared keys"
		f.Do = []string{"apt-get install libstrongswan-standard-plugins libstrongswan-extra-plugins && systemctl restart strongswan"}
	}
	if !has("curl") && !has("soup") && !has("winhttp") {
		level := Note
		if fetch {
			level = Fail
		}
		f.fault(level, "strongSwan has no plugin that fetches revocation lists and OCSP answers by HTTP (curl)", "apt-get install libstrongswan-extra-plugins && systemctl restart strongswan")
		f.Instead = strings.TrimPrefix(f.Instead+"; revocation lists in files (file: URIs)", "; ")
	}
	x.addFinding(f)
}

// clock checks whether the time is right, which certificates and lifetimes need.
func (x *examination) clock(now time.Time) {
	f := Finding{What: "clock", Level: OK, Found: now.UTC().Format("2006-01-02 15:04 UTC")}
	var t unix.Timex
	_, err := unix.Adjtimex(&t)
	switch {
	case now.Year() < firstYear:
		f.Level = x.levelOfMissing(x.needsIPsec())
		f.Found += ", which cannot be: certificates would be refused as not valid yet"
		f.Do = []string{"timedatectl set-ntp true"}
	case err == nil && t.Status&unix.STA_UNSYNC != 0:
		f.Level = Note
		f.Found += "; nothing keeps it right (NTP), and certificates need that"
		f.Do = []string{"timedatectl set-ntp true"}
	}
	x.addFinding(f)
}

// firstYear is the program's first: the clock cannot be before it.
const firstYear = 2025
