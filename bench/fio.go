package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fioJob is one kind of load. The same job runs against every server.
type fioJob struct {
	name          string
	rw            string
	block         string
	depth         int
	direct, chain float64 // aims beside nbdkit, and beside two of them
}

var fioJobs = []fioJob{
	{"4 KiB random read, depth 1", "randread", "4k", 1, 0.7, 1.2},
	{"4 KiB random read, depth 32", "randread", "4k", 32, 1.2, 3},
	{"4 KiB random write, depth 1", "randwrite", "4k", 1, 0.7, 1.2},
	{"4 KiB random write, depth 32", "randwrite", "4k", 32, 1.2, 2.5},
	{"1 MiB sequential read, depth 4", "read", "1m", 4, 0.7, 1.3},
	{"1 MiB sequential write, depth 4", "write", "1m", 4, 0.7, 1.3},
}

const fioSeconds = 2

// size is the length in bytes of an operation.
func (j fioJob) size() int { return map[string]int{"4k": 4 << 10, "1m": 1 << 20}[j.block] }

func (j fioJob) writes() bool { return strings.HasSuffix(j.rw, "write") }

func (j fioJob) random() bool { return strings.HasPrefix(j.rw, "rand") }

// places returns what tells where on the disk the next operation is, for a client that is not fio.
func (j fioJob) places() func() (offset uint64) {
	next := uint64(0)
	return func() uint64 {
		at := next
		if next++; j.random() {
			at = rand.Uint64()
		}
		return at % uint64(imageSize/j.size()) * uint64(j.size())
	}
}

// timed has a client of this program do the job while more says so, and reports what run does of the
// operations that it did, but for latencies.
func (j fioJob) timed(pids []int, do func(more func() bool) (done int, err error)) (metrics, error) {
	cpu0, err := processCPU(pids)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	done, err := do(func() bool { return time.Since(begin) < fioSeconds*time.Second })
	if err != nil {
		return nil, err
	}
	took := time.Since(begin).Seconds()
	cpu1, err := processCPU(pids)
	if err != nil {
		return nil, err
	}
	return metrics{"ops": float64(done) / took, "rate": float64(done*j.size()) / took, "cpu": (cpu1 - cpu0).Seconds() / float64(done)}, nil
}

// run does the job on a server and reports operations and bytes per second, CPU seconds
// per operation of its processes and, of fio, the longest and the median latency. Where a
// path is lost meanwhile, the least is what an operation on it cannot do without.
func (j fioJob) run(ctx context.Context, s *blockServer) (metrics, error) {
	switch {
	case s.vhost != "":
		return j.runVhost(ctx, s.vhost, s.pids)
	case s.own != nil:
		return s.own(ctx, j, s)
	case s.iscsi.address != "":
		return j.runQEMU(ctx, s)
	case s.lose == nil:
		return j.runFio(ctx, s)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var known time.Duration
	lost := make(chan error, 1)
	go func() {
		var err error
		known, err = s.lose(ctx)
		lost <- err
	}()
	m, err := j.runFio(ctx, s)
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-lost); err != nil {
		return nil, err
	}
	m["least"] = known.Seconds() + m["median"]
	return m, nil
}

