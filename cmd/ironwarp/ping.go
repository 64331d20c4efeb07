package main

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) pingCommand() *cli.Command {
	return &cli.Command{
		Name: "ping", Usage: "measure RDMA round trips to a peer", ArgsUsage: "PEER",
		Flags: remote(
			&cli.IntFlag{Name: "count", Aliases: []string{"c"}, Value: 10, Usage: "`NUMBER` of round trips"},
			&cli.IntFlag{Name: "size", Aliases: []string{"s"}, Value: 64, Usage: "payload in `BYTES`"},
			&cli.DurationFlag{Name: "interval", Aliases: []string{"i"}, Value: 100 * time.Millisecond, Usage: "`TIME` between two; 0 for no pause"},
			&cli.StringFlag{Name: "mode", Value: api.PingRead, Usage: "read (RDMA Read) or send (Send and a Send back)"},
			transportFlag(),
			&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second, Usage: "give up when the peer is silent for this `TIME`"},
		),
		Action:       w.ping,
		BashComplete: w.completePeers,
	}
}

func (w *ironwarp) ping(c *cli.Context) error {
	req := api.PingRequest{
		Peer: c.Args().First(), Mode: c.String("mode"), Transport: c.String("transport"), Count: c.Int("count"), Size: c.Int("size"),
		IntervalSeconds: c.Duration("interval").Seconds(), TimeoutSeconds: c.Duration("timeout").Seconds(),
	}
	p := &progress{w: w}
	res, err := w.client(c).Ping(c.Context, req, func(ev api.Event) {
		switch {
		case asJSON(c):
		case ev.Progress != "":
			p.show(ev.Progress)
		case ev.Reply != nil:
			p.end()
			w.printf("%d bytes from %s: seq=%d time=%s\n", req.Size, req.Peer, ev.Reply.Seq, microsText(ev.Reply.Micros))
		}
	})
	p.end()
	if err != nil {
		return err
	}
	err = w.print(c, res, func() {
		w.printf("\n%d of %d round trips (RDMA %s, %d bytes) to %s over %s\n", res.Received, res.Sent, res.Mode, res.Size, res.Identity, carriedText(res.Transport, res.Protection))
		w.printf("min %s   p50 %s   p99 %s   max %s   (set up in %s)\n", microsText(res.Min), microsText(res.P50), microsText(res.P99), microsText(res.Max), microsText(res.Setup))
	})
	if err == nil && res.Received < res.Sent {
		return silent(1)
	}
	return err
}

func transportFlag() cli.Flag {
	return &cli.StringFlag{Name: "transport", Usage: "tcp, sctp or sctp-udp, if the peer may have it (default: what its streams have)"}
}

// carriedText describes what carries a stream and what protects it. TCP is not
// mentioned.
func carriedText(carrier, protection string) string {
	if carrier == transport.TCP.String() {
		return protection
	}
	return carrier + ", " + protection
}

func (w *ironwarp) benchCommand() *cli.Command {
	return &cli.Command{
		Name: "bench", Usage: "a short benchmark of the link to a peer", ArgsUsage: "PEER",
		Flags: remote(
			transportFlag(),
			&cli.DurationFlag{Name: "time", Aliases: []string{"t"}, Value: time.Second, Usage: "`TIME` for each row"},
			&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second, Usage: "give up when the peer is silent for this `TIME`"},
		),
		Action:       w.bench,
		BashComplete: w.completePeers,
	}
}

func (w *ironwarp) bench(c *cli.Context) error {
	p := &progress{w: w}
	req := api.BenchRequest{Peer: c.Args().First(), Transport: c.String("transport"), Seconds: c.Duration("time").Seconds(), TimeoutSeconds: c.Duration("timeout").Seconds()}
	res, err := w.client(c).Bench(c.Context, req, func(ev api.Event) {
		if !asJSON(c) {
			p.show(ev.Progress)
		}
	})
	p.end()
	if err != nil {
		return err
	}
	return w.print(c, res, func() {
		t := w.sheet("operation", ">size", ">depth", ">per second", ">rate", ">p50", ">p99")
		for _, r := range res.Rows {
			t.row(r.Op, bytesText(float64(r.Size)), r.Depth, fmt.Sprintf("%.0f", r.OpsPerSec), rateText(r.BytesPerSec), microsText(r.P50), microsText(r.P99))
		}
		t.print()
		w.printf("one stream to %s over %s\n", res.Peer, carriedText(res.Transport, res.Protection))
	})
}
