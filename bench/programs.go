package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loopbackFPDUs is what a stream over loopback is without settings: what programs have.
var loopbackFPDUs = variant{name: "loopback's FPDUs, CRC on"}

// readsAtOnce is how many Reads are outstanding at a time: what perftest asks for where the device permits more.
const readsAtOnce = 16

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
	"ib_read_bw 64 KiB":  {"ib_read_bw", []string{"-s", "65536", "-n", "20000", "-o", strconv.Itoa(readsAtOnce)}, "rate", 3, 1 << 20},
	"ib_read_bw 1 MiB":   {"ib_read_bw", []string{"-s", "1048576", "-n", "2000", "-o", strconv.Itoa(readsAtOnce)}, "rate", 3, 1 << 20},
	"ib_send_lat 64 B":   {"ib_send_lat", []string{"-s", "64", "-n", "20000"}, "half", 4, 1e-6},
	// In the virtual machine, whose processors are slow.
	"ib_write_bw": {"ib_write_bw", []string{"-s", "65536", "-n", "2000"}, "rate", 3, 1 << 20},
	"ib_send_lat": {"ib_send_lat", []string{"-s", "64", "-n", "4000"}, "half", 4, 1e-6},
}

// programContenders are programs under `ironwarp run`, and what they do by our Go API.
func programContenders(b *bench, d time.Duration) map[string]streamContender {
	all := make(map[string]streamContender)
	rdma := newPeer(roleRDMA, anyLoopback, d)
	for _, size := range sizes {
		all["api Write "+size.name] = streamContender{rdma, rdmaStreams(rdma, loopbackFPDUs, 1, size.bytes, targetSize)}
		// perftest's memory may be written as well, so what is read of it is copied.
		reads := rdmaReads(rdma, rdmaTarget, loopbackFPDUs, size.bytes, readsAtOnce)
		all["api Read "+size.name] = streamContender{rdma, func(ctx context.Context) (metrics, error) {
			m, err := reads(ctx)
			return metrics{"rate": m["ops"] * float64(size.bytes)}, err
		}}
	}
	ping := rdmaPingPong(rdma, loopbackFPDUs, 64)
	all["api ping-pong"] = streamContender{rdma, halved(ping)}
	for _, name := range []string{"ib_write_bw 64 KiB", "ib_write_bw 1 MiB", "ib_read_bw 64 KiB", "ib_read_bw 1 MiB", "ib_send_lat 64 B"} {
		all[name] = streamContender{nil, func(ctx context.Context) (metrics, error) { return runPerftest(ctx, b, name) }}
	}
	spins := newPeer(roleSpin, anyLoopback, d)
	all["spinning ping-pong, halved"] = streamContender{spins, halved(onOneProcessor(rdmaPingPong(spins, spinning, 64)))}
	for _, cores := range []int{1, 2} {
		all[pinnedName(cores)] = streamContender{nil, func(ctx context.Context) (metrics, error) { return runPinned(ctx, b, cores) }}
	}
	all["fio rdma"] = streamContender{nil, func(ctx context.Context) (metrics, error) {
		return runFIO(ctx, []string{b.ironwarp, "run", "--lab", "--"}, "rdma", nil, []string{"--verb=write"})
	}}
	all["fio net"] = streamContender{nil, func(ctx context.Context) (metrics, error) {
		return runFIO(ctx, nil, "net", []string{"--protocol=tcp", "--listen", "--size=1t"}, []string{"--protocol=tcp"}) // fio's client crashes where the server ends first
	}}
	return all
}

// runPerftest runs a server and a client on this host.
func runPerftest(ctx context.Context, b *bench, name string) (metrics, error) {
	lab := []string{b.ironwarp, "run", "--lab", "--"}
	return runPerftestAt(ctx, name, "127.0.0.1", lab, lab)
}

// runPerftestAt runs a server, at an address, and a client, each behind a command that runs it.
func runPerftestAt(ctx context.Context, name, address string, server, client []string) (metrics, error) {
	x := perftests[name]
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := append([]string{x.program, "-R", "-F", "-p", strconv.Itoa(port)}, x.args...)
	line := slices.Concat(server, args)
	p, err := startProcess(line[0], line[1:]...)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := p.ready(ctx, func() error { return listening(p.pid(), port) }); err != nil {
		return nil, fmt.Errorf("%s: %w", x.program, err)
	}
	line = slices.Concat(client, args, []string{address})
	out, err := output(exec.CommandContext(ctx, line[0], line[1:]...))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", x.program, err, out)
	}
	v, err := reported(string(out), x.column)
	return metrics{x.metric: v * x.scale}, err
}