// runFio lets fio do it on an NBD server or a block device, and reports what run does.
func (j fioJob) runFio(ctx context.Context, s *blockServer) (metrics, error) {
	cpu0, err := processCPU(s.pids)
	if err != nil {
		return nil, err
	}
	on := []string{"--ioengine=nbd", "--uri=" + s.uri}
	if s.device != "" {
		on = []string{"--ioengine=libaio", "--direct=1", "--filename=" + s.device}
	}
	command := append(slices.Concat(s.prefix, []string{"fio", "--name=bench"}, on),
		"--rw="+j.rw, "--bs="+j.block, "--iodepth="+strconv.Itoa(j.depth),
		"--size="+strconv.Itoa(imageSize), "--norandommap", "--time_based", "--runtime="+strconv.Itoa(cmp.Or(s.seconds, fioSeconds)),
		"--output-format=json")
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("fio on %s: %w: %s%s", s.uri+s.device, err, stderr.Bytes(), lastLine(stdout.Bytes()))
	}
	cpu1, err := processCPU(s.pids)
	if err != nil {
		return nil, err
	}
	type direction struct {
		IOPS  float64 `json:"iops"`
		BW    float64 `json:"bw_bytes"`
		Total float64 `json:"total_ios"`
		// In nanoseconds.
		Whole      struct{ Max float64 } `json:"lat_ns"`
		Completion struct {
			Percentile map[string]float64
		} `json:"clat_ns"`
	}
	var report struct {
		Jobs []struct {
			Error       int
			Read, Write direction
		}
	}
	// fio may print warnings before the JSON.
	text := stdout.Bytes()
	if i := bytes.IndexByte(text, '{'); i > 0 {
		text = text[i:]
	}
	if err := json.Unmarshal(text, &report); err != nil || len(report.Jobs) != 1 {
		return nil, fmt.Errorf("fio on %s: its report is not understood: %v", s.uri+s.device, err)
	}
	job := report.Jobs[0]
	d := job.Read
	if d.Total == 0 {
		d = job.Write
	}
	if job.Error != 0 || d.Total == 0 {
		return nil, fmt.Errorf("fio on %s: error %d after %.0f operations", s.uri+s.device, job.Error, d.Total)
	}
	return metrics{"ops": d.IOPS, "rate": d.BW, "cpu": (cpu1 - cpu0).Seconds() / d.Total,
		"longest": d.Whole.Max * 1e-9, "median": d.Completion.Percentile["50.000000"] * 1e-9}, nil
}

func lastLine(b []byte) []byte {
	b = bytes.TrimSpace(b)
	return b[bytes.LastIndexByte(b, '\n')+1:]
}

// fioRows are the lines of the table that fio measures. What Linux itself has for the
// whole way to a remote disk is two nbdkits: one where the disk is, one as its client.
func fioRows() []row {
	var rows []row
	for _, j := range fioJobs {
		metric, unit, scale := "ops", "IOPS", 1.0
		if j.block == "1m" {
			metric, unit, scale = "rate", "MB/s", 1e-6
		}
		for _, rival := range []struct {
			name string
			aim  float64
		}{{"qemu-nbd", 1}, {"nbdkit", j.direct}, {"two nbdkits", j.chain}} {
			rows = append(rows, row{name: "fio " + j.name + " / " + rival.name, unit: unit, scale: scale, aim: rival.aim,
				ours: ref{"ironwarp/" + j.name, metric}, rival: []ref{{rival.name + "/" + j.name, metric}}})
		}
	}
	for _, j := range fioJobs {
		if j.depth == 32 {
			rows = append(rows, row{name: "CPU per operation, " + j.name, unit: "us", scale: 1e6, aim: 1,
				ours: ref{"ironwarp/" + j.name, "cpu"}, rival: []ref{{"nbdkit/" + j.name, "cpu"}}, less: true,
				note: "ours: both daemons; nbdkit: its server; fio's own time is in neither"})
		}
	}
	return rows
}

// versionRows are those that say what this version costs: what a request's revocation does
// and, unless old is "", what has changed since the version of that program.
func versionRows(old string) (rows []row) {
	for _, r := range fioRows() {
		job, ok := strings.CutSuffix(r.name, " / nbdkit")
		if !ok {
			continue
		}
		rival := func(name, contender string, aim float64) {
			r.name, r.aim = job+name, aim
			r.rival = []ref{{contender + strings.TrimPrefix(r.ours.contender, "ironwarp"), r.ours.metric}}
			rows = append(rows, r)
		}
		if strings.HasSuffix(job, "4 KiB random read, depth 32") {
			rival(", always_invalidate true / false", "ironwarp, open chunks", 0.97)
		}
		if old != "" {
			rival(" / one path, "+old, "one path, "+old, 0.99)
		}
	}
	return rows
}

// fioSCTPRows are those of the daemons with their streams over SCTP in UDP.
func fioSCTPRows() (rows []row) {
	for _, r := range fioRows() {
		if job, ok := strings.CutSuffix(r.name, " / nbdkit"); ok {
			r.name, r.aim = job+" over sctp-udp / over tcp", 0
			r.rival = []ref{r.ours}
			r.ours.contender = strings.Replace(r.ours.contender, "ironwarp/", "ironwarp over sctp-udp/", 1)
			rows = append(rows, r)
		}
	}
	return rows
}

// waitFor polls until ok, for servers that announce readiness only by serving.
func waitFor(ctx context.Context, what string, limit time.Duration, ok func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready within %v: %w", what, limit, err)
		case <-tick.C:
		}
	}
}
