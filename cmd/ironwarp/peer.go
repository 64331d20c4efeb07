package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/rtrs"
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
					"It never appears on the command line. Both hosts need the same one.\n" +
					"With certificates in its place: --cert-file, --key-file and --ca-file. For a lab, `ironwarp pki` makes them.",
				Flags:  remote(peerFlags()...),
				Action: w.peerAdd,
			},
			w.peerSetCommand(),
			{Name: "rm", Usage: "remove a peer and its protection", ArgsUsage: "NAME", Action: w.peerRemove, BashComplete: w.completePeers,
				Flags: remote(configFlag(), &cli.BoolFlag{Name: "force", Usage: "also when its disks are attached, whose I/O fails then, or exports allow it"})},
			{Name: "ls", Usage: "list the peers", Flags: remote(), Action: w.peerList},
			{Name: "show", Usage: "show everything about a peer", ArgsUsage: "NAME", Flags: remote(), Action: w.peerShow, BashComplete: w.completePeers},
			w.rotateCommand(),
			w.inviteCommand(),
			w.joinCommand(),
		},
	}
}

// peerFlags are the flags that describe a peer.
func peerFlags() []cli.Flag {
	return []cli.Flag{
		configFlag(),
		&cli.StringFlag{Name: "psk-file", Usage: "`FILE` with the secret, mode 0600; - for standard input"},
		&cli.BoolFlag{Name: "generate-psk", Usage: "make a secret of 32 random bytes and write it to a file"},
		&cli.StringFlag{Name: "local-address", Usage: "`ADDRESS` of this host (default: by the route to the peer)"},
		&cli.UintFlag{Name: "port", Usage: "TCP or SCTP `PORT` the peer listens on (default: the same as ours)"},
		&cli.StringFlag{Name: "transport", Usage: "tcp (default), sctp (the kernel's), sctp-udp (SCTP in UDP), or auto: the fastest that both hosts have"},
		&cli.UintFlag{Name: "udp-port", Usage: "UDP `PORT` of the peer's SCTP in UDP (default: the same as ours)"},
		&cli.StringSliceFlag{Name: "path", Usage: "a further path of sessions `ADDRESS=LOCAL_ADDRESS`, with [,name=NAME][,transport=TRANSPORT][,port=PORT] behind it; repeat for more"},
		&cli.StringSliceFlag{Name: "multihoming", Usage: "with transport sctp, a further pair of addresses `ADDRESS=LOCAL_ADDRESS` of each association; repeat for more"},
		&cli.StringFlag{Name: "local-id", Usage: "IKE `IDENTITY` of this host (default: its address)"},
		&cli.StringFlag{Name: "remote-id", Usage: "IKE `IDENTITY` of the peer (default: its address)"},
		&cli.StringFlag{Name: "auth", Usage: "psk or cert (default: what the files say)"},
		&cli.StringFlag{Name: "cert-file", Usage: "`FILE` with this host's certificate (PEM)"},
		&cli.StringFlag{Name: "key-file", Usage: "`FILE` with its private key (PEM), mode 0600"},
		&cli.StringSliceFlag{Name: "ca-file", Usage: "`FILE` with the certificate of an authority that may have issued the peer's (PEM); repeat for more"},
		&cli.StringSliceFlag{Name: "crl-uri", Usage: "`URI` of the authority's revocation list; repeat for more"},
		&cli.StringSliceFlag{Name: "ocsp-uri", Usage: "`URI` of the authority's OCSP responder; repeat for more"},
		&cli.StringFlag{Name: "revocation", Usage: "strict, ifuri (default) or relaxed: how certain it must be that the peer's certificate is not revoked"},
		&cli.StringFlag{Name: "profile", Usage: "IPsec `PROFILE`: " + strings.Join(profile.Names(), ", ") + ", or one of the configuration"},
		&cli.StringFlag{Name: "mode", Usage: "tunnel, or transport with kernel ESP (default: the profile's)"},
		&cli.StringFlag{Name: "gateway", Usage: "`ADDRESS` of a gateway at which the peer's ESP may end: nothing protects what is behind it"},
		&cli.IntFlag{Name: "child-sas", Usage: "child SAs per direction, a power of two up to " + fmt.Sprint(pad.MaxChildren) + ", so that kernels spread them over CPUs"},
		&cli.DurationFlag{Name: "idle-reap", Usage: "delete child SAs whose streams were idle for this `TIME` (default: never)"},
		&cli.UintFlag{Name: "iscsi-port", Usage: "a TCP `PORT` of iSCSI, 3260 as a rule, that the SAs cover as well: for targets of either host"},
		&cli.UintFlag{Name: "nvme-port", Usage: "a TCP `PORT` of NVMe over RDMA, 4420 as a rule, that the SAs cover as well: for subsystems of either host"},
		&cli.StringFlag{Name: "protection", Usage: "ipsec, or loopback for a daemon on this host"},
		&cli.BoolFlag{Name: "insecure-plaintext", Usage: "no protection at all: for labs only"},
		&cli.StringFlag{Name: "crc", Usage: "on, or off where ESP guards integrity"},
		&cli.StringFlag{Name: "fpdu", Usage: "large, or emss to keep FPDUs within TCP segments"},
		&cli.IntFlag{Name: "connections", Usage: "RDMA `STREAMS` of each path of a session"},
		&cli.StringFlag{Name: "policy", Usage: "how a session's I/O is spread over its paths: " + strings.Join(rtrs.Policies(), ", ")},
		&cli.DurationFlag{Name: "heartbeat-interval", Usage: "`TIME` between heartbeats of a path where nothing arrives (default: " + rtrs.HeartbeatInterval.String() + ")"},
		&cli.IntFlag{Name: "heartbeat-misses", Usage: "unanswered `INTERVALS` after which a path is given up (default: " + fmt.Sprint(rtrs.HeartbeatMissed) + ")"},
		&cli.StringFlag{Name: "no-path", Usage: "queue (default) or fail: what I/O does while a session has no path"},
		&cli.DurationFlag{Name: "fail-after", Usage: "`TIME` without a path after which I/O fails, with --no-path fail (default: " + config.FormatDuration(config.DefaultFailAfter) + ")"},
		&cli.BoolFlag{Name: "always-invalidate", Usage: "false leaves the memory of the peer's requests open to it while they are carried out; see `ironwarp security audit`", Value: true},
		&cli.IntFlag{Name: "reconnect-attempts", Usage: "`ATTEMPTS` to bring a path up that may fail before it is given up (default: 0, any number)"},
	}
}

