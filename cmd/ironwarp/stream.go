package main

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) streamCommand() *cli.Command {
	return &cli.Command{
		Name:  "stream",
		Usage: "RDMA streams and their slow paths",
		Subcommands: []*cli.Command{
			{
				Name: "ls", Usage: "list them with trust model, idle time and slow paths, of all peers or of one", ArgsUsage: "[PEER]",
				Flags: remote(), Action: w.streamList, BashComplete: w.completePeers,
			},
			{Name: "kill", Usage: "end a stream; the session that it belongs to makes another, a program's is over", ArgsUsage: "ID", Flags: remote(), Action: w.streamKill},
		},
	}
}

func (w *ironwarp) streamList(c *cli.Context) error {
	peer := c.Args().First()
	get := only((*api.Client).Streams, func(s api.Stream) bool { return peer == "" || s.Peer == peer })
	return list(w, c, get, "no streams", func(streams []api.Stream) {
		t := w.sheet("stream", "peer", "?service", "?trust", "?flow", ">age", "?>idle", ">in", ">out", "?partition", "?label", "slow paths")
		for _, s := range streams {
			t.row(s.ID, s.Peer, serviceText(s), orDash(s.Trust), s.Flow, ageText(s.AgeSeconds), idleText(s), bytesText(float64(s.BytesIn)), bytesText(float64(s.BytesOut)), orDash(s.Partition), orDash(s.Label), slowText(s.Slow))
		}
		t.print()
	})
}

// serviceText is who has a stream: a service of the daemon, or a program of an account.
func serviceText(s api.Stream) string {
	if s.Program == "" {
		return s.Service
	}
	return fmt.Sprintf("%s: %s (%d)", s.Service, s.Program, s.PID)
}

// idleText is for how long a stream has moved nothing, which is not known of a program's.
func idleText(s api.Stream) string {
	if s.Program != "" {
		return "-"
	}
	return ageText(s.Idle)
}

func slowText(slow []api.SlowPath) string {
	var out []string
	for _, s := range slow {
		out = append(out, fmt.Sprintf("%d %s", s.Count, strings.ReplaceAll(s.Kind, "_", " ")))
	}
	return orDash(strings.Join(out, ", "))
}

func (w *ironwarp) streamKill(c *cli.Context) error {
	s, err := w.client(c).KillStream(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, s, func() { w.printf("stream %s of peer %s (%s) is ended\n", s.ID, s.Peer, serviceText(s)) })
}
