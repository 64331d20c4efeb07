package main

import (
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) iscsiCommand() *cli.Command {
	return &cli.Command{
		Name:  "iscsi",
		Usage: "iSCSI targets: find them, judge them, read and write them",
		Subcommands: append(w.iscsiDiskCommands(), w.iscsiTestCommand(), &cli.Command{
			Name: "discover", Usage: "ask a peer's portal for its targets (SendTargets)", ArgsUsage: "PORTAL", Action: w.iscsiDiscover, BashComplete: w.completePeers,
			Description: "PORTAL is a peer's name, or one of its addresses, with :PORT behind it if that is not 3260.",
			Flags: remote(&cli.StringFlag{Name: "initiator", Usage: "iSCSI `NAME` to log in by (default: one of this host's name)"},
				&cli.StringFlag{Name: "chap-user", Usage: "`NAME` in CHAP"}, &cli.StringFlag{Name: "chap-secret-file", Usage: "`FILE` with the secret, mode 0600"}),
		}),
	}
}

func (w *ironwarp) iscsiDiscover(c *cli.Context) error {
	secret, err := fileFlag(c, "chap-secret-file")
	if err != nil {
		return err
	}
	q := api.DiscoverRequest{Portal: c.Args().First(), Initiator: c.String("initiator"), User: c.String("chap-user"), SecretFile: secret}
	all, err := w.client(c).Discover(c.Context, q)
	if err != nil {
		return err
	}
	return w.print(c, all, func() {
		if len(all) == 0 {
			w.printf("there is no target for this initiator\n")
		}
		for _, t := range all {
			for _, p := range t.Portals {
				w.printf("%s %s\n", p, t.IQN)
			}
		}
	})
}