func (w *ironwarp) peerAdd(c *cli.Context) error {
	a := c.Args()
	spec, err := peerSpec(c, a.Get(0))
	if err != nil {
		return err
	}
	spec.Address = a.Get(1)
	cl := w.client(c)
	path, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	secret, err := w.keepSecret(c, path, spec.Name)
	if err != nil {
		return err
	}
	spec.PSKFile = secret.Path
	var peer api.Peer
	if offline {
		peer.PeerSpec = spec
		peer.Source, err = daemon.AddPeer(path, spec)
		if cfg, lerr := config.Load(path, false); err == nil && lerr == nil {
			added, _ := cfg.Peer(spec.Name)
			peer.Insecure = added.Insecure()
		}
	} else {
		peer, err = cl.AddPeer(c.Context, spec)
	}
	if err != nil {
		return errors.Join(err, takeBack(secret, path, spec.Name, offline, err))
	}
	return w.print(c, peer, func() { w.peerAdded(peer, secret.Path, c.Bool("generate-psk"), offline) })
}

// peerSpec is the peer that the flags describe, without its secret.
func peerSpec(c *cli.Context, name string) (spec api.PeerSpec, err error) {
	spec = api.PeerSpec{
		Name: name, LocalAddress: c.String("local-address"), Port: uint16(c.Uint("port")),
		Transport: c.String("transport"), UDPPort: uint16(c.Uint("udp-port")),
		LocalID: c.String("local-id"), RemoteID: c.String("remote-id"), Profile: c.String("profile"), Mode: c.String("mode"),
		Auth: c.String("auth"), CRLURIs: c.StringSlice("crl-uri"), OCSPURIs: c.StringSlice("ocsp-uri"), Revocation: c.String("revocation"),
		Gateway: c.String("gateway"), ChildSAs: c.Int("child-sas"), ISCSIPort: uint16(c.Uint("iscsi-port")), NVMePort: uint16(c.Uint("nvme-port")), IdleReap: durationText(c, "idle-reap"),
		Protection: c.String("protection"), InsecurePlaintext: c.Bool("insecure-plaintext"),
		CRC: c.String("crc"), FPDU: c.String("fpdu"), Connections: c.Int("connections"),
		Policy: c.String("policy"), HeartbeatInterval: durationText(c, "heartbeat-interval"), HeartbeatMisses: c.Int("heartbeat-misses"),
		NoPath: c.String("no-path"), FailAfter: durationText(c, "fail-after"), ReconnectAttempts: c.Int("reconnect-attempts"),
	}
	if c.IsSet("always-invalidate") {
		spec.AlwaysInvalidate = new(c.Bool("always-invalidate"))
	}
	for _, flag := range []string{"port", "udp-port", "iscsi-port", "nvme-port"} {
		if c.Uint(flag) > 65535 {
			return spec, &usageError{msg: fmt.Sprintf("%s %d is out of range", strings.ReplaceAll(flag, "-", " "), c.Uint(flag)), fix: "allowed: 1 to 65535"}
		}
	}
	for _, s := range c.StringSlice("multihoming") {
		pair, err := pairOf("--multihoming "+s, s)
		if err != nil {
			return spec, err
		}
		spec.Multihoming = append(spec.Multihoming, pair)
	}
	for _, s := range pathFlags(c.StringSlice("path")) {
		path, err := pathOf("--path "+s, s)
		if err != nil {
			return spec, err
		}
		spec.Paths = append(spec.Paths, path)
	}
	if err := config.CheckPeerName(spec.Name); err != nil {
		return spec, &usageError{msg: fmt.Sprintf("peer name %q %s", spec.Name, err)}
	}
	return spec, certificates(c, &spec)
}

