package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// Environment variables that turn the test program into a daemon: a separate process,
// which can be killed and in which a check can be switched off.
const (
	configVar = "IRONWARP_HISTORY_DAEMON" // path of its main file
	checkVar  = "IRONWARP_HISTORY_CHECK"  // that is switched off
)

func TestMain(m *testing.M) {
	if conf := os.Getenv(configVar); conf != "" {
		if err := runDaemon(conf); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runDaemon(conf string) error {
	if c, err := strconv.Atoi(os.Getenv(checkVar)); err == nil {
		weaken(checks.Check(c))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := daemon.Start(ctx, daemon.Options{Config: conf, Named: true, Version: "history", Log: func(config.Log) *slog.Logger {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return d.Close()
}

// proc is a daemon.
type proc struct {
	t    *testing.T
	name string
	dir  string
	port uint16
	off  checks.Check
	api  *api.Client

	cmd    *exec.Cmd
	exited chan struct{}
}

func (p *proc) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proc) logFile() string { return filepath.Join(p.dir, "log") }

// start starts the daemon and waits until it answers.
func (p *proc) start() {
	p.t.Helper()
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(must(os.Executable())(p.t))
	cmd.Env = append(os.Environ(), configVar+"="+filepath.Join(p.dir, "ironwarp.yaml"), fmt.Sprintf("%s=%d", checkVar, p.off))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	p.cmd, p.exited = cmd, exited
	p.api = api.NewClient(filepath.Join(p.dir, "run", "ironwarp.sock"))
	until(p.t, p.name+" answers", func() bool {
		select {
		case <-exited:
			p.t.Fatalf("%s ended at once\n%s", p.name, p.logTail())
		default:
		}
		_, err := p.api.Info(p.t.Context())
		return err == nil
	})
}

// kill ends the daemon with SIGKILL, stop with SIGTERM.
func (p *proc) kill() { p.signal(syscall.SIGKILL) }
func (p *proc) stop() { p.signal(syscall.SIGTERM) }

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	p.api.Close()
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.exited:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.t.Errorf("%s did not end within %v of %v", p.name, patience, s)
	}
	p.cmd = nil
}

func (p *proc) reload() {
	p.t.Helper()
	if _, err := p.api.Reload(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proc) logTail() string {
	b, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}

// patience bounds waits that normally take a second; a busy machine must not fail a
// test.
const patience = 2 * time.Minute

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := node.Until(ctx, func() (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("never happened: %s: %v", what, err)
	}
}
