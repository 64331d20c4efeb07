package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/ironwarp/ironwarp/daemon/api"
)

const (
	benchIQN       = "iqn.2026-01.org.ironwarp:bench"
	benchInitiator = "iqn.2026-01.org.ironwarp:initiator"
)

// iscsiServers are targets over TCP, and what they are measured beside.
var iscsiServers = map[string]startServer{
	"target":               startISCSI,
	"tgtd":                 startTGT,
	"nbdkit":               startNBDKit,
	"target, own client":   ownClient(startISCSI, overTCP("None")),
	"target, both digests": ownClient(startISCSI, overTCP("CRC32C")),
	"target, iscsi bench":  clientProgram(startISCSI, fioJob.runISCSIBench),
	"target, iscsi-perf":   clientProgram(startISCSI, fioJob.runISCSIPerf),
}

// startISCSI starts a daemon with a copy of image, which it locks, as LUN 0 of a target on loopback.
func startISCSI(ctx context.Context, b *bench, dir, _ string) (*blockServer, error) {
	var ports [3]int // of the daemon, of the peer that the initiator's host is, of the target
	for i := range ports {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		ports[i] = port
	}
	at := portal{address: fmt.Sprintf("127.0.0.1:%d", ports[2])}
	return startTargetAt(ctx, b, dir, at, fmt.Sprintf("listen: {port: %d, addresses: [127.0.0.1]}\npeers: [{name: initiator, address: 127.0.0.1, port: %d, protection: loopback}]\n", ports[0], ports[1]))
}

// startTargetAt starts a daemon with an image of its own as LUN 0 of a target, for the initiators of a peer of that name.
func startTargetAt(ctx context.Context, b *bench, dir string, at portal, hosts string, prefix ...string) (*blockServer, error) {
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk.img")
	if err := makeImage(disk); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(at.address)
	if err != nil {
		return nil, err
	}
	d := &daemon{name: "target", binary: b.ironwarp, dir: filepath.Join(dir, "target"), prefix: prefix}
	p, err := d.start(ctx, hosts+fmt.Sprintf("targets: [{name: disk, iqn: %q, port: %s, addresses: [%s], peers: [initiator], luns: [{number: %d, path: %q}]}]\n", benchIQN, port, host, at.lun, disk))
	if err != nil {
		return nil, err
	}
	c := api.NewClient(d.socket())
	defer c.Close()
	if err := p.ready(ctx, func() error {
		v, err := c.Target(ctx, "disk")
		if err == nil && v.State != api.TargetReady {
			err = fmt.Errorf("the target is %v", v.State)
		}
		return err
	}); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &blockServer{iscsi: at, pids: []int{p.pid()}, closer: p}, nil
}

// portal is where a target has a LUN.
type portal struct {
	address string
	lun     int
}

func (at portal) uri() string { return fmt.Sprintf("iscsi://%s/%s/%d", at.address, benchIQN, at.lun) }

// tgtSettings are what tgt lets an initiator use no more of than it is told to: as much as our target does.
var tgtSettings = []struct{ key, value string }{
	{"MaxXmitDataSegmentLength", "262144"}, {"MaxRecvDataSegmentLength", "262144"}, {"MaxBurstLength", "1048576"}, {"FirstBurstLength", "65536"},
}

// startTGT starts tgt's daemon with image as LUN 1 of a target; its LUN 0 is no disk.
func startTGT(ctx context.Context, _ *bench, dir, image string) (*blockServer, error) {
	// A control socket of its own keeps it apart from a tgtd that the host may have.
	control := "TGT_IPC_SOCKET=" + filepath.Join(dir, "tgtd")
	var at portal
	s, err := startOnLoopback(ctx, "", func(port string) []string {
		at = portal{"127.0.0.1:" + port, 1}
		return []string{"env", control, "tgtd", "--foreground", "--iscsi", "portal=" + at.address}
	})
	if err != nil {
		return nil, err
	}
	s.iscsi = at
	var more [][]string
	for _, x := range tgtSettings {
		more = append(more, []string{"--mode", "target", "--op", "update", "--name", x.key, "--value", x.value})
	}
	if err := offerByTGT(ctx, control, "iscsi", image, at, more...); err != nil {
		return nil, errors.Join(err, s.closer.Close())
	}
	return s, nil
}

