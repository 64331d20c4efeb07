package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pki"
	"github.com/urfave/cli/v2"
)

// defaultPKI is the directory of the lab's authority.
const defaultPKI = "ironwarp-pki"

func (w *ironwarp) pkiCommand() *cli.Command {
	dir := func() cli.Flag {
		return &cli.StringFlag{Name: "dir", Value: defaultPKI, Usage: "`DIRECTORY` of the authority"}
	}
	key := func() cli.Flag {
		return &cli.StringFlag{Name: "key-type", Usage: "ecdsa (default) or rsa"}
	}
	return &cli.Command{
		Name:        "pki",
		Usage:       "a small certificate authority, for labs only",
		Description: "It is for labs and tests, never for production: use your organisation's authority there.",
		Subcommands: []*cli.Command{
			{
				Name: "init", Usage: "make an authority and its empty revocation list",
				Flags: []cli.Flag{
					dir(), key(), jsonFlag(),
					&cli.StringFlag{Name: "name", Usage: "`NAME` in its certificate"},
					&cli.DurationFlag{Name: "life", Usage: "how long its certificate is valid", DefaultText: "10 years"},
				},
				Action: w.pkiInit,
			},
			{
				Name: "issue", Usage: "make a private key and a certificate for a host", ArgsUsage: "HOST",
				Description: "Each --san is an IKE identity of the host: an address, a host name or user@host. It has to be what the\n" +
					"host's local_id and its peer's remote_id name, by default the addresses.",
				Flags: []cli.Flag{
					dir(), key(), jsonFlag(),
					&cli.StringSliceFlag{Name: "san", Usage: "`IDENTITY` of the host, such as its address; repeat for more (default: HOST)"},
					&cli.DurationFlag{Name: "life", Usage: "how long the certificate is valid", DefaultText: "90 days"},
					&cli.StringSliceFlag{Name: "crl-uri", Usage: "`URI` of the revocation list, for the certificate"},
					&cli.StringSliceFlag{Name: "ocsp-uri", Usage: "`URI` of an OCSP responder, for the certificate"},
				},
				Action: w.pkiIssue,
			},
			{
				Name: "revoke", Usage: "revoke a host's certificate: put it on the revocation list", ArgsUsage: "HOST",
				Flags: []cli.Flag{dir(), jsonFlag()}, Action: w.pkiRevoke,
			},
			{
				Name: "crl", Usage: "write the revocation list anew, before it gets stale after 30 days",
				Flags: []cli.Flag{dir(), jsonFlag()}, Action: w.pkiRefresh,
			},
		},
	}
}

func keyType(c *cli.Context) (pki.KeyType, error) {
	word := c.String("key-type")
	return pki.KeyType(word), checkWord("--key-type", word, string(pki.ECDSA), string(pki.RSA))
}

func (w *ironwarp) pkiInit(c *cli.Context) error {
	key, err := keyType(c)
	if err != nil {
		return err
	}
	ca, err := pki.Init(c.String("dir"), pki.Options{Name: c.String("name"), Key: key, Life: c.Duration("life")})
	if errors.Is(err, fs.ErrExist) {
		return &usageError{msg: err.Error(), fix: "`ironwarp pki issue` uses the authority that is there; --dir names another directory"}
	}
	if err != nil {
		return err
	}
	return w.print(c, struct {
		Certificate string `json:"ca_file"`
		CRL         string `json:"crl_file"`
		Warning     string `json:"warning"`
	}{absolute(ca.CertFile()), absolute(ca.CRLFile()), pki.Warning}, func() {
		w.printf("%s\n\n", w.warn("warning: "+pki.Warning))
		w.printf("authority: %s\nrevocation list: %s\n\n", ca.CertFile(), ca.CRLFile())
		w.printf("A certificate for each host comes next, with its address:\n")
		w.printf("  ironwarp pki issue%s --san 192.0.2.1 alpha\n", dirFlag(c))
		w.printf("  ironwarp pki issue%s --san 192.0.2.2 beta\n", dirFlag(c))
	})
}

// dirFlag repeats --dir in commands to type, where it was given.
func dirFlag(c *cli.Context) string {
	if dir := c.String("dir"); dir != defaultPKI {
		return " --dir " + dir
	}
	return ""
}

