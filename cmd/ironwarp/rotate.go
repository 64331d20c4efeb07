package main

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) rotateCommand() *cli.Command {
	return &cli.Command{
		Name: "rotate-secret", Usage: "replace the secret of a peer without losing a stream", ArgsUsage: "NAME",
		Description: "Run it with --generate-psk on one host, bring the file to the other, and run it there with --psk-file.\n" +
			"SAs that are up stay with their keys, so streams run on meanwhile. Until both hosts have the new secret they\n" +
			"cannot authenticate each other anew: should the IKE SA go in that time, streams pause until they can.",
		Flags: remote(configFlag(),
			&cli.StringFlag{Name: "psk-file", Usage: "`FILE` with the new secret, mode 0600; - for standard input"},
			&cli.BoolFlag{Name: "generate-psk", Usage: "make a new secret of 32 random bytes"},
		),
		Action: w.rotate, BashComplete: w.completePeers,
	}
}

// rotation is what rotate-secret prints as JSON.
type rotation struct {
	Peer    string   `json:"peer"`
	File    string   `json:"psk_file"`
	Shared  []string `json:"shared_with,omitempty"` // other peers that have the same file
	Changed []string `json:"changed"`
}

func (w *ironwarp) rotate(c *cli.Context) error {
	a, err := args(c, "NAME")
	if err != nil {
		return err
	}
	secret, err := w.newSecret(c)
	if err != nil {
		return err
	}
	cl := w.client(c)
	main, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	cfg, err := config.Load(main, false)
	if err != nil {
		return err
	}
	p, ok := cfg.Peer(a[0])
	switch {
	case !ok:
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown peer %q", a[0]), Fix: "configured peers: " + orDash(strings.Join(cfg.PeerNames(), ", "))}
	case p.Protection != config.ProtectIPsec:
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no secret: its protection is %s", p.Name, p.Protection)}
	case p.Auth == config.AuthCert:
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has certificates in place of a secret", p.Name), Fix: fmt.Sprintf("replace %s and %s, then run `ironwarp reload`", p.CertFile, p.KeyFile)}
	}
	if err := config.ReplaceSecret(p.PSKFile, secret); err != nil {
		return err
	}
	r := rotation{Peer: p.Name, File: p.PSKFile, Changed: []string{}}
	for _, q := range cfg.Peers {
		if q.Name != p.Name && q.PSKFile == p.PSKFile {
			r.Shared = append(r.Shared, q.Name)
		}
	}
	if !offline {
		done, err := cl.Reload(c.Context)
		if err != nil {
			return fmt.Errorf("the new secret is in %s, but the daemon did not take it: %w", p.PSKFile, err)
		}
		r.Changed = done.Changed
	}
	return w.print(c, r, func() { w.rotated(r, p, c.Bool("generate-psk"), offline) })
}

// newSecret is the secret that the flags ask for.
func (w *ironwarp) newSecret(c *cli.Context) (ipsec.Secret, error) {
	file, generate := c.String("psk-file"), c.Bool("generate-psk")
	switch {
	case generate && file != "":
		return ipsec.Secret{}, &usageError{msg: "--psk-file and --generate-psk exclude each other", fix: "generate the secret on one host, copy the file to the other and name it there with --psk-file"}
	case generate:
		return ipsec.GenerateSecret(), nil
	case file == "-":
		s, err := ipsec.ReadSecret(w.stdin)
		if err != nil {
			err = fmt.Errorf("read the secret from standard input: %w", err)
		}
		return s, err
	case file != "":
		return ipsec.LoadSecret(file)
	}
	return ipsec.Secret{}, &usageError{msg: "which secret?", fix: "--generate-psk makes one on the first host; --psk-file takes it on the second (- reads it from standard input)"}
}

func (w *ironwarp) rotated(r rotation, p config.Peer, generated, offline bool) {
	w.printf("new secret of peer %s: %s (mode 0600)\n", r.Peer, r.File)
	for _, l := range r.Changed {
		w.printf("%s\n", l)
	}
	if len(r.Shared) > 0 {
		w.printf("%s\n", w.warn("these peers have the same file, so they need the new secret, too: "+strings.Join(r.Shared, ", ")))
	}
	if offline {
		w.printf("the daemon is not running; it takes the secret when it starts\n")
	}
	if generated {
		w.printf("\nThe other host needs it as well. Copy the file over a channel you trust:\n")
		w.printf("  scp -p %s root@%s:/root/ironwarp.psk\n", r.File, p.Address)
		w.printf("  ironwarp peer rotate-secret --psk-file /root/ironwarp.psk THIS_HOST     (on %s)\n", p.Address)
		w.printf("Streams run on meanwhile. When both have it, `ironwarp sa delete --ike %s` shows that it works.\n", r.Peer)
	}
}