// pairOf is the pair of addresses that a text names.
func pairOf(what, s string) (api.Pair, error) {
	remote, local, ok := strings.Cut(s, "=")
	if !ok {
		return api.Pair{}, &usageError{msg: what + " is not a pair of addresses", fix: "write ADDRESS=LOCAL_ADDRESS, such as 198.51.100.2=198.51.100.1"}
	}
	return api.Pair{Address: remote, LocalAddress: local}, nil
}

// pathOf is the path that a text names.
func pathOf(what, s string) (path api.Path, err error) {
	pair, rest, _ := strings.Cut(s, ",")
	if path.Pair, err = pairOf(what, pair); err != nil {
		return path, err
	}
	for rest != "" {
		var option string
		option, rest, _ = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "name":
			path.Name = value
		case "transport":
			path.Transport = value
		case "port":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				return path, &usageError{msg: fmt.Sprintf("%s: port %q is out of range", what, value), fix: "allowed: 1 to 65535"}
			}
			path.Port = uint16(n)
		default:
			return path, &usageError{msg: fmt.Sprintf("%s has an unknown part %q", what, option), fix: "write ADDRESS=LOCAL_ADDRESS, and behind it ,name=NAME ,transport=TRANSPORT or ,port=PORT"}
		}
	}
	return path, nil
}

// pathFlags puts together again what a flag was split into at its commas.
func pathFlags(parts []string) (flags []string) {
	for _, s := range parts {
		key, _, _ := strings.Cut(s, "=")
		_, err := netip.ParseAddr(key)
		if n := len(flags); n > 0 && err != nil {
			flags[n-1] += "," + s
		} else {
			flags = append(flags, s)
		}
	}
	return flags
}

func durationText(c *cli.Context, flag string) string {
	if !c.IsSet(flag) {
		return ""
	}
	return c.Duration(flag).String()
}

