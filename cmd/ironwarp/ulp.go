package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) ulpCommand() *cli.Command {
	return &cli.Command{
		Name: "ulp", Usage: "local users of the daemon",
		Description: "ULPs are users of this host who use the daemon without root's rights, each with disks, a quota and a trust model of its own.\n" +
			"The configuration names them under ulps:.",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the ULPs; a ULP sees only itself, and what it may do", Flags: remote(), Action: w.ulpList},
		},
	}
}

func (w *ironwarp) ulpList(c *cli.Context) error {
	return list(w, c, (*api.Client).ULPs, "no ULPs: only root may use the daemon. The configuration names others under ulps:", w.ulpTable)
}

func (w *ironwarp) ulpTable(list []api.ULP) {
	t := w.sheet("ulp", "users", "groups", "?trust", "?may use", ">disks", ">connections", ">refused")
	for _, u := range list {
		may := strings.Join(slices.Concat(u.Peers, u.Exports), " ")
		if u.Privileged {
			may = "everything (privileged)"
		}
		t.row(u.Name, orDash(strings.Join(u.Users, " ")), orDash(strings.Join(u.Groups, " ")), u.Trust, may, u.Attachments, u.Connections, u.Refused)
	}
	t.print()
	for _, u := range list {
		w.problem(u.Problem)
	}
}

// ownerText is the owner of a disk, in a list that has some of ULPs.
func ownerText(at api.Attachment) string { return cmp.Or(at.ULP, "root") }

func ofULPs(list []api.Attachment) bool {
	return slices.ContainsFunc(list, func(at api.Attachment) bool { return at.ULP != "" })
}
