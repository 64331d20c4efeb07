package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// The rows of SCTP in UDP.

// overSCTP is a stream over SCTP in UDP with packets as on a wire with an MTU of
// 1500. SCTP itself has a CRC.
var overSCTP = variant{name: "sctp-udp", kind: transport.SCTPUDP, mtu: wireMTU}

const (
	roleRDMASCTP = "rdma-sctp-udp"

	// lossTime is long enough for many losses and for timeouts.
	lossTime = 2 * time.Second
)

// losses are the probabilities with which packets get lost.
var losses = []struct {
	name string
	p    float64
}{{"0.1 %", 0.001}, {"2 %", 0.02}}

func sctpGroups() []group {
	gs := []group{
		{name: "SCTP in UDP beside pion", rounds: 5, open: openPion(600 * time.Millisecond), rows: pionRows()},
	}
	for _, l := range losses {
		gs = append(gs, group{name: l.name + " loss", rounds: 5, open: openLoss(l.p), rows: lossRows(l.name)})
	}
	return gs
}

// pionRows are messages of the same sizes beside pion.
func pionRows() []row {
	size := fmt.Sprintf("%d B", sctpMessage)
	pion := func(metric string) []ref { return []ref{{"pion " + size, metric}} }
	rows := []row{
		{name: "SCTP in UDP, messages of " + size, unit: "MB/s", scale: 1e-6, aim: 4, ours: ref{"sctp " + size, "rate"}, rival: pion("rate")},
		{name: "SCTP in UDP, CPU per message of " + size, unit: "us", scale: 1e6, less: true, aim: 0.6, ours: ref{"sctp " + size, "each"}, rival: pion("each"), note: "both ends"},
		{name: "SCTP in UDP, messages of 64 B", unit: "MB/s", scale: 1e-6, ours: ref{"sctp 64 B", "rate"}, rival: []ref{{"pion 64 B", "rate"}}},
		{name: "SCTP in UDP, ping-pong 64 B, median", unit: "us", scale: 1e6, less: true, ours: ref{"sctp ping-pong", "p50"}, rival: []ref{{"pion ping-pong", "p50"}}},
		{name: "Write 64 KiB over sctp-udp beside messages of " + size, unit: "MB/s", scale: 1e-6, aim: 4, ours: ref{"Write 64 KiB", "rate"}, rival: pion("rate")},
		{name: "CPU per " + size + " of Writes over sctp-udp", unit: "us", scale: 1e6, less: true, aim: 0.6, ours: ref{"Write 64 KiB", "each"}, rival: pion("each"), note: "both ends"},
		{name: "Send ping-pong 64 B over sctp-udp, median", unit: "us", scale: 1e6, less: true, ours: ref{"ping-pong", "p50"}, rival: []ref{{"pion ping-pong", "p50"}}},
		{name: "Read 4 KiB over sctp-udp, depth 32", unit: "op/s", ours: ref{"reads", "ops"}, rival: []ref{{"pion requests", "ops"}}},
	}
	for i := range rows {
		rows[i].name += ", beside pion"
		rows[i].pion = true
	}
	return rows
}

// openPion starts both SCTP stacks on loopback.
func openPion(d time.Duration) func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	return func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		messages, rdma := newPeer(roleSCTP, anyLoopback, d), newPeer(roleRDMASCTP, anyLoopback, d)
		pion := newPion(b, anyLoopback, messages)
		theirs := func(mode string, size, depth int) streamContender {
			return streamContender{pion, pionRun(b, pion, nil, mode, size, depth)}
		}
		all := map[string]streamContender{
			"pion ping-pong": theirs("ping", 64, 1),
			"pion requests":  theirs("request", 4<<10, 32),
			"sctp ping-pong": {messages, sctpPingPong(messages, 64)},
			"ping-pong":      {rdma, rdmaPingPong(rdma, overSCTP, 64)},
			"reads":          {rdma, rdmaReads(rdma, rdmaSource, overSCTP, 4<<10, 32)},
			"Write 64 KiB":   {rdma, perMessage(sctpMessage, rdmaStreams(rdma, overSCTP, 1, 64<<10, targetSize))},
		}
		for _, size := range []int{64, sctpMessage} {
			all[fmt.Sprintf("sctp %d B", size)] = streamContender{messages, sctpMessages(messages, size)}
			all[fmt.Sprintf("pion %d B", size)] = theirs("write", size, 1)
		}
		return startThem(ctx, b, all, names)
	}
}

// perMessage adds the CPU seconds for each size bytes.
func perMessage(size int, run func(context.Context) (metrics, error)) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		m, err := run(ctx)
		if err == nil {
			m["each"] = m["cpu"] / 1e9 * float64(size)
		}
		return m, err
	}
}

// lossRows are bulk transfers between hosts that lose packets.
func lossRows(loss string) []row {
	pion, tcp := []ref{{"pion messages", "rate"}}, []ref{{"tcp 64 KiB", "rate"}, {"tcp 1 MiB", "rate"}}
	messages, writes := ref{"sctp messages", "rate"}, ref{"Writes over sctp-udp", "rate"}
	rows := []row{
		{name: fmt.Sprintf("messages of %d B beside pion", sctpMessage), ours: messages, rival: pion, pion: true},
		{name: fmt.Sprintf("messages of %d B beside TCP", sctpMessage), ours: messages, rival: tcp},
		{name: "Write 64 KiB over sctp-udp beside pion", ours: writes, rival: pion, pion: true},
		{name: "Write 64 KiB over sctp-udp beside TCP", ours: writes, rival: tcp},
	}
	for i := range rows {
		rows[i].name = loss + " loss, " + rows[i].name
		rows[i].unit, rows[i].scale = "MB/s", 1e-6
	}
	return rows
}