// absolute is for paths passed to other commands.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func (w *ironwarp) pkiIssue(c *cli.Context) error {
	name := c.Args().First()
	key, err := keyType(c)
	if err != nil {
		return err
	}
	ca, err := w.openPKI(c)
	if err != nil {
		return err
	}
	req := pki.Request{Name: name, SANs: c.StringSlice("san"), Life: c.Duration("life"), Key: key, CRLURIs: c.StringSlice("crl-uri"), OCSPURIs: c.StringSlice("ocsp-uri")}
	got, err := ca.Issue(req)
	if errors.Is(err, fs.ErrExist) {
		return &usageError{msg: err.Error(), fix: "remove the two files of " + name + " for a new certificate, or choose another name"}
	}
	if err != nil {
		return err
	}
	if len(req.SANs) == 0 {
		req.SANs = []string{name}
	}
	return w.print(c, struct {
		Certificate string    `json:"cert_file"`
		Key         string    `json:"key_file"`
		CA          string    `json:"ca_file"`
		Identities  []string  `json:"identities"`
		Serial      string    `json:"serial"`
		NotAfter    time.Time `json:"not_after"`
	}{absolute(got.CertFile), absolute(got.KeyFile), absolute(ca.CertFile()), req.SANs, got.Serial, got.NotAfter}, func() {
		w.printf("certificate: %s, for %s, until %s, serial %s\n", got.CertFile, strings.Join(req.SANs, " and "), got.NotAfter.Local().Format("2006-01-02"), got.Serial)
		w.printf("private key: %s (mode 0600)\n\n", got.KeyFile)
		w.printf("Copy these two and %s to %s over a channel you trust, then add its peer there, or change it if it exists:\n", ca.CertFile(), name)
		local := ""
		if req.SANs[0] != "" && !strings.Contains(req.SANs[0], ":") && strings.Trim(req.SANs[0], "0123456789.") != "" {
			local = " --local-id " + req.SANs[0] + " --remote-id PEERS_IDENTITY"
		}
		flags := fmt.Sprintf("--cert-file %s --key-file %s --ca-file %s%s", filepath.Base(got.CertFile), filepath.Base(got.KeyFile), filepath.Base(ca.CertFile()), local)
		w.printf("  ironwarp peer add %s PEER ITS_ADDRESS\n  ironwarp peer set %s PEER\n", flags, flags)
	})
}

func (w *ironwarp) openPKI(c *cli.Context) (*pki.CA, error) {
	ca, err := pki.Open(c.String("dir"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &usageError{msg: fmt.Sprintf("there is no authority in %s: %v", c.String("dir"), err), fix: "make one with `ironwarp pki init`, or name its directory with --dir"}
	}
	return ca, err
}

func (w *ironwarp) pkiRevoke(c *cli.Context) error {
	name := c.Args().First()
	ca, err := w.openPKI(c)
	if err != nil {
		return err
	}
	list, err := ca.Revoke(name)
	switch {
	case errors.Is(err, pki.ErrRevoked):
		return &usageError{msg: err.Error(), fix: "nothing is left to do; `ironwarp pki crl` writes the list anew"}
	case errors.Is(err, fs.ErrNotExist):
		return &usageError{msg: err.Error(), fix: "there is no certificate of that name in " + c.String("dir")}
	case err != nil:
		return err
	}
	return w.printCRL(c, list, fmt.Sprintf("the certificate of %s is revoked", name))
}

func (w *ironwarp) pkiRefresh(c *cli.Context) error {
	ca, err := w.openPKI(c)
	if err != nil {
		return err
	}
	list, err := ca.Refresh()
	if err != nil {
		return err
	}
	return w.printCRL(c, list, "the revocation list is new")
}

func (w *ironwarp) printCRL(c *cli.Context, list pki.CRL, done string) error {
	return w.print(c, struct {
		File       string    `json:"crl_file"`
		Number     string    `json:"number"`
		NextUpdate time.Time `json:"next_update"`
		Revoked    []string  `json:"revoked"`
	}{absolute(list.File), list.Number, list.NextUpdate, list.Serials}, func() {
		w.printf("%s: %s, number %s, %d revoked, good until %s\n", done, list.File, list.Number, len(list.Serials), list.NextUpdate.Local().Format("2006-01-02"))
		w.printf("Hosts read it where their --crl-uri points: copy it there, then `ironwarp reload` and `ironwarp sa delete --ike PEER`.\n")
	})
}
