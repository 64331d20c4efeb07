package main

import (
	"context"
	"fmt"
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
		{name: "streams over sctp-udp", rounds: 5, open: openStreams(600*time.Millisecond, overSCTPContenders), rows: overSCTPRows()},
		{name: "memory and allocations over sctp-udp", rounds: 1, open: openOwn, rows: ownSCTPRows()},
		{name: "fio over sctp-udp", rounds: 3, open: openBlock(blockServers), rows: fioSCTPRows()},
		{name: "SCTP in UDP beside pion", rounds: 5, open: openStreams(600*time.Millisecond, pionContenders), rows: pionRows()},
	}
	gs = append(gs, group{name: sctpGuest.name, rounds: 4, elsewhere: sctpGuest.run, rows: kernelSCTPRows()})
	for _, l := range losses {
		gs = append(gs, group{name: l.name + " loss", rounds: 5, open: openLoss(l.p), rows: lossRows(l.name)})
	}
	return gs
}

// overSCTPRows are the lines of one and of several streams, beside those of our
// own streams over TCP whose FPDUs are as long as the packets of SCTP.
func overSCTPRows() []row {
	rows := []row{}
	beside := func(name, unit string, scale, aim float64, less bool, contender, metric string) {
		rows = append(rows, row{name: name + " over sctp-udp, beside our TCP", unit: unit, scale: scale, aim: aim, less: less,
			ours: ref{"sctp-udp " + contender, metric}, rival: []ref{{"tcp " + contender, metric}}})
	}
	for _, size := range sizes {
		beside("Write "+size.name, "GB/s", 1e-9, 0.5, false, "Write "+size.name, "rate")
	}
	beside("CPU per GB, Write 64 KiB", "s/GB", 1, 0, true, "Write 64 KiB", "cpu")
	beside("Send ping-pong 64 B, median", "us", 1e6, 0, true, "ping-pong", "p50")
	for _, depth := range depths {
		name := fmt.Sprintf("Read 4 KiB, depth %d", depth)
		beside(name, "op/s", 1, 0, false, name, "ops")
	}
	for _, n := range streams[1:] {
		name := fmt.Sprintf("Write 64 KiB, %d streams", n)
		beside(name, "GB/s", 1e-9, 0.5, false, name, "rate")
	}
	beside("Write 64 KiB both ways", "GB/s", 1e-9, 0.5, false, "both ways", "rate")
	return rows
}

// overSCTPContenders are the same over both carriers.
func overSCTPContenders(_ *bench, d time.Duration) map[string]streamContender {
	all := make(map[string]streamContender)
	for _, carrier := range []struct {
		name, role string
		v          variant
	}{{"tcp", roleRDMA, smallCRC}, {"sctp-udp", roleRDMASCTP, overSCTP}} {
		p := newPeer(carrier.role, anyLoopback, d)
		add := func(name string, run func(context.Context) (metrics, error)) {
			all[carrier.name+" "+name] = streamContender{p, run}
		}
		for _, size := range sizes {
			add("Write "+size.name, rdmaStreams(p, carrier.v, 1, size.bytes, targetSize))
		}
		for _, n := range streams[1:] {
			add(fmt.Sprintf("Write 64 KiB, %d streams", n), rdmaStreams(p, carrier.v, n, 64<<10, readSize))
		}
		add("ping-pong", rdmaPingPong(p, carrier.v, 64))
		for _, depth := range depths {
			add(fmt.Sprintf("Read 4 KiB, depth %d", depth), rdmaReads(p, rdmaSource, carrier.v, 4<<10, depth))
		}
		add("both ways", rdmaMutualStream(p, carrier.v))
	}
	return all
}

// ownSCTPRows are ownRows over SCTP in UDP.
func ownSCTPRows() []row {
	rows := ownRows()
	for i := range rows {
		rows[i].name += ", over sctp-udp"
		rows[i].ours.contender += " sctp-udp"
	}
	rows[0].note += "; all streams share an association"
	return rows
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

// pionContenders are both SCTP stacks on loopback.
func pionContenders(b *bench, d time.Duration) map[string]streamContender {
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
	return all
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
