package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"
)

// peer is the other end of a row: this program again, in a process of its
// own. It says where it listens on its first line and answers every further
// line on its standard input with its CPU time so far; it ends with its input.
type peer struct {
	role, listen string
	prefix       []string
	command      []string      // in place of this program
	time         time.Duration // how long one run of a contender lasts

	addr string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
}

// hello and usage are what a peer says.
type hello struct{ Addr string }

type usage struct{ CPU time.Duration }

// newPeer describes a server for runs of d, which start starts. Before its own
// command line come the words of prefix, if any.
func newPeer(role, listen string, d time.Duration, prefix ...string) *peer {
	return &peer{role: role, listen: listen, time: d, prefix: prefix}
}

func (p *peer) start(ctx context.Context, b *bench) error {
	command := p.command
	if command == nil {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		command = []string{self, "-role", p.role, "-listen", p.listen}
		if b.profile != "" {
			command = append(command, "-cpuprofile", b.profile+"."+p.role)
		}
	}
	args := slices.Concat(p.prefix, command)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	p.in = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	p.out = json.NewDecoder(out)
	var h hello
	if err := p.out.Decode(&h); err != nil {
		p.Close()
		return fmt.Errorf("start the %s process: %w", p.role, err)
	}
	p.addr = h.Addr
	return nil
}

// used returns the CPU time that the peer has used.
func (p *peer) used() (time.Duration, error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, err
	}
	var u usage
	err := p.out.Decode(&u)
	return u.CPU, err
}

// cpu returns the CPU time that the peer and this process have used.
func (p *peer) cpu() (time.Duration, error) {
	theirs, err := p.used()
	if err != nil {
		return 0, err
	}
	self, err := selfCPU()
	return self + theirs, err
}

func (p *peer) Close() error {
	p.in.Close()
	return p.cmd.Wait()
}

func selfCPU() (time.Duration, error) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0, err
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), nil
}

// The roles that startPeer can start.
const (
	roleTCP      = "tcp"
	roleRDMA     = "rdma"
	roleMarkers  = "rdma-markers"  // asks for markers
	roleSpin     = "rdma-spin"     // spins on one processor
	rolePolls    = "rdma-polls"    // polls
	roleProgress = "rdma-progress" // polls with Progress on one processor
	roleISER     = "iser"          // has a file as a LUN, over iSER; its argument is the file
	roleRNBD     = "rnbd"          // exports a file; its argument is the file
)

// servers are the roles. A server returns where it listens and runs until its
// process ends.
var servers = map[string]func(ctx context.Context, listen string) (addr string, err error){
	roleTCP:        serveTCP,
	roleESP:        serveESP,
	roleSCTP:       serveSCTP,
	rolePlainSCTP:  servePlainSCTP(0),
	rolePlainLarge: servePlainSCTP(plainLarge),
	roleRDMAKernel: serveRDMA(overKernel),
	roleRDMA:       serveRDMA(variant{}),
	roleRDMASCTP:   serveRDMA(overSCTP),
	roleMarkers:    serveRDMA(variant{markers: true}),
	roleAttackers:  attackers,
	roleISER:       serveISER,
	roleRNBD:       serveRNBD,
	rolePolls:      serveRDMA(polling),
	roleSpin:       onTheOthers(serveRDMA(variant{spin: spinTime})),
	roleProgress:   onTheOthers(serveRDMA(progressing)),
}

// onTheOthers has a server do with one processor, which is none of a contender's on onOneProcessor.
func onTheOthers(serve func(context.Context, string) (string, error)) func(context.Context, string) (string, error) {
	return func(ctx context.Context, listen string) (string, error) {
		runtime.GOMAXPROCS(1)
		if _, err := pin(func(cpu, n int) bool { return cpu > 0 || n == 1 }); err != nil {
			return "", err
		}
		return serve(ctx, listen)
	}
}

func serveRDMA(v variant) func(ctx context.Context, listen string) (string, error) {
	return func(ctx context.Context, listen string) (string, error) {
		s, err := startRDMAServer(ctx, listen, v)
		if err != nil {
			return "", err
		}
		return s.addr, nil
	}
}

// measurements are what measureApart can run: a process of its own measures
// itself and prints metrics.
var measurements = map[string]measurement{
	"directory":       measureDirectory,
	"idle":            measureIdle(largeCRC),
	"allocs":          measureAllocs(largeCRC),
	"idle sctp-udp":   measureIdle(overSCTP),
	"allocs sctp-udp": measureAllocs(overSCTP),
	"iscsi allocs":    iscsiAllocations,
}

type measurement = func(ctx context.Context) (metrics, error)

// measureApart runs a measurement in a process of its own.
func measureApart(ctx context.Context, role string) (metrics, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-role", role)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the %s process: %w", role, err)
	}
	var m metrics
	return m, json.Unmarshal(out, &m)
}

// serveRole runs a peer's side until standard input ends, or a measurement.
func serveRole(ctx context.Context, role, listen string) error {
	if measure, ok := measurements[role]; ok {
		m, err := measure(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(m)
	}
	serve, ok := servers[role]
	if !ok {
		return fmt.Errorf("no role %q", role)
	}
	addr, err := serve(ctx, listen)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(os.Stdout)
	if err := enc.Encode(hello{addr}); err != nil {
		return err
	}
	for in := bufio.NewReader(os.Stdin); ; {
		if _, err := in.ReadString('\n'); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		cpu, err := selfCPU()
		if err != nil {
			return err
		}
		if err := enc.Encode(usage{cpu}); err != nil {
			return err
		}
	}
}

func startProfile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}
