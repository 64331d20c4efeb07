package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// Host is one machine of a lab: a network namespace, a /run of its own and a
// strongSwan.
type Host struct {
	lab      *Lab
	name, ns string
	dir      string
	i        int // the host's number

	mu       sync.Mutex // guards the fields below it
	charon   *charon
	captures []*Capture
}

func newHost(l *Lab, i int, name string) (*Host, error) {
	h := &Host{lab: l, name: name, ns: l.prefix + "-" + name, dir: filepath.Join(l.dir, name), i: i}
	if !hostName.MatchString(name) || name == "switch" {
		return nil, fmt.Errorf("make host %q: a name has small letters and digits, and begins with a letter", name)
	}
	if len(h.ViciSocket()) > maxSocketPath {
		return nil, fmt.Errorf("make host %s: the path %s is too long for a Unix socket; choose a shorter directory", name, h.ViciSocket())
	}
	if err := os.MkdirAll(filepath.Join(h.dir, "run"), 0o755); err != nil {
		return nil, fmt.Errorf("make host %s: %w", name, err)
	}
	return h, nil
}

// Name is the host's name in Config.Hosts.
func (h *Host) Name() string { return h.name }

// Canary is that of the host's lab.
func (h *Host) Canary() Canary { return h.lab.canary }

// NetNS is the path of the host's network namespace.
func (h *Host) NetNS() string { return filepath.Join("/run/netns", h.ns) }

// Namespace is the name of the network namespace, as ip netns lists it.
func (h *Host) Namespace() string { return h.ns }

// Addr is the host's IPv4 address on the first wire.
func (h *Host) Addr() netip.Addr { return h.AddrOn(0) }

// Addr6 is the host's IPv6 address on the first wire.
func (h *Host) Addr6() netip.Addr { return h.AddrOn6(0) }

// AddrOn is the host's IPv4 address on a wire.
func (h *Host) AddrOn(wire int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 99, byte(wire), byte(h.i + 1)})
}

// AddrOn6 is the host's IPv6 address on a wire.
func (h *Host) AddrOn6(wire int) netip.Addr {
	a := netip.MustParseAddr("fd99::").As16()
	a[7], a[15] = byte(wire), byte(h.i+1)
	return netip.AddrFrom16(a)
}

// Dev is the name of the host's end of the first wire.
func (h *Host) Dev() string { return h.DevOn(0) }

// DevOn is the name of the host's end of a wire.
func (h *Host) DevOn(wire int) string { return wireDev(wire) }

// switchPort is the other end of a wire.
func (h *Host) switchPort(wire int) string {
	if wire == 0 {
		return fmt.Sprintf("port%d", h.i)
	}
	return fmt.Sprintf("port%d.%d", h.i, wire)
}

// Dir is the host's directory; it goes away with the lab.
func (h *Host) Dir() string { return h.dir }

// RunDir is what processes of this host see as /run.
func (h *Host) RunDir() string { return filepath.Join(h.dir, "run") }

// ViciSocket is the path of strongSwan's control socket as seen from outside;
// processes of the host find it at the usual /run/charon.vici.
func (h *Host) ViciSocket() string { return filepath.Join(h.dir, "run", "charon.vici") }

// Command returns a command that runs in the host: its network and its /run.
// The process that is started is the command itself, so that signals reach it.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	const script = `mount --rbind "$1" /run && shift && exec "$@"`
	argv := append([]string{"netns", "exec", h.ns, "sh", "-c", script, "sh", h.RunDir(), name}, args...)
	cmd := exec.CommandContext(ctx, "ip", argv...)
	// A command that is killed may leave children behind, which hold its output
	// open until the lab is closed.
	cmd.WaitDelay = outputDelay
	return cmd
}

// Run runs a command in the host and returns what it wrote to both outputs.
// The error has the command and its output.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	c := h.Command(ctx, name, args...)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s on %s: %w\n%s", strings.Join(append([]string{name}, args...), " "), h.name, err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Do runs f on a thread that is in the host's network namespace; sockets f opens belong
// to it. See nsdo.Do. It fails as that does.
func (h *Host) Do(f func() error) error { return nsdo.Do(h.NetNS(), f) }

