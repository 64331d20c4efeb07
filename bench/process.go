package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server that runs for the length of a group. What it prints is
// kept for the error, should it end early.
type process struct {
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex // guards the fields below it
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 64<<10 {
		return len(p), nil
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startProcess(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	// The end of this program, however it comes, is the end of the server.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// alive returns an error with the process's output if it has ended.
func (p *process) alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended (%v): %s", filepath.Base(p.cmd.Path), p.cmd.ProcessState, p.out.String())
	default:
		return nil
	}
}

// ready waits until check succeeds while the process lives.
func (p *process) ready(ctx context.Context, check func() error) error {
	var early error
	err := waitFor(ctx, filepath.Base(p.cmd.Path), 2*time.Minute, func() error {
		if early = p.alive(); early != nil {
			return nil
		}
		return check()
	})
	if early != nil {
		return early
	}
	if err != nil {
		return fmt.Errorf("%w; it printed: %s", err, p.out.String())
	}
	return nil
}

func (p *process) Close() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.cmd.Process.Kill()
		<-p.done
	}
	return nil
}

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, 100 on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// processCPU is the user and system time that the processes have used.
func processCPU(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return 0, err
		}
		// The command's name is in parentheses and may hold blanks; utime and
		// stime are the 12th and 13th fields after it (proc(5)).
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat: %q is not understood", pid, b)
		}
		for _, s := range f[11:13] {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			sum += time.Duration(n) * clockTick
		}
	}
	return sum, nil
}

// closers closes its members, last first.
type closers []interface{ Close() error }

func (c closers) Close() error {
	var errs []error
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i].Close())
	}
	return errors.Join(errs...)
}

type closeFunc func() error

func (f closeFunc) Close() error { return f() }
