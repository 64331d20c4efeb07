package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// streamContender is a contender of the groups of openStreams and the server
// that it needs.
type streamContender struct {
	server *peer
	run    func(context.Context) (metrics, error)
}

// streamContenders are all of them, by name. None of their servers runs yet.
// One run lasts d.
func streamContenders(_ *bench, d time.Duration) map[string]streamContender {
	all := make(map[string]streamContender)
	tcp, rdma := newPeer(roleTCP, anyLoopback, d), newPeer(roleRDMA, anyLoopback, d)
	marked, spins := newPeer(roleMarkers, anyLoopback, d), newPeer(roleSpin, anyLoopback, d)
	add := func(server *peer, name string, run func(context.Context) (metrics, error)) {
		all[name] = streamContender{server, run}
	}
	for _, size := range sizes {
		add(tcp, "tcp "+size.name, tcpStreams(tcp, 1, size.bytes))
		add(tcp, "tcp both ways "+size.name, tcpMutualStream(tcp, size.bytes))
		for _, n := range streams {
			add(tcp, fmt.Sprintf("%d tcp %s", n, size.name), tcpStreams(tcp, n, size.bytes))
		}
		for _, v := range []variant{largeCRC, largeNoCRC, smallCRC} {
			add(rdma, "Write "+size.name+", "+v.name, rdmaStreams(rdma, v, 1, size.bytes, targetSize))
		}
	}
	for _, v := range []variant{headersOf, allOf} {
		add(rdma, "Write 64 KiB, "+v.name, rdmaStreams(rdma, v, 1, 64<<10, targetSize))
	}
	add(tcp, "tcp ping-pong", tcpPingPong(tcp, 64))
	add(rdma, "ping-pong", rdmaPingPong(rdma, largeCRC, 64))
	add(spins, "spinning ping-pong", onOneProcessor(rdmaPingPong(spins, spinning, 64)))
	polled, progressed := newPeer(rolePolls, anyLoopback, d), newPeer(roleProgress, anyLoopback, d)
	add(polled, "polled ping-pong", polledPingPong(polled, polling))
	add(progressed, "progressed ping-pong", onOneProcessor(polledPingPong(progressed, progressing)))
	for _, depth := range depths {
		add(tcp, fmt.Sprintf("tcp requests depth %d", depth), tcpRequests(tcp, 4<<10, depth))
		add(rdma, fmt.Sprintf("read depth %d", depth), rdmaReads(rdma, rdmaSource, largeCRC, 4<<10, depth))
	}
	add(rdma, "writable read depth 32", rdmaReads(rdma, rdmaTarget, largeCRC, 4<<10, 32))
	for _, v := range fpduVariants() {
		add(rdma, "Write 64 KiB, "+v.name, rdmaStreams(rdma, v, 1, 64<<10, targetSize))
	}
	for _, v := range markerVariants() {
		add(marked, "Write 64 KiB with markers, "+v.name, rdmaStreams(marked, v, 1, 64<<10, targetSize))
	}
	add(tcp, "tcp requests 64 KiB", tcpRequests(tcp, 64<<10, markedReadDepth))
	add(rdma, markedReadsName, rdmaReads(rdma, rdmaSource, markedReads, 64<<10, markedReadDepth))
	for _, n := range streams {
		// Each goes round as much memory as a TCP reader's buffer has.
		add(rdma, fmt.Sprintf("%d streams", n), rdmaStreams(rdma, largeCRC, n, 64<<10, readSize))
	}
	for _, v := range []variant{largeCRC, largeNoCRC, smallCRC} {
		add(rdma, "both ways, "+v.name, rdmaMutualStream(rdma, v))
	}
	return all
}

// openStreams starts the servers that the contenders need, each a process of
// its own. One run of a contender lasts d.
func openStreams(d time.Duration, contenders func(*bench, time.Duration) map[string]streamContender) func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	return func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		return startThem(ctx, b, contenders(b, d), names)
	}
}

func openOwn(_ context.Context, _ *bench, names []string) ([]contender, io.Closer, error) {
	var cs []contender
	for _, n := range names {
		cs = append(cs, contender{n, func(ctx context.Context) (metrics, error) { return measureApart(ctx, n) }})
	}
	return cs, closers{}, nil
}
