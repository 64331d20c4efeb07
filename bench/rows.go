package main

import (
	"context"
	"errors"
	"fmt"
	"io"
)

func groups() []group {
	return []group{
		{name: "streams", rounds: 5, open: openStream, rows: streamRows()},
		{name: "memory and allocations", rounds: 1, open: openOwn, rows: ownRows()},
		{name: "fio", rounds: 3, open: openBlock, rows: fioRows()},
	}
}

var (
	sizes = []struct {
		name  string
		bytes int
	}{{"64 KiB", 64 << 10}, {"1 MiB", 1 << 20}}
	depths = []int{1, 32}
)

// streamRows are the lines of the table that one stream over loopback gives.
func streamRows() []row {
	tcp := []ref{{"tcp 64 KiB", "rate"}, {"tcp 1 MiB", "rate"}}
	tcpCPU := []ref{{"tcp 64 KiB", "cpu"}, {"tcp 1 MiB", "cpu"}}
	var rows []row
	for _, v := range []struct {
		variant
		aim float64
	}{{largeCRC, 0.9}, {largeNoCRC, 1.0}, {smallCRC, 0.7}} {
		for _, size := range sizes {
			name := "Write " + size.name + ", " + v.name
			rows = append(rows, row{name: name, unit: "GB/s", scale: 1e-9, ours: ref{name, "rate"}, rival: tcp, aim: v.aim})
		}
	}
	for _, size := range sizes {
		rows = append(rows, row{name: "CPU per GB, Write " + size.name, unit: "s/GB", less: true, aim: 1.3,
			ours: ref{"Write " + size.name + ", " + largeCRC.name, "cpu"}, rival: tcpCPU, note: "both ends"})
	}
	rows = append(rows, row{name: "Send ping-pong 64 B, median", unit: "us", scale: 1e6, less: true, aim: 1.4,
		ours: ref{"ping-pong", "p50"}, rival: []ref{{"tcp ping-pong", "p50"}}})
	for _, depth := range depths {
		rows = append(rows, row{name: fmt.Sprintf("Read 4 KiB, depth %d", depth), unit: "op/s", aim: 0.8,
			ours: ref{fmt.Sprintf("read depth %d", depth), "ops"}, rival: []ref{{fmt.Sprintf("tcp requests depth %d", depth), "ops"}}})
	}
	return rows
}

// openStream starts the servers of the stream rows, each a process of its own.
func openStream(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	var open closers
	peers := make(map[string]*peer)
	for _, role := range []string{"tcp", "rdma"} {
		p, err := startPeer(ctx, b, role)
		if err != nil {
			return nil, nil, errors.Join(err, open.Close())
		}
		peers[role] = p
		open = append(open, p)
	}
	tcp, rdma := peers["tcp"], peers["rdma"]
	all := map[string]func(context.Context) (metrics, error){
		"tcp 64 KiB":    tcpStream(tcp, 64<<10),
		"tcp 1 MiB":     tcpStream(tcp, 1<<20),
		"tcp ping-pong": tcpPingPong(tcp, 64),
		"ping-pong":     rdmaPingPong(rdma, largeCRC, 64),
	}
	for _, v := range []variant{largeCRC, largeNoCRC, smallCRC} {
		for _, size := range sizes {
			all["Write "+size.name+", "+v.name] = rdmaStream(rdma, v, size.bytes)
		}
	}
	for _, depth := range depths {
		all[fmt.Sprintf("tcp requests depth %d", depth)] = tcpRequests(tcp, 4<<10, depth)
		all[fmt.Sprintf("read depth %d", depth)] = rdmaReads(rdma, largeCRC, 4<<10, depth)
	}
	var cs []contender
	for _, n := range names {
		run, ok := all[n]
		if !ok {
			return nil, nil, errors.Join(fmt.Errorf("no contender %q", n), open.Close())
		}
		cs = append(cs, contender{n, run})
	}
	return cs, open, nil
}

// ownRows are the lines without a rival.
func ownRows() []row {
	rows := []row{{name: "memory per idle stream, 1,000 open", unit: "KiB", scale: 1.0 / 1024, less: true, absolute: true, aim: 20,
		ours: ref{"idle", "resident"}, note: "one end's share of the process's resident memory; the kernel's socket buffers are not in it"}}
	for _, op := range []string{"Write 64 KiB", "Send 64 B", "Read 4 KiB"} {
		rows = append(rows, row{name: "allocations per " + op, unit: "/op", less: true, absolute: true, ours: ref{"allocs", op},
			note: "both ends; fewer than one in 100 operations are shown as 0"})
	}
	return rows
}

func openOwn(_ context.Context, _ *bench, names []string) ([]contender, io.Closer, error) {
	var cs []contender
	for _, n := range names {
		cs = append(cs, contender{n, func(ctx context.Context) (metrics, error) { return measureApart(ctx, n) }})
	}
	return cs, closers{}, nil
}