// runFIO has one fio send to another, by an I/O engine for the network, each behind a command that runs it. The first second
// does not count: half of it the rdma engine sleeps when it has connected, so that the other end may post its receives.
func runFIO(ctx context.Context, run []string, engine string, server, client []string) (metrics, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	common := append(slices.Clone(run), "fio", "--ioengine="+engine, "--port="+strconv.Itoa(port), "--bs=64k", "--size=512m", "--iodepth=16", "--output-format=json")
	line := slices.Concat(common, []string{"--name=server", "--rw=read"}, server)
	p, err := startProcess(line[0], line[1:]...)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := p.ready(ctx, func() error { return listening(p.pid(), port) }); err != nil {
		return nil, fmt.Errorf("fio, ioengine=%s: %w", engine, err)
	}
	line = slices.Concat(common, []string{"--name=client", "--rw=write", "--hostname=127.0.0.1", "--time_based", "--ramp_time=1", "--runtime=1"}, client)
	out, err := output(exec.CommandContext(ctx, line[0], line[1:]...))
	if err != nil {
		return nil, fmt.Errorf("fio, ioengine=%s: %w: %s", engine, err, out)
	}
	var report struct {
		Jobs []struct {
			Write struct {
				BW float64 `json:"bw_bytes"`
			}
		}
	}
	if i := bytes.IndexByte(out, '{'); i > 0 {
		out = out[i:] // there may be warnings before it
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Jobs) != 1 || report.Jobs[0].Write.BW <= 0 {
		return nil, fmt.Errorf("fio, ioengine=%s: its report is not understood: %v: %s", engine, err, out)
	}
	return metrics{"rate": report.Jobs[0].Write.BW}, nil
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
		for _, op := range []string{"Write", "Read"} {
			program := "ib_" + strings.ToLower(op) + "_bw"
			rows = append(rows, row{name: program + " " + size.name + " / Go API", unit: "GB/s", scale: 1e-9, aim: 0.95,
				ours: ref{program + " " + size.name, "rate"}, rival: []ref{{"api " + op + " " + size.name, "rate"}}})
		}
	}
	rows = append(rows, row{name: "fio 64 KiB writes, ioengine=rdma / net", unit: "MB/s", scale: 1e-6, aim: 1, ours: ref{"fio rdma", "rate"}, rival: []ref{{"fio net", "rate"}},
		note: "the rival is TCP without RDMA or CRC"})
	return append(rows, row{name: "ib_send_lat 64 B, half round trip / Go API", unit: "us", scale: 1e6, less: true, aim: 1.2, ours: ref{"ib_send_lat 64 B", "half"},
		rival: []ref{{"api ping-pong", "half"}}, note: "perftest polls, the rival sleeps"},
		pinnedRow(1))
}

// pinnedRow is ib_send_lat with processors of their own for both ends.
func pinnedRow(cores int) row {
	r := row{name: pinnedName(cores) + " / spinning", unit: "us", scale: 1e6, less: true, ours: ref{pinnedName(cores), "half"}, rival: []ref{{"spinning ping-pong, halved", "half"}}}
	if cores == 2 {
		r.aim = 1.3
	}
	return r
}

func pinnedName(cores int) string {
	return fmt.Sprintf("ib_send_lat 64 B, half round trip, processors for each end: %d", cores)
}

// halved has a ping-pong say half of its median round trip.
func halved(ping func(context.Context) (metrics, error)) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		m, err := ping(ctx)
		if err == nil {
			m = metrics{"half": m["p50"] / 2}
		}
		return m, err
	}
}

// runPinned runs ib_send_lat with so many processors for each end.
func runPinned(ctx context.Context, b *bench, cores int) (metrics, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var all []string
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, strconv.Itoa(cpu))
		}
	}
	if len(all) < 2*cores {
		return nil, fmt.Errorf("%d processors are needed, here are %d", 2*cores, len(all))
	}
	on := func(cpus []string) []string {
		return []string{"taskset", "-c", strings.Join(cpus, ","), b.ironwarp, "run", "--lab", "--"}
	}
	return runPerftestAt(ctx, "ib_send_lat 64 B", "127.0.0.1", on(all[cores:2*cores]), on(all[:cores]))
}

// openWidePrograms is openPrograms where each end can have two processors.
func openWidePrograms(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	if n := runtime.NumCPU(); n < 4 {
		return nil, nil, leftOut(fmt.Sprintf("two ends with two processors each need 4, here are %d", n))
	}
	return openPrograms(ctx, b, names)
}
