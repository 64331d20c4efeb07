package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) peerSetCommand() *cli.Command {
	return &cli.Command{
		Name: "set", Usage: "change a peer's settings", ArgsUsage: "NAME",
		Description: "Settings without a flag stay as they are. Certificates replace the secret, and a secret replaces certificates.\n" +
			"Streams go on, unless their address, port, transport, path, identity, protection, gateway or child SAs change.",
		Flags:  remote(append(peerFlags(), &cli.StringFlag{Name: "address", Usage: "its new `ADDRESS`"})...),
		Action: w.peerSet, BashComplete: w.completePeers,
	}
}

// keyOf is the key of api.PeerSpec that a flag of a peer is about.
func keyOf(flag string) string {
	switch flag {
	case "generate-psk":
		return "psk_file"
	case "ca-file", "crl-uri", "ocsp-uri", "path":
		flag += "s"
	}
	return strings.ReplaceAll(flag, "-", "_")
}

func (w *ironwarp) peerSet(c *cli.Context) error {
	name := c.Args().First()
	spec, err := peerSpec(c, name)
	if err != nil {
		return err
	}
	change := api.PeerChange{PeerSpec: spec}
	change.Address = c.String("address")
	for _, f := range append(peerFlags(), &cli.StringFlag{Name: "address"}) {
		if name := f.Names()[0]; name != "config" && c.IsSet(name) {
			change.Set = append(change.Set, keyOf(name))
		}
	}
	slices.Sort(change.Set)
	if change.Set = slices.Compact(change.Set); len(change.Set) == 0 {
		return &usageError{msg: "nothing to change", fix: "say what with flags, see `ironwarp peer set --help`; `ironwarp peer show " + name + "` shows the present settings"}
	}
	cl := w.client(c)
	path, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	secret, err := w.newSecret(c)
	if err != nil {
		return err
	}
	var peer api.Peer
	var file string // that has the secret
	apply := func() (err error) {
		if offline {
			peer.Name = name
			peer.Source, err = daemon.SetPeer(path, change)
		} else {
			peer, err = cl.SetPeer(c.Context, change)
		}
		return err
	}
	if secret.IsZero() {
		err = apply()
	} else {
		file, err = w.setSecret(c, cl, path, &change, secret, offline, apply)
	}
	if err != nil {
		return err
	}
	return w.print(c, peer, func() {
		w.printf("peer %s changed: %s\n", peer.Name, peer.Source)
		if file != "" {
			w.printf("secret: %s (mode 0600)\n", file)
		}
		w.insecure(peer)
		if offline {
			w.printf("the daemon is not running; the change takes effect when it starts\n")
		}
		w.problem(peer.Problem)
	})
}

// setSecret applies a change with a secret. A secret in use is replaced last, when
// nothing can be refused any more.
func (w *ironwarp) setSecret(c *cli.Context, cl *api.Client, main string, change *api.PeerChange, secret auth.Secret, offline bool, apply func() error) (string, error) {
	cfg, err := config.Load(main, false)
	if err != nil {
		return "", err
	}
	p, ok := cfg.Peer(change.Name)
	if !ok || p.Protection != config.ProtectIPsec || p.Auth != config.AuthPSK {
		kept, err := config.KeepSecret(cfg, change.Name, secret)
		if err != nil {
			return "", err
		}
		change.PSKFile = kept.Path
		if err := apply(); err != nil {
			return "", errors.Join(err, takeBack(kept, main, change.Name, offline, err))
		}
		return kept.Path, nil
	}
	change.PSKFile = p.PSKFile
	if err := apply(); err != nil {
		return "", err
	}
	r, err := w.replaceSecret(c, cl, cfg, p, secret, offline)
	return r.File, err
}
