package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) rotateCommand() *cli.Command {
	return &cli.Command{
		Name: "rotate-secret", Usage: "replace the secret of a peer without losing a stream", ArgsUsage: "NAME",
		Description: "Run it with --generate-psk on one host, copy the file to the other, and run it there with --psk-file.\n" +
			"SAs that are up keep their keys, so streams go on meanwhile. Until both hosts have the new secret they\n" +
			"cannot authenticate each other anew: if the IKE SA ends in that time, streams pause until they can.",
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
	Changed []string `json:"changed"`
}

func (w *ironwarp) rotate(c *cli.Context) error {
	name := c.Args().First()
	secret, err := w.newSecret(c)
	if err != nil {
		return err
	}
	if secret.IsZero() {
		return &usageError{msg: "which secret?", fix: "--generate-psk makes one on the first host; --psk-file takes it on the second (- reads it from standard input)"}
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
	p, ok := cfg.Peer(name)
	switch {
	case !ok:
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown peer %q", name), Fix: "configured peers: " + orDash(strings.Join(cfg.PeerNames(), ", "))}
	case p.Protection != config.ProtectIPsec:
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no secret: its protection is %s", p.Name, p.Protection)}
	case p.Auth == config.AuthCert:
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has certificates in place of a secret", p.Name), Fix: fmt.Sprintf("replace %s and %s, then run `ironwarp reload`", p.CertFile, p.KeyFile)}
	}
	r, err := w.replaceSecret(c, cl, cfg, p, secret, offline)
	if err != nil {
		return err
	}
	return w.print(c, r, func() { w.rotated(r, p, c.Bool("generate-psk"), offline) })
}

// replaceSecret gives a peer another secret, and no other peer.
func (w *ironwarp) replaceSecret(c *cli.Context, cl *api.Client, cfg *config.Config, p config.Peer, secret auth.Secret, offline bool) (r rotation, err error) {
	r = rotation{Peer: p.Name, File: p.PSKFile, Changed: []string{}}
	if cfg.OwnSecret(p) {
		if err := config.ReplaceSecret(p.PSKFile, secret); err != nil {
			return r, err
		}
	} else if r.File, err = w.separate(c, cl, cfg, p, secret, offline); err != nil {
		return r, err
	}
	if !offline {
		done, err := cl.Reload(c.Context)
		if err != nil {
			return r, fmt.Errorf("the new secret is in %s, but the daemon did not take it: %w", r.File, err)
		}
		r.Changed = done.Changed
	}
	return r, nil
}

// separate gives a peer whose file others share a file of its own with the secret.
func (w *ironwarp) separate(c *cli.Context, cl *api.Client, cfg *config.Config, p config.Peer, secret auth.Secret, offline bool) (string, error) {
	kept, err := config.KeepSecret(cfg, p.Name, secret)
	if err != nil {
		return "", err
	}
	change := api.PeerChange{PeerSpec: api.PeerSpec{Name: p.Name, PSKFile: kept.Path}, Set: []string{"psk_file"}}
	if offline {
		_, err = daemon.SetPeer(cfg.Path, change)
	} else {
		_, err = cl.SetPeer(c.Context, change)
	}
	if err != nil {
		return "", errors.Join(err, takeBack(kept, cfg.Path, p.Name, offline, err))
	}
	return kept.Path, nil
}

func (w *ironwarp) rotated(r rotation, p config.Peer, generated, offline bool) {
	w.printf("new secret of peer %s: %s (mode 0600)\n", r.Peer, r.File)
	for _, l := range r.Changed {
		w.printf("%s\n", l)
	}
	if r.File != p.PSKFile {
		w.printf("other peers keep %s\n", p.PSKFile)
	}
	if offline {
		w.printf("the daemon is not running; it takes the secret when it starts\n")
	}
	if generated {
		w.printf("\nThe other host needs it as well. Copy the file over a channel you trust:\n")
		w.carry(p.Name, p.Address.String(), r.File)
		w.printf("  ironwarp peer rotate-secret --psk-file %s THIS_HOST     (on %s)\n", carried(p.Name), p.Address)
		w.printf("Streams go on meanwhile. When both have it, `ironwarp sa delete --ike %s` shows that it works.\n", r.Peer)
	}
}