// offerByTGT has a tgtd offer image by one of its drivers, and carries out more of its administrator's commands.
func offerByTGT(ctx context.Context, control, driver, image string, at portal, more ...[]string) error {
	for _, args := range append([][]string{
		{"--mode", "target", "--op", "new", "--targetname", benchIQN},
		{"--mode", "logicalunit", "--op", "new", "--lun", strconv.Itoa(at.lun), "--backing-store", image},
		{"--mode", "target", "--op", "bind", "--initiator-address", "ALL"},
	}, more...) {
		cmd := exec.CommandContext(ctx, "tgtadm", append([]string{"--lld", driver, "--tid", "1"}, args...)...)
		cmd.Env = append(os.Environ(), control)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
		}
	}
	return nil
}

// openISCSI is openBlock with iscsiServers, on a machine that has QEMU's initiator and all programs.
func openISCSI(programs ...string) func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
	return func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		for _, program := range programs {
			if _, err := exec.LookPath(program); err != nil {
				return nil, nil, leftOut(err.Error() + "; apt-get install tgt libiscsi-bin qemu-utils qemu-block-extra")
			}
		}
		if modules, err := filepath.Glob("/usr/lib/*/qemu/block-iscsi.so"); err != nil || len(modules) == 0 {
			return nil, nil, leftOut("QEMU has no iSCSI initiator here; apt-get install qemu-block-extra")
		}
		return openBlock(iscsiServers)(ctx, b, names)
	}
}

// scattered is the distance in blocks of one operation from the one before where a job is random:
// qemu-img has no other order that goes to all blocks.
const scattered = 50021

// operations is how many operations of the job qemu-img does in a run: about a second.
func (j fioJob) operations() int {
	switch {
	case j.size() > 4<<10:
		return 400
	case j.depth == 1:
		return 5000
	}
	return 20_000
}

// runQEMU has qemu-img do the job by libiscsi, and reports what run does, but for latencies.
func (j fioJob) runQEMU(ctx context.Context, s *blockServer) (metrics, error) {
	n, step := j.operations(), j.size()
	if j.random() {
		step *= scattered
	}
	args := []string{"bench", "-f", "raw", "-c", strconv.Itoa(n), "-d", strconv.Itoa(j.depth), "-s", strconv.Itoa(j.size()), "-S", strconv.Itoa(step)}
	if j.writes() {
		args = append(args, "-w")
	}
	cpu0, err := processCPU(s.pids)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "qemu-img", append(args, s.iscsi.uri())...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("qemu-img on %s: %w: %s", s.iscsi.uri(), err, out)
	}
	cpu1, err := processCPU(s.pids)
	if err != nil {
		return nil, err
	}
	var took float64
	if _, err := fmt.Sscanf(string(lastLine(out)), "Run completed in %g seconds.", &took); err != nil {
		return nil, fmt.Errorf("qemu-img on %s: its report is not understood: %s", s.iscsi.uri(), bytes.TrimSpace(out))
	}
	return metrics{"ops": float64(n) / took, "rate": float64(n*j.size()) / took, "cpu": (cpu1 - cpu0).Seconds() / float64(n)}, nil
}

// clientProgram has jobs on a target done by a program whose figure is all that is asked for.
func clientProgram(start startServer, run func(j fioJob, ctx context.Context, b *bench, uri string) (ops float64, err error)) startServer {
	return func(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
		s, err := start(ctx, b, dir, image)
		if err != nil {
			return nil, err
		}
		s.own = func(ctx context.Context, j fioJob, s *blockServer) (metrics, error) {
			ops, err := run(j, ctx, b, s.iscsi.uri())
			return metrics{"ops": ops, "rate": ops * float64(j.size())}, err
		}
		return s, nil
	}
}

