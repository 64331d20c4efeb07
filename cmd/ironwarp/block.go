package main

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) blockCommand() *cli.Command {
	return &cli.Command{
		Name:  "block",
		Usage: "peers that are kept out for a while",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "keep a peer out: its streams end, and the kernel drops its packets to their ports", ArgsUsage: "PEER",
				Flags: remote(
					&cli.DurationFlag{Name: "for", Usage: "`TIME` after which the kernel lets it in again, such as 30m (default: that of block: in the configuration, 10m)"},
					&cli.StringFlag{Name: "why", Usage: "`REASON`, for those who read the list"},
				),
				Action: w.blockAdd, BashComplete: w.completePeers,
			},
			{Name: "ls", Usage: "list the blocked peers, with reasons and dropped packets", Flags: remote(), Action: w.blockList},
			{Name: "rm", Usage: "let a peer in again now", ArgsUsage: "PEER", Flags: remote(), Action: w.blockRemove, BashComplete: w.completePeers},
		},
	}
}

func (w *ironwarp) blockAdd(c *cli.Context) error {
	span := c.Duration("for")
	if c.IsSet("for") && span <= 0 {
		return &usageError{msg: fmt.Sprintf("--for %s is not a time in the future", span), fix: "write for example --for 30m"}
	}
	b, err := w.client(c).Block(c.Context, api.BlockRequest{Peer: c.Args().First(), Seconds: span.Seconds(), Why: c.String("why")})
	if err != nil {
		return err
	}
	return w.print(c, b, func() {
		w.printf("%s\n", blockText(b))
		if b.By == api.BlockedByDaemon {
			w.printf("the daemon refuses its streams, but its packets come in: it has no ESP by which the kernel could recognise them, or the kernel has no nf_tables\n")
		}
		w.printf("`ironwarp block rm %s` ends it\n", b.Peer)
	})
}

// blockText describes in a line who is blocked.
func blockText(b api.Block) string {
	return fmt.Sprintf("peer %s at %s is blocked by the %s for another %s: %s", b.Peer, b.Address, b.By, ageText(time.Until(b.Until).Seconds()), b.Why)
}

func (w *ironwarp) blockList(c *cli.Context) error {
	return list(w, c, (*api.Client).Blocks, "nobody is blocked", w.blockTable)
}

func (w *ironwarp) blockTable(list []api.Block) {
	t := w.sheet("peer", "address", "?by", "?>since", ">ends in", ">dropped", "why")
	for _, b := range list {
		t.row(b.Peer, b.Address, b.By, ageText(time.Since(b.Since).Seconds()), ageText(time.Until(b.Until).Seconds()), b.Packets, b.Why)
	}
	t.print()
}

func (w *ironwarp) blockRemove(c *cli.Context) error {
	peer := c.Args().First()
	if err := w.client(c).Unblock(c.Context, peer); err != nil {
		return err
	}
	return w.print(c, map[string]string{"unblocked": peer}, func() { w.printf("peer %s is let in again\n", peer) })
}