// Dial opens a TCP connection from the host. It fails with the network's error.
func (h *Host) Dial(ctx context.Context, to netip.AddrPort) (c *net.TCPConn, err error) {
	err = h.Do(func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	})
	return c, err
}

// Listen opens a TCP listener in the host. It fails with the network's error.
func (h *Host) Listen(ctx context.Context, at netip.AddrPort) (ln *net.TCPListener, err error) {
	err = h.Do(func() error {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
		if err == nil {
			ln = l.(*net.TCPListener)
		}
		return err
	})
	return ln, err
}

// Link sets the host's end of the first wire up or down. It fails as LinkOn does.
func (h *Host) Link(ctx context.Context, up bool) error { return h.LinkOn(ctx, 0, up) }

// LinkOn sets the host's end of a wire up or down. It fails with what ip(8) says.
func (h *Host) LinkOn(ctx context.Context, wire int, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return ip(ctx, "-n", h.ns, "link", "set", wireDev(wire), state)
}

// Sever makes a wire lose every packet to and from the host, which only notices that no
// answer comes; or joins it again. It fails with what ip(8) says.
func (h *Host) Sever(ctx context.Context, wire int, cut bool) error {
	args := []string{"-n", h.lab.bridge, "link", "set", h.switchPort(wire)}
	if cut {
		return ip(ctx, append(args, "nomaster")...)
	}
	return ip(ctx, append(args, "master", bridgeDev(wire))...)
}

// Narrow makes a wire drop every packet from and to the host that is longer than mtu
// bytes without an ICMP error: a path MTU black hole. It fails with what ip(8) says.
func (h *Host) Narrow(ctx context.Context, wire, mtu int) error {
	return ip(ctx, "-n", h.lab.bridge, "link", "set", h.switchPort(wire), "mtu", fmt.Sprint(mtu))
}

// Impair makes a wire treat every packet from and to the host as these options of the
// queueing discipline netem say: "loss", "2%", "delay", "1ms" and so on. It takes a
// kernel that has netem. It fails with what tc(8) says.
func (h *Host) Impair(ctx context.Context, wire int, netem ...string) error {
	for _, at := range [][2]string{{h.lab.bridge, h.switchPort(wire)}, {h.ns, wireDev(wire)}} {
		args := append([]string{"-n", at[0], "qdisc", "replace", "dev", at[1], "root", "netem"}, netem...)
		if out, err := exec.CommandContext(ctx, "tc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("tc %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	return nil
}

func (h *Host) configure(ctx context.Context, mtu string) error {
	commands := [][]string{{"link", "set", "lo", "up"}}
	devs := []string{"all", "default"}
	for w := range h.lab.cfg.Wires {
		dev := wireDev(w)
		devs = append(devs, dev)
		commands = append(commands,
			[]string{"link", "set", dev, "mtu", mtu, "up"},
			[]string{"addr", "add", netip.PrefixFrom(h.AddrOn(w), 24).String(), "dev", dev},
			[]string{"addr", "add", netip.PrefixFrom(h.AddrOn6(w), 64).String(), "dev", dev, "nodad"})
	}
	for _, args := range commands {
		if err := ip(ctx, append([]string{"-n", h.ns}, args...)...); err != nil {
			return err
		}
	}
	// Strict reverse path filtering would drop the outer UDP of userland ESP: the
	// way back to its source is the tun.
	return h.Do(func() error {
		var errs []error
		for _, dev := range devs {
			errs = append(errs, os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", []byte("0"), 0))
		}
		// A congestion control that every kernel has, whatever this machine prefers: BBR, for
		// one, takes losses from a missing SA for a path that has become slow.
		errs = append(errs, os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0))
		return errors.Join(errs...)
	})
}

func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

var hostName = regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`)

// outputDelay is how long to wait for the output of a command that has ended.
const outputDelay = 2 * time.Second

// maxSocketPath is sun_path of Linux, without its zero byte.
const maxSocketPath = 107