// runISCSIBench has `ironwarp iscsi bench` do a job that reads.
func (j fioJob) runISCSIBench(ctx context.Context, b *bench, uri string) (float64, error) {
	args := []string{"iscsi", "bench", "--json", "--depth", strconv.Itoa(j.depth), "--size", strconv.Itoa(j.size()), "--time", fmt.Sprintf("%ds", fioSeconds)}
	if !j.random() {
		args = append(args, "--sequential")
	}
	out, err := output(exec.CommandContext(ctx, b.ironwarp, append(args, uri)...))
	if err != nil {
		return 0, fmt.Errorf("ironwarp %v: %w", args, err)
	}
	var report struct {
		Reads struct {
			Rate float64 `json:"ops_per_second"`
		} `json:"reads"`
	}
	if err := json.Unmarshal(out, &report); err != nil || report.Reads.Rate == 0 {
		return 0, fmt.Errorf("the report of ironwarp %v is not understood: %w: %s", args, err, out)
	}
	return report.Reads.Rate, nil
}

// runISCSIPerf has libiscsi's iscsi-perf do a job that reads, the only kind that it does.
func (j fioJob) runISCSIPerf(ctx context.Context, _ *bench, uri string) (float64, error) {
	args := []string{"-m", strconv.Itoa(j.depth), "-b", strconv.Itoa(j.size() / 512), "-t", strconv.Itoa(fioSeconds)}
	if j.random() {
		args = append(args, "-r")
	}
	out, err := exec.CommandContext(ctx, "iscsi-perf", append(args, uri)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("iscsi-perf %v: %w: %s", args, err, out)
	}
	at := bytes.LastIndex(out, []byte("iops average "))
	var ops float64
	if at < 0 {
		return 0, fmt.Errorf("the report of iscsi-perf %v is not understood: %s", args, out)
	}
	if _, err := fmt.Sscanf(string(out[at:]), "iops average %g", &ops); err != nil {
		return 0, fmt.Errorf("the report of iscsi-perf %v is not understood: %w: %s", args, err, out)
	}
	return ops, nil
}

// perfRows are `ironwarp iscsi bench` beside iscsi-perf, each with a target of ours.
func perfRows() (rows []row) {
	for _, j := range fioJobs {
		if !j.writes() {
			r := j.iscsiRow("iscsi bench, "+j.name+" / iscsi-perf", 1, "target, iscsi bench", "target, iscsi-perf")
			r.note = "both with the same target: what is compared are the initiators"
			rows = append(rows, r)
		}
	}
	return rows
}

// iscsiRow is one that compares how fast two do a job.
func (j fioJob) iscsiRow(name string, aim float64, ours, rival string) row {
	r := row{name: name, unit: "IOPS", aim: aim, ours: ref{ours + "/" + j.name, "ops"}, rival: []ref{{rival + "/" + j.name, "ops"}}}
	if j.size() > 4<<10 {
		r.unit, r.scale, r.ours.metric, r.rival[0].metric = "MB/s", 1e-6, "rate", "rate"
	}
	return r
}

// tgtRows are the target beside tgt's, with the same initiator.
func tgtRows() (rows []row) {
	for _, j := range fioJobs {
		aim := 1.2
		if j.depth == 32 || j.size() > 4<<10 && j.writes() {
			aim = 1.5
		}
		rows = append(rows, j.iscsiRow("iSCSI "+j.name+" / tgtd", aim, "target", "tgtd"))
		if j.depth > 1 {
			r := j.iscsiRow("iSCSI CPU per operation, "+j.name+" / tgtd", 0, "target", "tgtd")
			if j.depth == 32 {
				r.aim = 0.6
			}
			r.unit, r.scale, r.less, r.ours.metric, r.rival[0].metric = "us", 1e6, true, "cpu", "cpu"
			r.note = "the target's process; the initiator's own time is in neither"
			rows = append(rows, r)
		}
	}
	return rows
}

// nbdkitISCSIRows are the target beside what serves the same file without SCSI.
func nbdkitISCSIRows() (rows []row) {
	for _, j := range fioJobs {
		if j.depth == 32 {
			r := j.iscsiRow("iSCSI "+j.name+" / nbdkit", 0, "target", "nbdkit")
			if r.note = "nbdkit by NBD, with fio as its client"; !j.writes() {
				r.aim = 0.6
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// digestRows are what both digests cost.
func digestRows() (rows []row) {
	for _, j := range fioJobs {
		if j.depth > 1 {
			rows = append(rows, j.iscsiRow("iSCSI "+j.name+", both digests / none", 0.85, "target, both digests", "target, own client"))
		}
	}
	return rows
}
