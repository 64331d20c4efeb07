package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// charon is one process of strongSwan's daemon on a host.
type charon struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
}

// espMark keeps charon's own packets out of the tun of userland ESP: its
// sockets set the mark, and its routing rule passes over marked packets.
const espMark = "0x42"

// writeConf writes the host's strongswan.conf. Userland ESP shares its UDP
// socket with IKE, whose packets are lost when ESP fills it: so they are repeated
// soon, and given up after ten seconds.
func (h *Host) writeConf() error {
	plugins := ""
	load := ""
	if h.lab.plane == esp.Userland {
		load = "kernel-libipsec "
		plugins = `
    kernel-libipsec { allow_peer_ts = yes }
    socket-default { fwmark = ` + espMark + ` }
    kernel-netlink { fwmark = !` + espMark + ` }`
	}
	conf := fmt.Sprintf(`charon {
  load = random nonce aes sha1 sha2 md5 hmac kdf xcbc gmp openssl curve25519 gcm pem pkcs1 x509 revocation constraints pubkey curl %skernel-netlink socket-default vici
  retransmit_tries = 5
  retransmit_timeout = 0.25
  plugins {
    vici { socket = unix:///run/charon.vici }%s
  }
  filelog {
    lab {
      path = %s
      append = yes
      flush_line = yes
      time_format = %%H:%%M:%%S
      default = 1
      knl = 2
      cfg = 2
    }
  }
%s
}
`, load, plugins, h.CharonLog(), h.lab.cfg.Charon)
	return os.WriteFile(h.confPath(), []byte(conf), 0o600)
}

func (h *Host) confPath() string { return filepath.Join(h.dir, "strongswan.conf") }

// CharonLog is the path of charon's log.
func (h *Host) CharonLog() string { return filepath.Join(h.dir, "charon.log") }

// StartCharon starts strongSwan and waits until it answers. It fails if it runs
// already.
func (h *Host) StartCharon(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.charon != nil {
		return fmt.Errorf("start charon on %s: it runs already", h.name)
	}
	if err := h.writeConf(); err != nil {
		return fmt.Errorf("start charon on %s: %w", h.name, err)
	}
	h.removeStale()
	out, err := os.OpenFile(filepath.Join(h.dir, "charon.out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start charon on %s: %w", h.name, err)
	}
	defer out.Close()
	cmd := h.Command(context.Background(), CharonPath)
	cmd.Env = append(append(os.Environ(), "STRONGSWAN_CONF="+h.confPath()), h.lab.cfg.CharonEnv...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the owner, who ends us in order
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start charon on %s: %w", h.name, err)
	}
	c := &charon{cmd: cmd, exited: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(c.exited) }()
	if err := h.waitVici(ctx, c); err != nil {
		_ = cmd.Process.Kill()
		<-c.exited
		return fmt.Errorf("start charon on %s: %w\n%s", h.name, err, h.logTail(2000))
	}
	h.charon = c
	return nil
}

// waitVici asks for the version until charon answers: the socket's file alone proves
// nothing, it may be that of an earlier process.
func (h *Host) waitVici(ctx context.Context, c *charon) error {
	ctx, cancel := context.WithTimeout(ctx, charonTimeout)
	defer cancel()
	for {
		err := h.viciVersion(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w (%v)", err, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (h *Host) viciVersion(ctx context.Context) error {
	s, err := vici.NewSession(vici.WithDialContext(func(_ context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.ViciSocket())
	}))
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Call(ctx, "version", nil)
	return err
}

// StopCharon ends strongSwan in good order: SAs are deleted, peers are notified. It
// fails with ctx's error; strongSwan may still run then.
func (h *Host) StopCharon(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.charon
	if c == nil {
		return nil
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-ctx.Done():
		return fmt.Errorf("stop charon on %s: %w", h.name, ctx.Err())
	}
	h.charon = nil
	h.removeStale()
	return nil
}

// KillCharon ends strongSwan by SIGKILL: its peer is not notified. It returns
// when the process is gone.
func (h *Host) KillCharon() { h.endCharon(true) }

// RestartCharon kills strongSwan and starts it again. It fails as StartCharon does.
func (h *Host) RestartCharon(ctx context.Context) error {
	h.KillCharon()
	return h.StartCharon(ctx)
}

// CharonPID is the process id of charon, or 0 when it does not run.
func (h *Host) CharonPID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.charon == nil {
		return 0
	}
	return h.charon.cmd.Process.Pid
}

func (h *Host) endCharon(clean bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.charon == nil {
		return
	}
	_ = h.charon.cmd.Process.Kill()
	<-h.charon.exited
	h.charon = nil
	if clean {
		h.removeStale()
	}
}

// removeStale removes a stale pid file, with which charon would refuse to start
// ("already running"). The socket's file stays as a crash leaves it: charon replaces
// it.
func (h *Host) removeStale() { _ = os.Remove(filepath.Join(h.RunDir(), "charon.pid")) }

// logTail returns the last n bytes of charon's log and output.
func (h *Host) logTail(n int) string {
	var all []byte
	for _, f := range []string{filepath.Join(h.dir, "charon.out"), h.CharonLog()} {
		b, _ := os.ReadFile(f)
		all = append(all, b...)
	}
	if len(all) > n {
		all = all[len(all)-n:]
		if i := bytes.IndexByte(all, '\n'); i >= 0 {
			all = all[i+1:]
		}
	}
	return string(all)
}

const charonTimeout = 2 * time.Minute
