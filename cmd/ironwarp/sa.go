package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) saCommand() *cli.Command {
	child := func() cli.Flag { return &cli.StringFlag{Name: "child", Usage: "only the child SAs of this `NAME`"} }
	return &cli.Command{
		Name:  "sa",
		Usage: "the IPsec security associations of the peers",
		Subcommands: []*cli.Command{
			{
				Name: "ls", Usage: "list the child SAs, of all peers or of one", ArgsUsage: "[PEER]",
				Flags: remote(), Action: w.saList, BashComplete: w.completePeers,
			},
			{
				Name: "show", Usage: "everything about the SAs of a peer: identities, algorithms, ages, lifetimes, bytes", ArgsUsage: "PEER",
				Flags: remote(), Action: w.saShow, BashComplete: w.completePeers,
			},
			{
				Name: "rekey", Usage: "make new keys for a peer's child SAs, or with --ike for its IKE SA; nothing pauses", ArgsUsage: "PEER",
				Flags:  remote(child(), &cli.BoolFlag{Name: "ike", Usage: "new keys for the IKE SA"}),
				Action: w.saRekey, BashComplete: w.completePeers,
			},
			{
				Name: "delete", Usage: "delete a peer's child SAs, or with --ike its IKE SA; streams pause until new ones are up", ArgsUsage: "PEER",
				Flags:  remote(child(), &cli.BoolFlag{Name: "ike", Usage: "the IKE SA with its children: the hosts authenticate each other anew"}),
				Action: w.saDelete, BashComplete: w.completePeers,
			},
			{
				Name: "watch", Usage: "what happens to the SAs and why, of all peers or of one, until Ctrl-C", ArgsUsage: "[PEER]",
				Flags: remote(), Action: w.saWatch, BashComplete: w.completePeers,
			},
		},
	}
}

func (w *ironwarp) saList(c *cli.Context) error {
	children := func(cl *api.Client, ctx context.Context) (sas []api.SA, err error) {
		all, err := cl.IKESAs(ctx, c.Args().First())
		for _, s := range all {
			sas = append(sas, s.Children...)
		}
		return sas, err
	}
	return list(w, c, children, "no SAs; they come up with the first stream to a peer", w.saTable)
}

func (w *ironwarp) saTable(sas []api.SA) {
	t := w.sheet("peer", "child sa", "state", "?mode", "?algorithms", ">age", ">rekey in", ">in", ">out", "?spi in", "?spi out", "?covers", "?label")
	for _, s := range sas {
		t.row(s.Peer, s.Child, s.State, s.Mode, s.Algorithms, ageText(s.AgeSeconds), untilText(s.RekeyInSeconds), bytesText(float64(s.BytesIn)), bytesText(float64(s.BytesOut)),
			s.SPIIn, s.SPIOut, fmt.Sprintf("%s = %s", s.LocalTS, s.RemoteTS), orDash(s.Label))
	}
	t.print()
}

// untilText writes a time in the future; 0 is never.
func untilText(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return ageText(max(seconds, 0))
}

func (w *ironwarp) saShow(c *cli.Context) error {
	peer := c.Args().First()
	list, err := w.client(c).IKESAs(c.Context, peer)
	if err != nil {
		return err
	}
	return w.print(c, list, func() {
		if len(list) == 0 {
			w.printf("no SA with %s; it comes up with the first stream. `ironwarp peer show %s` says what is wrong if it does not\n", peer, peer)
		}
		for i, s := range list {
			if i > 0 {
				w.printf("\n")
			}
			w.ikePage(s)
		}
	})
}

func (w *ironwarp) ikePage(s api.IKESA) {
	line := func(name, format string, a ...any) { w.printf("%-15s %s\n", name, fmt.Sprintf(format, a...)) }
	began := "begun by the peer"
	if s.Initiator {
		began = "begun by this host"
	}
	line("IKE SA", "%s of %s, IKEv%d, %s, %s", s.UniqueID, w.bold(s.Peer), s.Version, s.State, began)
	line("identities", "%s (this host), %s (authenticated peer)", orDash(s.LocalID), orDash(s.RemoteID))
	line("addresses", "%s, %s", s.LocalHost, s.RemoteHost)
	if s.Gateway {
		line("", "%s", w.bad("ESP ends at a gateway, not at the peer itself"))
	}
	line("algorithms", "%s", s.Algorithms)
	line("age", "%s; rekey in %s, authentication anew in %s", ageText(s.AgeSeconds), untilText(s.RekeyInSeconds), untilText(s.ReauthInSeconds))
	line("SPIs", "%s", s.SPIs)
	for _, x := range s.Children {
		w.printf("\n")
		line("child SA", "%s (%s), %s, %s, carries %d streams", w.bold(x.Child), x.ChildID, x.State, x.Protocol, x.Streams)
		line("covers", "%s = %s", x.LocalTS, x.RemoteTS)
		line("algorithms", "%s%s", x.Algorithms, map[bool]string{true: ", extended sequence numbers"}[x.ESN])
		line("age", "%s; rekey in %s, expires in %s", ageText(x.AgeSeconds), untilText(x.RekeyInSeconds), untilText(x.ExpiresInSeconds))
		line("in", "%s in %d packets, SPI %s", bytesText(float64(x.BytesIn)), x.PacketsIn, x.SPIIn)
		line("out", "%s in %d packets, SPI %s", bytesText(float64(x.BytesOut)), x.PacketsOut, x.SPIOut)
	}
}

