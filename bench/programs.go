package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// loopbackFPDUs is what a stream over loopback is without settings: what programs have.
var loopbackFPDUs = variant{name: "loopback's FPDUs, CRC on"}

// perftests are programs of perftest that are measured, by name.
var perftests = map[string]struct {
	program string
	args    []string
	metric  string
	column  int // of the figure in the report's line
	scale   float64
}{
	"ib_write_bw 64 KiB": {"ib_write_bw", []string{"-s", "65536", "-n", "20000"}, "rate", 3, 1 << 20},
	"ib_write_bw 1 MiB":  {"ib_write_bw", []string{"-s", "1048576", "-n", "2000"}, "rate", 3, 1 << 20},
	"ib_send_lat 64 B":   {"ib_send_lat", []string{"-s", "64", "-n", "20000"}, "half", 4, 1e-6},
}

// programContenders are programs under `ironwarp run`, and what they do by our Go API.
func programContenders(b *bench, d time.Duration) map[string]streamContender {
	all := make(map[string]streamContender)
	rdma := newPeer(roleRDMA, anyLoopback, d)
	for _, size := range sizes {
		all["api Write "+size.name] = streamContender{rdma, rdmaStreams(rdma, loopbackFPDUs, 1, size.bytes, targetSize)}
	}
	ping := rdmaPingPong(rdma, loopbackFPDUs, 64)
	all["api ping-pong"] = streamContender{rdma, func(ctx context.Context) (metrics, error) {
		m, err := ping(ctx)
		if err == nil {
			m = metrics{"half": m["p50"] / 2}
		}
		return m, err
	}}
	for name := range perftests {
		all[name] = streamContender{nil, func(ctx context.Context) (metrics, error) { return runPerftest(ctx, b, name) }}
	}
	return all
}

// runPerftest runs a server and a client.
func runPerftest(ctx context.Context, b *bench, name string) (metrics, error) {
	x := perftests[name]
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := append([]string{"run", "--lab", x.program, "-R", "-F", "-p", strconv.Itoa(port)}, x.args...)
	server, err := startProcess(b.ironwarp, args...)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	if err := server.ready(ctx, func() error { return listening(os.Getpid(), port) }); err != nil {
		return nil, fmt.Errorf("%s: %w", x.program, err)
	}
	out, err := output(exec.CommandContext(ctx, b.ironwarp, append(args, "127.0.0.1")...))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", x.program, err, out)
	}
	v, err := reported(string(out), x.column)
	return metrics{x.metric: v * x.scale}, err
}

// openPrograms is openStreams with programContenders, where programs can run.
func openPrograms(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	if _, err := exec.LookPath("ib_write_bw"); err != nil {
		return nil, nil, leftOut(err.Error() + "; apt-get install perftest")
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(b.ironwarp), "rdma")); err != nil {
		return nil, nil, leftOut(err.Error() + "; make rdma")
	}
	return openStreams(time.Second, programContenders)(ctx, b, names)
}

// programRows are programs beside our Go API.
func programRows() []row {
	var rows []row
	for _, size := range sizes {
		rows = append(rows, row{name: "ib_write_bw " + size.name + " / Go API", unit: "GB/s", scale: 1e-9, aim: 0.95,
			ours: ref{"ib_write_bw " + size.name, "rate"}, rival: []ref{{"api Write " + size.name, "rate"}}})
	}
	return append(rows, row{name: "ib_send_lat 64 B, half round trip / Go API", unit: "us", scale: 1e6, less: true, aim: 1.2, ours: ref{"ib_send_lat 64 B", "half"},
		rival: []ref{{"api ping-pong", "half"}}, note: "perftest polls, the rival sleeps"})
}
