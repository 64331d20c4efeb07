package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rping"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) rpingCommand() *cli.Command {
	return &cli.Command{
		Name: "rping", Usage: "ping another RDMA stack with librdmacm's rping, without the daemon",
		Description: "Speaks the protocol of rping(1), as its server or client. Within one host it needs nothing; to try\n" +
			"it with another one in a lab, --plaintext names the only addresses that it may speak with in clear.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "s", Usage: "be the server"},
			&cli.BoolFlag{Name: "c", Usage: "be the client"},
			&cli.StringFlag{Name: "a", Usage: "`ADDRESS` to connect to, or to listen on", Value: "127.0.0.1"},
			&cli.IntFlag{Name: "p", Usage: "TCP or SCTP `PORT`", Value: rping.DefaultPort},
			&cli.StringFlag{Name: "transport", Usage: "tcp, sctp (the kernel's) or sctp-udp", Value: transport.TCP.String()},
			&cli.UintFlag{Name: "udp-port", Usage: "with sctp-udp, the server's UDP `PORT`", Value: config.DefaultUDPPort},
			&cli.IntFlag{Name: "C", Usage: "client: `NUMBER` of pings; 0 for no end"},
			&cli.IntFlag{Name: "S", Usage: "client: payload in `BYTES`", Value: rping.DefaultSize},
			&cli.BoolFlag{Name: "v", Usage: "print the text of each ping"},
			&cli.BoolFlag{Name: "V", Usage: "client: compare what comes back with what was sent"},
			&cli.BoolFlag{Name: "d", Usage: "log each step"},
			&cli.BoolFlag{Name: "P", Usage: "server: serve clients, many at once, until interrupted"},
			&cli.BoolFlag{Name: "no-crc", Usage: "do not ask for CRCs"},
			&cli.BoolFlag{Name: "peer-to-peer", Usage: "client: MPA's peer-to-peer model (RFC 6581), with an RDMA Write or Read as the first message"},
			&cli.IntFlag{Name: "mpa-revision", Usage: "client: `REVISION` of MPA to begin with, 1 or 2", Value: 2},
			&cli.StringSliceFlag{Name: "plaintext", Usage: "for labs: speak in clear, unprotected, with this peer `ADDRESS` (may be repeated)"},
		},
		Action: w.rping,
	}
}

func (w *ironwarp) rping(c *cli.Context) error {
	if c.Bool("s") == c.Bool("c") {
		return &usageError{msg: "either -s (server) or -c (client) is needed", fix: "see `ironwarp rping --help`"}
	}
	addr, err := rpingAddress(c)
	if err != nil {
		return err
	}
	tc, err := w.rpingTransport(c)
	if err != nil {
		return err
	}
	setup := verbs.Setup{Plain: c.Int("mpa-revision") == 1, NoCRC: c.Bool("no-crc")}
	if r := c.Int("mpa-revision"); r != 1 && r != 2 {
		return &usageError{msg: fmt.Sprintf("--mpa-revision %d: there are 1 and 2", r)}
	}
	cfg := rping.Config{Size: c.Int("S"), Count: c.Int("C"), Validate: c.Bool("V")}
	if c.Bool("d") {
		cfg.Log = slog.New(slog.NewTextHandler(w.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return err
	}
	defer dev.Close()
	ulp, err := dev.NewULP("rping", verbs.ULPConfig{})
	if err != nil {
		return err
	}
	if c.Bool("s") {
		if c.Bool("v") {
			cfg.Each = func(text []byte) { w.printf("server ping data: %s\n", text) }
		}
		return w.rpingServe(c, dev, ulp, addr, verbs.ListenConfig{Transport: tc, Setup: setup}, cfg)
	}
	if cfg.Size < rping.MinSize || cfg.Size > rping.MaxSize || cfg.Count < 0 {
		return &usageError{msg: fmt.Sprintf("-C %d -S %d: the size is %d to %d bytes", cfg.Count, cfg.Size, rping.MinSize, rping.MaxSize)}
	}
	setup.ClientServer = !c.Bool("peer-to-peer")
	if !setup.ClientServer {
		setup.PeerToPeer = verbs.RTRWrite | verbs.RTRRead | verbs.RTRSend
	}
	if c.Bool("v") {
		cfg.Each = func(text []byte) { w.printf("ping data: %s\n", text) }
	}
	_, err = rping.Client(c.Context, ulp, verbs.DialConfig{Remote: addr, Transport: tc, Setup: setup}, cfg)
	return err
}

func (w *ironwarp) rpingServe(c *cli.Context, dev *verbs.Device, ulp *verbs.ULP, addr netip.AddrPort, lc verbs.ListenConfig, cfg rping.Config) error {
	refused := func(f transport.Flow, err error) { fmt.Fprintf(w.stderr, "ironwarp: refused %v: %v\n", f, err) }
	lc.Transport.OnRefused, lc.OnFailed = refused, refused
	ln, err := dev.Listen(c.Context, addr, lc)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Fprintf(w.stderr, "listening on %v\n", ln.Addr())
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		req, err := ln.Accept(c.Context)
		if err != nil {
			if c.Bool("P") && errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		if !c.Bool("P") {
			_, err := rping.Serve(c.Context, ulp, req, cfg)
			return err
		}
		wg.Go(func() {
			if _, err := rping.Serve(c.Context, ulp, req, cfg); err != nil {
				fmt.Fprintf(w.stderr, "ironwarp: %v: %v\n", req.Flow(), err)
			}
		})
	}
}

func rpingAddress(c *cli.Context) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(c.String("a"))
	if err != nil {
		return netip.AddrPort{}, &usageError{msg: fmt.Sprintf("-a %s is not an IP address", c.String("a"))}
	}
	port := c.Int("p")
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, &usageError{msg: fmt.Sprintf("-p %d is not a port: 1 to 65535", port)}
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

// rpingTransport admits this host, and the addresses of --plaintext with a
// warning at each connection.
func (w *ironwarp) rpingTransport(c *cli.Context) (*transport.Config, error) {
	clear := make(map[netip.Addr]bool)
	var addrs []netip.Addr
	for _, s := range c.StringSlice("plaintext") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, &usageError{msg: fmt.Sprintf("--plaintext %s is not an IP address", s)}
		}
		clear[a.Unmap()] = true
		addrs = append(addrs, a)
	}
	lab := transport.Plaintext(slog.New(slog.NewTextHandler(w.stderr, nil)), addrs...)
	within := transport.LoopbackOnly()
	kind, err := transport.ParseKind(c.String("transport"))
	if err != nil {
		return nil, &usageError{msg: fmt.Sprintf("--transport %q is not known", c.String("transport")), fix: "allowed: tcp, sctp, sctp-udp"}
	}
	udp := c.Uint("udp-port")
	if udp < 1 || udp > 65535 {
		return nil, &usageError{msg: fmt.Sprintf("--udp-port %d is not a port: 1 to 65535", udp)}
	}
	return &transport.Config{Kind: kind, UDPPort: uint16(udp), Protector: transport.PerPeer(func(a netip.Addr) (transport.Protector, error) {
		if clear[a.Unmap()] {
			return lab, nil
		}
		if !a.Unmap().IsLoopback() {
			return nil, fmt.Errorf("%v is not this host, and rping has no IPsec of its own; in a lab: --plaintext %v", a, a)
		}
		return within, nil
	})}, nil
}