// certificates finds the files with certificates, and reads them once, so that
// unusable files are refused here.
func certificates(c *cli.Context, spec *api.PeerSpec) error {
	var err error
	abs := func(name string) string {
		path, aerr := filepath.Abs(name)
		err = errors.Join(err, aerr)
		return path
	}
	for flag, to := range map[string]*string{"cert-file": &spec.CertFile, "key-file": &spec.KeyFile} {
		if name := c.String(flag); name != "" {
			*to = abs(name)
		}
	}
	for _, name := range c.StringSlice("ca-file") {
		spec.CAFiles = append(spec.CAFiles, abs(name))
	}
	secret := c.String("psk-file") != "" || c.Bool("generate-psk")
	some, all := spec.CertFile != "" || spec.KeyFile != "" || len(spec.CAFiles) > 0, spec.CertFile != "" && spec.KeyFile != "" && len(spec.CAFiles) > 0
	switch {
	case err != nil:
		return err
	case secret && (some || spec.Auth == string(config.AuthCert)):
		return &usageError{msg: "a secret and certificates exclude each other", fix: "give --psk-file or --generate-psk, or --cert-file, --key-file and --ca-file"}
	case !some && spec.Auth != string(config.AuthCert):
		return nil
	case !all && c.Command.Name == "add":
		return &usageError{msg: "certificates need three files", fix: "give --cert-file and --key-file of this host, and --ca-file of the authority that issued the peer's certificate"}
	}
	if (spec.CertFile == "") != (spec.KeyFile == "") {
		return &usageError{msg: "a certificate without its key, or a key without its certificate", fix: "give --cert-file and --key-file"}
	}
	if spec.CertFile != "" {
		own, err := auth.LoadCredential(spec.CertFile, spec.KeyFile)
		if err == nil {
			err = own.CheckTime(time.Now())
		}
		if err != nil {
			return err
		}
	}
	for _, name := range spec.CAFiles {
		if _, err := auth.LoadAuthority(name); err != nil {
			return err
		}
	}
	return nil
}

func (w *ironwarp) peerAdded(p api.Peer, secret string, generated, offline bool) {
	w.printf("peer %s (%s) added: %s\n", p.Name, p.Address, p.Source)
	if secret != "" {
		w.printf("secret: %s (mode 0600)\n", secret)
	}
	if generated {
		w.printf("\nThe other host needs the same secret. Copy the file over a channel you trust, then add this host there:\n")
		w.carry(p.Name, p.Address, secret)
		w.printf("  ironwarp peer add --psk-file %s THIS_HOST ITS_ADDRESS     (on %s)\n", carried(p.Name), p.Address)
	}
	w.insecure(p)
	if offline {
		w.printf("the daemon is not running; the peer is set up when it starts\n")
	}
	w.problem(p.Problem)
}

// insecure prints what weakens a peer's protection.
func (w *ironwarp) insecure(p api.Peer) {
	for _, why := range p.Insecure {
		w.printf("%s\n", w.bad("INSECURE: peer "+p.Name+": "+why))
	}
}

// narrowPath prints that the path to a peer drops long packets, and what to do.
func (w *ironwarp) narrowPath(p api.Peer) {
	if n := p.NarrowPath; n != nil {
		w.problem(&api.Error{Message: "peer " + p.Name + ": the path " + n.String(), Fix: n.Fix()})
	}
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
	name := c.Args().First()
	cl := w.client(c)
	path, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	var file string // with a secret that ironwarp has written
	if cfg, err := config.Load(path, false); err == nil {
		if p, ok := cfg.Peer(name); ok && p.PSKFile == config.SecretPath(path, name) {
			file = p.PSKFile
		}
	}
	var guard error
	var removed api.Removed
	if offline {
		guard, err = daemon.RemovePeer(path, name, c.Bool("force"))
		removed.Removed = name
	} else {
		removed, err = cl.RemovePeer(c.Context, name, c.Bool("force"))
	}
	if err != nil {
		return err
	}
	return w.print(c, removed, func() {
		w.printf("peer %s removed\n", name)
		for _, why := range removed.Held {
			w.printf("%s\n", w.warn(why+"; the daemon removes it when that is over"))
		}
		if file != "" {
			w.printf("its secret stays in %s; remove the file if nothing else needs it\n", file)
		}
		if guard != nil {
			w.printf("%s\n", w.warn(fmt.Sprintf("its guard in the kernel could not be removed: %v; see `ironwarp doctor`", guard)))
		}
	})
}
