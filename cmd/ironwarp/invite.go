package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/invite"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) inviteCommand() *cli.Command {
	return &cli.Command{
		Name: "invite", Usage: "make a token with which another host becomes a peer, and wait for it", ArgsUsage: "[NAME]",
		Description: "The other host runs `ironwarp peer join` with the token. Both screens then show a code of six digits; when people have\n" +
			"confirmed on both hosts that it is the same, each has the other as a peer, with a new secret. Nothing else needs to be copied.\n" +
			"The token serves one host, until it expires or this command ends (Ctrl-C). Carry it over a channel that others do not read: who\n" +
			"steals it can join in place of the other host, which its name, its address and the code reveal to whoever compares them.\n" +
			"NAME is the peer's name here; by default it is the one that the other host gives itself.\n" +
			"This host listens in clear, on a TCP port of its own, as long as the command runs; nothing of a stream goes that way.",
		Flags: remote(configFlag(),
			&cli.DurationFlag{Name: "expires", Usage: "`TIME` after which nobody can join any more", Value: invite.DefaultExpiry},
			&cli.StringSliceFlag{Name: "address", Usage: "`ADDRESS` of this host at which the other reaches it; repeat for more (default: all of this host)"},
			&cli.UintFlag{Name: "port", Usage: "TCP `PORT` to wait at", Value: invite.DefaultPort},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` to write the token to, mode 0600, in place of the screen"},
			&cli.StringFlag{Name: "local-id", Usage: "IKE `IDENTITY` of this host (default: its address)"},
			&cli.StringFlag{Name: "profile", Usage: "IPsec `PROFILE` of both hosts"},
			&cli.StringFlag{Name: "transport", Usage: "of streams of both hosts: tcp (default), sctp, sctp-udp or auto"},
			yesFlag(),
		),
		Action: w.peerInvite,
	}
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "confirm the code unseen: then whoever has read the token may be the peer, so carry it by ssh or the like"}
}

func (w *ironwarp) peerInvite(c *cli.Context) error {
	j, err := w.newJoint(c, c.Args().First())
	if err != nil {
		return err
	}
	expires, port := c.Duration("expires"), c.Uint("port")
	switch {
	case expires < time.Second || expires > invite.MaxExpiry:
		return &usageError{msg: fmt.Sprintf("--expires %s is out of range", expires), fix: "allowed: 1s to " + config.FormatDuration(invite.MaxExpiry)}
	case port == 0 || port > 65535:
		return &usageError{msg: fmt.Sprintf("--port %d is out of range", port), fix: "allowed: 1 to 65535"}
	case asJSON(c) && c.String("token-file") == "":
		return &usageError{msg: "the token is a secret, which is not printed as JSON", fix: "give --token-file FILE"}
	}
	if use := j.cfg.UseOfPort(uint16(port)); use != "" {
		return &usageError{msg: fmt.Sprintf("port %d is that of %s", port, use), fix: "give another one with --port"}
	}
	at, err := inviterAddresses(c.StringSlice("address"))
	if err != nil {
		return err
	}
	t, err := invite.NewToken(time.Now().Add(expires), at, uint16(port), j.side.Own)
	if err != nil {
		return err
	}
	listeners, err := invite.Listen(c.Context, t)
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Message: err.Error(), Fix: "is another `ironwarp peer invite` waiting? Name another port with --port, or this host's addresses with --address"}
	}
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	if err := j.hand(t, c.String("token-file"), expires); err != nil {
		closeAll()
		return err
	}
	r, err := invite.Invite(c.Context, t, listeners, j.side)
	return j.end(r, err)
}

// hand gives the token to whoever has asked for it.
func (j *joint) hand(t invite.Token, file string, expires time.Duration) error {
	if file != "" {
		path, err := filepath.Abs(file)
		if err == nil {
			err = wholefile.Write(path, []byte(t.Reveal()+"\n"))
		}
		if err != nil {
			return fmt.Errorf("write the token: %w", err)
		}
		j.say("the token is in %s (mode 0600)\n", path)
	} else {
		j.say("Run this on the other host, and paste the token there:\n\n  ironwarp peer join\n\n%s\n\n", t.Reveal())
	}
	var places []string
	for _, a := range t.Addresses {
		places = append(places, netip.AddrPortFrom(a, t.Port).String())
	}
	j.say("Waiting for it at %s (TCP) for %s; Ctrl-C cancels the invitation.\n", strings.Join(places, ", "), config.FormatDuration(expires))
	return nil
}

// inviterAddresses are those that were named, or else all of this host at which others can reach it.
func inviterAddresses(named []string) (at []netip.Addr, err error) {
	for _, s := range named {
		a, err := config.ParseAddr(s)
		if err != nil || a.IsLoopback() || a.IsLinkLocalUnicast() {
			return nil, &usageError{msg: fmt.Sprintf("--address %s is not an address at which another host reaches this one", s), fix: "`ip address` shows those of this host"}
		}
		at = append(at, a)
	}
	if len(at) == 0 {
		all, err := net.InterfaceAddrs()
		if err != nil {
			return nil, err
		}
		for _, n := range all {
			p, err := netip.ParsePrefix(n.String())
			if a := p.Addr().Unmap(); err == nil && a.IsGlobalUnicast() {
				at = append(at, a)
			}
		}
		if len(at) == 0 {
			return nil, &api.Error{Code: api.CodeUnavailable, Message: "this host has no address at which another reaches it", Fix: "see `ip address`"}
		}
	}
	slices.SortStableFunc(at, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	if at = slices.Compact(at); len(at) > invite.MaxAddresses {
		return nil, &usageError{msg: fmt.Sprintf("%d addresses are too many for a token; allowed: %d", len(at), invite.MaxAddresses), fix: "name those at which the other host reaches this one with --address"}
	}
	return at, nil
}

func (w *ironwarp) joinCommand() *cli.Command {
	return &cli.Command{
		Name: "join", Usage: "become the peer of a host that has made a token", ArgsUsage: "[TOKEN]",
		Description: "Without TOKEN it is asked for, or read from the first line of standard input. Users of this host may see a TOKEN of the command line\n" +
			"in the list of processes; it serves one host alone, and who joins before you has another code on his screen.\n" +
			"Compare the code with the one on the inviter's screen, by telephone for example, before you confirm it.",
		Flags: remote(configFlag(),
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token; - for standard input"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the peer here (default: the one that it gives itself)"},
			&cli.StringFlag{Name: "local-id", Usage: "IKE `IDENTITY` of this host (default: its address)"},
			yesFlag(),
		),
		Action: w.peerJoin,
	}
}

func (w *ironwarp) peerJoin(c *cli.Context) error {
	if c.Bool("yes") && c.Args().Present() && c.Args().First() != "-" {
		return &usageError{msg: "--yes with the token on the command line, where others may read it", fix: "give the token by --token-file, or on standard input"}
	}
	j, err := w.newJoint(c, c.String("name"))
	if err != nil {
		return err
	}
	text, err := j.token(c)
	if err != nil {
		return err
	}
	t, err := invite.ParseToken(text)
	if err != nil {
		return &usageError{msg: err.Error()}
	}
	j.side.Own.Profile, j.side.Own.Transport = t.Inviter.Profile, t.Inviter.Transport
	r, err := invite.Join(c.Context, t, j.side)
	return j.end(r, err)
}

// token is the token's text, from where the command line says that it is.
func (j *joint) token(c *cli.Context) (string, error) {
	arg, file := c.Args().First(), c.String("token-file")
	switch {
	case arg != "" && file != "":
		return "", &usageError{msg: "a token and --token-file exclude each other"}
	case arg != "" && arg != "-":
		return arg, nil
	case file != "" && file != "-":
		open := os.Open
		if c.Bool("yes") { // then the token alone decides
			open = func(path string) (*os.File, error) { return auth.OpenPrivate(path, "token") }
		}
		f, err := open(file)
		if err != nil {
			return "", fmt.Errorf("cannot use the token's file: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
		return string(b), err
	case isTerminal(j.w.stdin):
		fmt.Fprint(j.w.stderr, "Token: ")
	}
	line, err := j.readLine(c.Context)
	if err != nil {
		return "", fmt.Errorf("read the token from standard input: %w", err)
	}
	return line, nil
}

// undoTime bounds the removal of a peer.
const undoTime = time.Minute

// maxTokenFile in bytes: no token is longer.
const maxTokenFile = 8 << 10

// readLine reads a line of standard input. It fails where there is none, with a line that is too long,
// and with the context's error; what then comes of the line is lost.
func (j *joint) readLine(ctx context.Context) (string, error) {
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		line, err := j.in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = nil
		}
		got <- read{string(line), err}
	}()
	select {
	case r := <-got:
		return r.line, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func newLineReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, maxTokenFile) }
