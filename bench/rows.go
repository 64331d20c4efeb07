package main

import (
	"context"
	"fmt"
	"io"
)

func groups() []group {
	return []group{
		{name: "streams", rounds: 5, open: openStream, rows: streamRows()},
		{name: "fio", rounds: 3, open: openBlock, rows: fioRows()},
	}
}

// streamRows are the lines of the table that one stream over loopback gives.
func streamRows() []row {
	tcp := []ref{{"tcp 64 KiB", "rate"}, {"tcp 1 MiB", "rate"}}
	tcpCPU := []ref{{"tcp 64 KiB", "cpu"}, {"tcp 1 MiB", "cpu"}}
	var rows []row
	for _, v := range []struct {
		name string
		aim  float64
	}{{"large FPDUs, CRC on", 0.9}, {"large FPDUs, CRC off", 1.0}, {"1460-byte FPDUs, CRC on", 0.7}} {
		for _, size := range []string{"64 KiB", "1 MiB"} {
			name := fmt.Sprintf("Write %s, %s", size, v.name)
			rows = append(rows, row{name: name, unit: "GB/s", scale: 1e-9, ours: ref{name, "rate"}, rival: tcp, aim: v.aim})
		}
	}
	for _, size := range []string{"64 KiB", "1 MiB"} {
		rows = append(rows, row{name: "CPU per GB, Write " + size, unit: "s/GB", less: true, aim: 1.3,
			ours: ref{fmt.Sprintf("Write %s, large FPDUs, CRC on", size), "cpu"}, rival: tcpCPU, note: "both ends"})
	}
	rows = append(rows, row{name: "Send ping-pong 64 B, median", unit: "us", scale: 1e6, less: true, aim: 1.4,
		ours: ref{"ping-pong", "p50"}, rival: []ref{{"tcp ping-pong", "p50"}}})
	for _, depth := range []int{1, 32} {
		rows = append(rows, row{name: fmt.Sprintf("Read 4 KiB, depth %d", depth), unit: "op/s", aim: 0.8,
			ours: ref{fmt.Sprintf("read depth %d", depth), "ops"}, rival: []ref{{fmt.Sprintf("tcp requests depth %d", depth), "ops"}}})
	}
	return rows
}

// openStream starts the servers of the stream rows, each a process of its own.
func openStream(ctx context.Context, _ *bench, names []string) ([]contender, io.Closer, error) {
	p, err := startPeer(ctx, "tcp")
	if err != nil {
		return nil, nil, err
	}
	all := map[string]func(context.Context) (metrics, error){
		"tcp 64 KiB":            tcpStream(p, 64<<10),
		"tcp 1 MiB":             tcpStream(p, 1<<20),
		"tcp ping-pong":         tcpPingPong(p, 64),
		"tcp requests depth 1":  tcpRequests(p, 4096, 1),
		"tcp requests depth 32": tcpRequests(p, 4096, 32),
	}
	var cs []contender
	for _, n := range names {
		run, ok := all[n]
		if !ok {
			p.Close()
			return nil, nil, fmt.Errorf("no contender %q", n)
		}
		cs = append(cs, contender{n, run})
	}
	return cs, p, nil
}