// saOrder is the common part of sa delete and sa rekey.
func (w *ironwarp) saOrder(c *cli.Context, ike func(context.Context, string) (int, error), children func(context.Context, string, string) (int, error)) (peer, what string, n int, err error) {
	peer = c.Args().First()
	if c.Bool("ike") && c.String("child") != "" {
		return "", "", 0, &usageError{msg: "--ike and --child exclude each other", fix: "the IKE SA includes all its children"}
	}
	if c.Bool("ike") {
		n, err = ike(c.Context, peer)
		return peer, "IKE", n, err
	}
	n, err = children(c.Context, peer, c.String("child"))
	return peer, "child", n, err
}

// nothing ends an order that found nothing to do: exit status 1, so that scripts
// notice.
func nothing(peer, what string) error {
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("peer %s has no %s SA now", peer, what), Fix: "`ironwarp sa show " + peer + "` shows what there is; traffic brings one up"}
}

func (w *ironwarp) saDelete(c *cli.Context) error {
	cl := w.client(c)
	peer, what, n, err := w.saOrder(c, cl.DeleteIKE, cl.DeleteSAs)
	if err != nil {
		return err
	}
	if n == 0 {
		return nothing(peer, what)
	}
	return w.print(c, struct {
		Deleted int `json:"deleted"`
	}{n}, func() { w.printf("%s of %s deleted; traffic brings new ones up\n", countSAs(n, what), peer) })
}

func (w *ironwarp) saRekey(c *cli.Context) error {
	cl := w.client(c)
	peer, what, n, err := w.saOrder(c, cl.RekeyIKE, cl.RekeySAs)
	if err != nil {
		return err
	}
	if n == 0 {
		return nothing(peer, what)
	}
	return w.print(c, struct {
		Rekeyed int `json:"rekeyed"`
	}{n}, func() {
		w.printf("new keys for %s of %s are being made; `ironwarp sa ls` shows them\n", countSAs(n, what), peer)
	})
}

func countSAs(n int, what string) string {
	if n == 1 {
		return "1 " + what + " SA"
	}
	return fmt.Sprintf("%d %s SAs", n, what)
}

func (w *ironwarp) saWatch(c *cli.Context) error {
	enc := json.NewEncoder(w.stdout)
	err := w.client(c).WatchSAs(c.Context, c.Args().First(), func(ev api.SAEvent) {
		if asJSON(c) {
			// A reader that is gone ends the command by SIGPIPE.
			_ = enc.Encode(ev)
			return
		}
		w.printf("%s\n", w.eventText(ev))
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (w *ironwarp) eventText(ev api.SAEvent) string {
	what := cmp.Or(ev.Child, ev.Peer, "strongSwan")
	kind := ev.Kind + strings.Repeat(" ", max(0, 13-len(ev.Kind)))
	switch ev.Kind {
	case "child-up", "ike-up", "charon-up", "restored":
		kind = w.good(kind)
	case "child-down", "ike-down", "paused":
		kind = w.warn(kind)
	case "failed", "charon-down", "impostor", "flow-refused", "guard-repaired", "reloaded":
		kind = w.bad(kind)
	}
	s := fmt.Sprintf("%s  %s  %-16s", ev.Time.Local().Format("15:04:05.000"), kind, what)
	if ev.SPIIn != "" {
		s += fmt.Sprintf("  %s/%s", ev.SPIIn, ev.SPIOut)
	}
	if ev.BytesIn+ev.BytesOut > 0 {
		s += fmt.Sprintf("  %s in, %s out", bytesText(float64(ev.BytesIn)), bytesText(float64(ev.BytesOut)))
	}
	for _, why := range []string{ev.Reason, ev.Detail} {
		if why != "" {
			s += "  " + why
		}
	}
	return strings.TrimRight(s, " ")
}
