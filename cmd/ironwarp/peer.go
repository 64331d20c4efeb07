package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) peerCommand() *cli.Command {
	return &cli.Command{
		Name:  "peer",
		Usage: "the other hosts of the link",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "declare a peer and set its protection up", ArgsUsage: "NAME ADDRESS",
				Description: "The secret comes from --psk-file (- reads it from standard input) or is made by --generate-psk.\n" +
					"It never stands on the command line. Both hosts need the same one.",
				Flags: remote(configFlag(),
					&cli.StringFlag{Name: "psk-file", Usage: "`FILE` with the secret, mode 0600; - for standard input"},
					&cli.BoolFlag{Name: "generate-psk", Usage: "make a secret of 32 random bytes and write it to a file"},
					&cli.StringFlag{Name: "local-address", Usage: "`ADDRESS` of this host (default: by the route to the peer)"},
					&cli.UintFlag{Name: "port", Usage: "TCP `PORT` the peer listens on (default: the same as ours)"},
					&cli.StringFlag{Name: "local-id", Usage: "IKE `IDENTITY` of this host (default: its address)"},
					&cli.StringFlag{Name: "remote-id", Usage: "IKE `IDENTITY` of the peer (default: its address)"},
					&cli.StringFlag{Name: "profile", Usage: "IPsec `PROFILE`"},
					&cli.StringFlag{Name: "protection", Usage: "ipsec, or loopback for a daemon on this host"},
					&cli.BoolFlag{Name: "insecure-plaintext", Usage: "no protection at all: for labs only"},
					&cli.StringFlag{Name: "crc", Usage: "on, or off where ESP guards integrity"},
					&cli.StringFlag{Name: "fpdu", Usage: "large, or emss to keep FPDUs within TCP segments"},
					&cli.IntFlag{Name: "connections", Usage: "RDMA `STREAMS` per session"},
				),
				Action: w.peerAdd,
			},
			{Name: "rm", Usage: "remove a peer and its protection", ArgsUsage: "NAME", Flags: remote(configFlag()), Action: w.peerRemove, BashComplete: w.completePeers},
			{Name: "ls", Usage: "list the peers", Flags: remote(), Action: w.peerList},
			{Name: "show", Usage: "show everything about a peer", ArgsUsage: "NAME", Flags: remote(), Action: w.peerShow, BashComplete: w.completePeers},
		},
	}
}

func (w *ironwarp) peerAdd(c *cli.Context) error {
	a, err := args(c, "NAME", "ADDRESS")
	if err != nil {
		return err
	}
	spec := api.PeerSpec{
		Name: a[0], Address: a[1], LocalAddress: c.String("local-address"), Port: uint16(c.Uint("port")),
		LocalID: c.String("local-id"), RemoteID: c.String("remote-id"), Profile: c.String("profile"),
		Protection: c.String("protection"), InsecurePlaintext: c.Bool("insecure-plaintext"),
		CRC: c.String("crc"), FPDU: c.String("fpdu"), Connections: c.Int("connections"),
	}
	if c.Uint("port") > 65535 {
		return &usageError{msg: fmt.Sprintf("port %d is out of range", c.Uint("port")), fix: "allowed: 1 to 65535"}
	}
	if err := config.CheckPeerName(spec.Name); err != nil {
		return &usageError{msg: fmt.Sprintf("peer name %q %s", spec.Name, err)}
	}
	cl := w.client(c)
	path, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	var made string
	if spec.PSKFile, made, err = w.secretFor(c, path, spec.Name); err != nil {
		return err
	}
	var peer api.Peer
	if offline {
		peer.PeerSpec = spec
		peer.Source, err = daemon.AddPeer(path, spec)
	} else {
		peer, err = cl.AddPeer(c.Context, spec)
	}
	if err != nil {
		if made != "" {
			err = errors.Join(err, os.Remove(made))
		}
		return err
	}
	return w.print(c, peer, func() { w.peerAdded(peer, made, c.Bool("generate-psk"), offline) })
}

// whichConfig is the daemon's main file, or, with no daemon running, the one
// that the flags name.
func (w *ironwarp) whichConfig(c *cli.Context, cl *api.Client) (path string, offline bool, err error) {
	info, err := cl.Info(c.Context)
	switch {
	case err == nil:
		return info.Config, false, nil
	case api.NotRunning(err):
		path, _ = configPath(c)
		path, err = filepath.Abs(path)
		return path, true, err
	}
	return "", false, err
}

// secretFor finds the file with the peer's secret, and writes it where it has
// to be made; made is empty unless a file was written.
func (w *ironwarp) secretFor(c *cli.Context, main, peer string) (path, made string, err error) {
	file, generate := c.String("psk-file"), c.Bool("generate-psk")
	switch {
	case file != "" && generate:
		return "", "", &usageError{msg: "--psk-file and --generate-psk exclude each other", fix: "generate the secret on one host, copy the file to the other and name it there with --psk-file"}
	case generate:
		made, err = config.WriteSecret(main, peer, ipsec.GenerateSecret())
		return made, made, err
	case file == "-":
		s, err := ipsec.ReadSecret(w.stdin)
		if err != nil {
			return "", "", fmt.Errorf("read the secret from standard input: %w", err)
		}
		made, err = config.WriteSecret(main, peer, s)
		return made, made, err
	case file != "":
		if file, err = filepath.Abs(file); err != nil {
			return "", "", err
		}
		_, err := ipsec.LoadSecret(file)
		return file, "", err
	}
	return "", "", nil
}

