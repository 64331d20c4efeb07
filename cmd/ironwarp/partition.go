package main

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) partitionCommand() *cli.Command {
	return &cli.Command{
		Name: "partition", Usage: "partitions of hosts, and who may use them",
		Description: "The configuration declares them: partitions: and labels:, see docs/fabric.md.",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the partitions", Flags: remote(), Action: w.partitionList},
			{Name: "show", Usage: "show the members of a partition, and what of this host is of it", ArgsUsage: "NAME", Flags: remote(), Action: w.partitionShow, BashComplete: w.completePartitions},
		},
	}
}

// partitionFlags are those of what may be of a partition.
func partitionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "partition", Usage: "`NAME` of the partition that it is of (default: that of its service, or none)"},
		&cli.StringFlag{Name: "label", Usage: "security `LABEL` by which the policy decides about it (default: that of its service)"},
	}
}

func (w *ironwarp) partitionList(c *cli.Context) error {
	return list(w, c, (*api.Client).Partitions, "no partitions; the configuration declares them: partitions:", func(all []api.Partition) {
		t := w.sheet("partition", "pkey", ">port", "label", "?members", ">streams", "denied")
		for _, p := range all {
			var members, denied []string
			for _, m := range p.Members {
				members = append(members, m.Identity+" ("+m.Membership+")")
			}
			for _, u := range p.Users {
				if u.Denied != "" {
					denied = append(denied, u.Kind+" "+u.Name)
				}
			}
			t.row(p.Name, p.PKey, p.Port, orDash(p.Label), strings.Join(members, " "), p.Streams, orDash(strings.Join(denied, ", ")))
		}
		t.print()
	})
}

func (w *ironwarp) partitionShow(c *cli.Context) error {
	name := c.Args().First()
	all, err := w.client(c).Partitions(c.Context)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Name == name {
			return w.print(c, p, func() { w.showPartition(p) })
		}
	}
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown partition %q", name), Fix: "`ironwarp partition ls` lists them"}
}

func (w *ironwarp) showPartition(p api.Partition) {
	line := func(name string, v any) { w.printf("%-15s %v\n", name, v) }
	line("name", w.bold(p.Name))
	line("pkey", p.PKey)
	line("port", p.Port)
	if p.ISCSIPort != 0 {
		line("iscsi port", p.ISCSIPort)
	}
	line("label", orDash(p.Label))
	line("decided by", orDash(p.Policy))
	line("streams now", p.Streams)
	line("declared at", p.Source)
	w.printf("\n")
	t := w.sheet("member", "membership", "peer", "link")
	for _, m := range p.Members {
		link := "-"
		if m.Peer != "" {
			link = map[bool]string{true: w.good("yes"), false: w.bad("no: both hosts are limited members, or this one is none")}[m.Linked]
		}
		t.row(m.Identity, m.Membership, orDash(m.Peer), link)
	}
	t.print()
	if len(p.Users) == 0 {
		return
	}
	w.printf("\n")
	t = w.sheet("of it", "label", "may use it")
	for _, u := range p.Users {
		may := w.good("yes")
		switch {
		case u.Permitted:
			may = w.warn("let pass, permissive: " + u.Denied)
		case u.Denied != "":
			may = w.bad("no: " + u.Denied)
		}
		t.row(u.Kind+" "+u.Name, orDash(u.Label), may)
	}
	t.print()
}
