package ibsimnet

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrMissing means that a program or library of Debian's packages is missing on this host.
var ErrMissing = errors.New("apt-get install opensm ibsim-utils libumad2sim0 infiniband-diags gcc")

// umad2sim returns the path of libumad2sim.
func umad2sim() (string, error) {
	found, _ := filepath.Glob("/usr/lib/*/umad2sim/libumad2sim.so") // the pattern is right
	if len(found) == 0 {
		return "", fmt.Errorf("libumad2sim.so is missing: %w", ErrMissing)
	}
	return found[0], nil
}

// program returns the path of a program, which may be one of root's.
func program(name string) (string, error) {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is missing: %w", name, ErrMissing)
}

//go:embed preload/segments.c
var segmentsSource []byte

// Segments compiles a library for [Environment], in dir, and returns its path: with it programs get whole MADs and tables of any length
// (package comment). It fails if gcc is missing.
func Segments(ctx context.Context, dir string) (string, error) {
	gcc, err := program("gcc")
	if err != nil {
		return "", err
	}
	source, library := filepath.Join(dir, "segments.c"), filepath.Join(dir, "segments.so")
	if err := os.WriteFile(source, segmentsSource, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, gcc, "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the library that puts segments together: %w: %s", err, out)
	}
	return library, nil
}

// Run runs a program with libumad2sim in dir, where that makes files of its own, and returns what it prints, to either. It
// fails if the program does.
func Run(ctx context.Context, dir string, environment []string, name string, args ...string) (string, error) {
	path, err := program(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Process is a program that runs until it is stopped.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start starts a program whose output goes to the file log.
func start(dir, log string, environment []string, name string, args ...string) (*Process, error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Sweep has opensm look at its whole network at once.
func (p *Process) Sweep() { p.cmd.Process.Signal(syscall.SIGHUP) }

// Stop ends the program: it is asked to for a few seconds, then killed.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.cmd.Process.Kill()
		<-p.done
	}
}

// StartIBSim starts ibsim with a switch and a channel adapter for each of nodes, its sockets named socket, its files in dir. It fails if the program is missing.
func StartIBSim(dir, socket string, nodes []string) (*Process, error) {
	var net strings.Builder
	fmt.Fprintf(&net, "Switch %d \"S\"\n", len(nodes)+1)
	for i, node := range nodes {
		fmt.Fprintf(&net, "[%d] %q[1]\n", i+1, node)
	}
	for i, node := range nodes {
		fmt.Fprintf(&net, "\nHca 1 %q\n[1] \"S\"[%d]\n", node, i+1)
	}
	file := filepath.Join(dir, "net")
	if err := os.WriteFile(file, []byte(net.String()), 0o600); err != nil {
		return nil, err
	}
	return start(dir, filepath.Join(dir, "ibsim.log"), []string{"IBSIM_SOCKNAME=" + socket}, "ibsim", "-s", "-n", file)
}

// StartOpenSM starts opensm at a node of ibsim's network, with options in the syntax of opensm.conf; its log is opensm.log in dir, which is its own. It fails
// if the program is missing.
func StartOpenSM(dir, socket, node, options string) (*Process, error) {
	env, err := Environment(socket, node)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "opensm.conf")
	if err := os.WriteFile(conf, []byte(options), 0o600); err != nil {
		return nil, err
	}
	env = append(env, "OSM_CACHE_DIR="+dir, "OSM_TMP_DIR="+dir)
	return start(dir, filepath.Join(dir, "opensm.out"), env, "opensm", "-F", conf, "-f", filepath.Join(dir, "opensm.log"))
}