func (w *ironwarp) peerAdded(p api.Peer, secret string, generated, offline bool) {
	w.printf("peer %s (%s) added: %s\n", p.Name, p.Address, p.Source)
	if secret != "" {
		w.printf("secret: %s (mode 0600)\n", secret)
	}
	if generated {
		w.printf("\nThe other host needs the same secret. Copy the file over a channel you trust, then add this host there:\n")
		w.printf("  scp -p %s root@%s:/root/ironwarp.psk\n", secret, p.Address)
		w.printf("  ironwarp peer add --psk-file /root/ironwarp.psk THIS_HOST ITS_ADDRESS     (on %s)\n", p.Address)
	}
	if p.InsecurePlaintext {
		w.printf("%s\n", w.bad("warning: streams to "+p.Address+" have no protection at all; use this in labs only"))
	}
	if offline {
		w.printf("the daemon is not running; the peer is set up when it starts\n")
	}
	w.problem(p.Problem)
}

// problem prints what is wrong with something, and what to do.
func (w *ironwarp) problem(e *api.Error) {
	if e == nil {
		return
	}
	w.printf("%s\n", w.warn(e.Message))
	if e.Fix != "" {
		w.printf("  %s\n", strings.ReplaceAll(e.Fix, "\n", "\n  "))
	}
}

func (w *ironwarp) peerRemove(c *cli.Context) error {
	a, err := args(c, "NAME")
	if err != nil {
		return err
	}
	cl := w.client(c)
	path, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	var guard error
	if offline {
		guard, err = daemon.RemovePeer(path, a[0])
	} else {
		err = cl.RemovePeer(c.Context, a[0])
	}
	if err != nil {
		return err
	}
	return w.print(c, struct {
		Removed string `json:"removed"`
	}{a[0]}, func() {
		w.printf("peer %s removed\n", a[0])
		if secret := config.SecretPath(path, a[0]); offline || fileExists(secret) {
			w.printf("its secret stays in %s; remove the file if nothing else needs it\n", secret)
		}
		if guard != nil {
			w.printf("%s\n", w.warn(fmt.Sprintf("its guard in the kernel could not be removed: %v; see `ironwarp doctor`", guard)))
		}
	})
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (w *ironwarp) peerList(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	peers, err := w.client(c).Peers(c.Context)
	if err != nil {
		return err
	}
	return w.print(c, peers, func() {
		if len(peers) == 0 {
			w.printf("no peers; add one with `ironwarp peer add NAME ADDRESS`\n")
			return
		}
		w.peerTable(peers)
		for _, p := range peers {
			w.problem(p.Problem)
		}
	})
}

func (w *ironwarp) peerTable(peers []api.Peer) {
	t := w.sheet("peer", "address", ">port", "protection", "state", ">streams", "may attach")
	for _, p := range peers {
		t.row(p.Name, p.Address, p.Port, protectionText(p), w.stateText(p.State), p.Streams, orDash(strings.Join(p.Exports, " ")))
	}
	t.print()
}

func protectionText(p api.Peer) string {
	switch {
	case p.InsecurePlaintext:
		return "NONE (plaintext)"
	case p.DataPlane != "":
		return p.Protection + " (" + p.DataPlane + ")"
	}
	return p.Protection
}

// stateText colours a state.
func (w *ironwarp) stateText(s string) string {
	switch s {
	case api.PeerUp, api.ExportReady, "listening", "connected":
		return w.good(s)
	case api.PeerProblem:
		return w.bad(s)
	case api.PeerPaused, api.AttachWaiting, api.AttachConnecting:
		return w.warn(s)
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (w *ironwarp) peerShow(c *cli.Context) error {
	a, err := args(c, "NAME")
	if err != nil {
		return err
	}
	cl := w.client(c)
	p, err := cl.Peer(c.Context, a[0])
	if err != nil {
		return err
	}
	var sas []api.SA
	if p.IPsec != nil && !asJSON(c) {
		// What is wrong with strongSwan shows as the peer's problem.
		sas, _ = cl.SAs(c.Context)
		sas = slices.DeleteFunc(sas, func(s api.SA) bool { return s.Peer != p.Name })
	}
	return w.print(c, p, func() {
		line := func(name string, v any) { w.printf("%-15s %v\n", name, v) }
		line("name", w.bold(p.Name))
		line("state", w.stateText(p.State))
		line("address", p.Address)
		line("local address", orDash(p.LocalAddress))
		line("port", p.Port)
		line("protection", protectionText(p))
		if p.Protection == string(config.ProtectIPsec) {
			line("local id", orDash(p.LocalID))
			line("remote id", orDash(p.RemoteID))
			line("secret file", p.PSKFile)
			line("profile", orDash(p.Profile))
		}
		line("crc", p.CRC)
		line("fpdu", p.FPDU)
		line("connections", p.Connections)
		line("streams now", p.Streams)
		line("may attach", orDash(strings.Join(p.Exports, " ")))
		line("declared at", p.Source)
		if i := p.IPsec; i != nil {
			guard := w.good("in place")
			if !i.Guarded {
				guard = w.bad("missing")
			}
			line("kernel guard", fmt.Sprintf("%s, repaired %d times, %d streams refused", guard, i.GuardRepairs, i.Refused))
			line("SAs brought up", fmt.Sprintf("%d, of them %d that were lost; %d attempts failed", i.Initiations, i.Reinitiations, i.Failures))
			line("SAs deleted", fmt.Sprintf("%d, rekeyed %d", i.ChildDeletes, i.Rekeys))
			line("outages", fmt.Sprintf("%d, the longest %.2f s", i.Outages, i.LongestOutageSeconds))
		}
		w.problem(p.Problem)
		if len(sas) > 0 {
			w.printf("\n")
			w.saTable(sas)
		}
	})
}
