package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/urfave/cli/v2"
)

// newSecret is the secret that the flags ask for, the zero one if they ask for none.
func (w *ironwarp) newSecret(c *cli.Context) (auth.Secret, error) {
	file, generate := c.String("psk-file"), c.Bool("generate-psk")
	switch {
	case file != "" && generate:
		return auth.Secret{}, &usageError{msg: "--psk-file and --generate-psk exclude each other", fix: "generate the secret on one host, copy the file to the other and name it there with --psk-file"}
	case generate:
		return auth.GenerateSecret(), nil
	case file == "-":
		s, err := auth.ReadSecret(w.stdin)
		if err != nil {
			err = fmt.Errorf("read the secret from standard input: %w", err)
		}
		return s, err
	case file != "":
		return auth.LoadSecret(file)
	}
	return auth.Secret{}, nil
}

// keepSecret writes the secret that the flags ask for to a file of a new peer alone.
// It has no path if they ask for none.
func (w *ironwarp) keepSecret(c *cli.Context, main, peer string) (config.KeptSecret, error) {
	s, err := w.newSecret(c)
	if err != nil || s.IsZero() {
		return config.KeptSecret{}, err
	}
	cfg, err := config.Load(main, false)
	if err != nil {
		return config.KeptSecret{}, err
	}
	if p, have := cfg.Peer(peer); have {
		return config.KeptSecret{}, &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("%s is declared at %s: already configured", peer, p.Origin), Fix: "`ironwarp peer set " + peer + "` changes it"}
	}
	return config.KeepSecret(cfg, peer, s)
}

// takeBack puts back what the file of a secret held before a change of its peer that has failed with err. It leaves it as it is where
// the configuration names it already, since what came after that has failed, and where it may yet, since nobody has said how the
// change has ended, as after Ctrl-C: a peer whose secret is gone would be worse than a file that nobody names.
func takeBack(kept config.KeptSecret, main, peer string, offline bool, err error) error {
	var said *api.Error
	if !offline && !errors.As(err, &said) {
		return nil
	}
	cfg, lerr := config.Load(main, false)
	if lerr != nil {
		return lerr
	}
	if p, ok := cfg.Peer(peer); ok && p.PSKFile == kept.Path {
		return nil
	}
	return kept.Undo()
}

// carry prints the command that copies a secret to the peer's host.
func (w *ironwarp) carry(peer, address, secret string) {
	w.printf("  scp -p %s root@%s:%s\n", secret, scpHost(address), carried(peer))
}

// scpHost is an address as scp takes it.
func scpHost(address string) string {
	if a, err := netip.ParseAddr(address); err == nil && a.Is6() {
		return "[" + address + "]"
	}
	return address
}

// carried is where a secret is kept on the peer's host: each pair of hosts has a file of
// its own.
func carried(peer string) string {
	host, err := os.Hostname()
	if err != nil || config.CheckPeerName(host) != nil {
		host = "ironwarp"
	}
	return "/root/" + strings.Join([]string{host, peer}, "-") + ".psk"
}
