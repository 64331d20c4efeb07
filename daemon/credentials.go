package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/daemon/targets"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// credentials are what this host proves itself to a peer with, and what it
// judges the peer by.
type credentials struct {
	psk  auth.Secret
	cert *auth.Credential
	cas  []auth.Authority
}

// loadCredentials reads the files that a peer's declaration names.
func loadCredentials(c config.Peer) (k credentials, err error) {
	if c.Auth != config.AuthCert {
		k.psk, err = auth.LoadSecret(c.PSKFile)
		return k, err
	}
	if k.cert, err = auth.LoadCredential(c.CertFile, c.KeyFile); err != nil {
		return credentials{}, err
	}
	for _, file := range c.CAFiles {
		ca, err := auth.LoadAuthority(file)
		if err != nil {
			return credentials{}, err
		}
		ca.CRLURIs, ca.OCSPURIs = c.CRLURIs, c.OCSPURIs
		k.cas = append(k.cas, ca)
	}
	return k, nil
}

// certProblem says whether this host's own certificate can be used at a time: an
// SA may be up still, but nobody will accept the certificate for the next one.
func (k *credentials) certProblem(peer string, now time.Time) *api.Error {
	if k.cert == nil {
		return nil
	}
	err := k.cert.CheckTime(now)
	if err == nil {
		return nil
	}
	e := sas.Problem(peer, err)
	e.Message = fmt.Sprintf("peer %s: this host's certificate: %v", peer, err)
	e.Fix += ". SAs that are up stay until they end"
	return e
}

// empty reports whether nothing was ever loaded.
func (k *credentials) empty() bool { return k.psk.IsZero() && k.cert == nil }

func (k *credentials) equal(o *credentials) bool {
	return k.psk.Equal(o.psk) && k.cert.Equal(o.cert) && slices.EqualFunc(k.cas, o.cas, func(a, b auth.Authority) bool {
		return a.Certificate().Equal(b.Certificate())
	})
}

// Unusable lists the parts of a configuration with which a daemon starts and that it
// cannot use: peers whose secret or certificates cannot be read, ULPs of users who
// do not exist, and the fabric's settings if they have faults.
func Unusable(c *config.Config) []*api.Error {
	var out []*api.Error
	for _, p := range c.Peers {
		if p.Protection != config.ProtectIPsec {
			continue
		}
		if _, err := loadCredentials(p); err != nil {
			e := *sas.Problem(p.Name, err)
			e.Message = fmt.Sprintf("a file of peer %s cannot be used: %v", p.Name, err)
			if errors.Is(err, fs.ErrNotExist) {
				e.Code, e.Fix = api.CodeNotFound, "bring the file there, or name another with `ironwarp peer set`"
			}
			out = append(out, &e)
		}
	}
	for _, t := range c.Targets {
		if _, e := targets.Secrets(t); e != nil {
			out = append(out, e)
		}
	}
	for _, u := range c.ULPs {
		if e := ulpProblem(u); e != nil {
			out = append(out, e)
		}
	}
	if _, err := fabricSettings(c); err != nil {
		out = append(out, fabricProblem(err))
	}
	return out
}

// ulpProblem says why a ULP is disabled, nil if it is not.
func ulpProblem(u config.ULP) *api.Error {
	if u.Disabled == nil {
		return nil
	}
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("ULP %s is disabled: %s", u.Name, strings.ReplaceAll(u.Disabled.Error(), "\n", "; ")),
		Fix: "its users are refused until then, and its disks wait"}
}
