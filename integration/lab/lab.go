package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// Config says what New makes. The zero value is two hosts, alpha and beta,
// with a running strongSwan each.
type Config struct {
	Hosts     []string  // names of the hosts; default alpha, beta
	DataPlane esp.Plane // default: the kernel's ESP where it has it, else userland
	NoCharon  bool      // leave strongSwan stopped; Host.StartCharon starts it
	MTU       int       // of the wires, bytes; default 1500
	Wires     int       // that join the hosts, each with addresses of its own; default 1
	// First is the host, if any, that has the network namespace of process 1: what the kernel has in the first one
	// only, as iSCSI's initiator, is of no use to another. It is for virtual machines.
	First string
	Dir   string // parent of the lab's directory; default os.TempDir()
	// Charon is appended to the charon section of every strongswan.conf.
	Charon string
	// CharonEnv is added to the environment of every strongSwan, as NAME=VALUE.
	CharonEnv []string
	Canary    Canary // default: a new one
	Logger    *slog.Logger
}

// Lab is a set of hosts on one wire. Its methods may be called from several
// goroutines.
type Lab struct {
	cfg    Config
	prefix string
	dir    string
	plane  esp.Plane
	canary Canary
	hosts  []*Host
	bridge string // namespace of the switch

	mu     sync.Mutex // guards the fields below it; taken before a Host's
	closed bool
	kept   bool
}

var labs atomic.Uint64

// New makes the hosts and starts strongSwan on each. It first removes labs that killed
// owners have left. After an error nothing is left behind.
func New(ctx context.Context, cfg Config) (_ *Lab, err error) {
	if err := Missing(); err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	if len(cfg.Hosts) == 0 {
		cfg.Hosts = []string{"alpha", "beta"}
	}
	if len(cfg.Hosts) < 2 || len(cfg.Hosts) > maxHosts {
		return nil, fmt.Errorf("make a lab of %d hosts: 2 to %d are possible", len(cfg.Hosts), maxHosts)
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	cfg.Wires = max(cfg.Wires, 1)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		cfg.Dir = os.TempDir()
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	if err := Sweep(ctx); err != nil {
		cfg.Logger.Warn("could not clear away an earlier lab", "err", err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	l := &Lab{
		cfg:    cfg,
		prefix: fmt.Sprintf("%s%d.%d.%d", namePrefix, os.Getpid(), start, labs.Add(1)),
		plane:  cfg.DataPlane,
		canary: cmp.Or(cfg.Canary, NewCanary()),
	}
	l.dir = filepath.Join(cfg.Dir, l.prefix)
	l.bridge = l.prefix + "-switch"
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.plane == esp.Auto {
		l.plane = esp.Kernel
		if err := esp.ProbeKernel(); err != nil {
			cfg.Logger.Info("userland ESP by strongSwan's kernel-libipsec", "because", err)
			l.plane = esp.Userland
		}
	}
	if err := register(l.prefix, cfg.Dir); err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a lab: %w", err)
	}
	for i, name := range cfg.Hosts {
		h, err := newHost(l, i, name)
		if err != nil {
			return nil, err
		}
		l.hosts = append(l.hosts, h)
	}
	if err := l.wire(ctx); err != nil {
		return nil, err
	}
	if cfg.NoCharon {
		return l, nil
	}
	for _, h := range l.hosts {
		if err := h.StartCharon(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Start is New for a test: it skips where a lab cannot run, judges the captures
// and closes the lab at the test's end, and prints the ends of the charon logs if
// the test failed.
func Start(t testing.TB, cfg Config) *Lab {
	t.Helper()
	Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	l, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, h := range l.hosts {
			for _, fault := range h.stopCaptures() {
				t.Error(fault)
			}
		}
		if t.Failed() {
			for _, h := range l.hosts {
				t.Logf("charon of %s:\n%s", h.name, h.logTail(6000))
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return l
}

// Hosts returns the hosts in the order of Config.Hosts.
func (l *Lab) Hosts() []*Host { return append([]*Host(nil), l.hosts...) }

// Host returns the host of that name; it panics if there is none.
func (l *Lab) Host(name string) *Host {
	for _, h := range l.hosts {
		if h.name == name {
			return h
		}
	}
	panic("lab: there is no host " + name)
}

// Canary is the lab's canary: captures look for it in all that crosses the wires.
func (l *Lab) Canary() Canary { return l.canary }

// DataPlane is what does ESP in this lab: the kernel or userland.
func (l *Lab) DataPlane() esp.Plane { return l.plane }

// Dir is the lab's directory; it goes away with the lab.
func (l *Lab) Dir() string { return l.dir }

// Name is the prefix of the names of everything this lab has made.
func (l *Lab) Name() string { return l.prefix }

// Keep leaves the hosts up: Close then only ends captures, and a later Sweep leaves
// them alone. Discard removes a kept lab. It fails where that can't be registered.
func (l *Lab) Keep() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.WriteFile(filepath.Join(registry, l.prefix+".keep"), nil, 0o600); err != nil {
		return fmt.Errorf("keep the lab: %w", err)
	}
	l.kept = true
	return nil
}

// Close ends every process in the hosts and removes all that the lab has made.
// It is idempotent.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	for _, h := range l.hosts {
		_ = h.stopCaptures()
	}
	if l.kept {
		return nil
	}
	for _, h := range l.hosts {
		h.endCharon(false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return discard(ctx, l.cfg.Dir, l.prefix)
}

// wire makes the namespaces and joins them by a switch in a namespace of its
// own. Captures are made there, on the wire proper: on a host itself packets
// that the kernel has just decrypted look as if they had come in clear.
func (l *Lab) wire(ctx context.Context) error {
	mtu := fmt.Sprint(l.cfg.MTU)
	for _, args := range [][]string{
		{"netns", "add", l.bridge},
		{"netns", "exec", l.bridge, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"}, // no traffic of its own
	} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	for w := range l.cfg.Wires {
		if err := ip(ctx, "-n", l.bridge, "link", "add", bridgeDev(w), "mtu", mtu, "type", "bridge", "mcast_snooping", "0"); err != nil {
			return err
		}
		if err := ip(ctx, "-n", l.bridge, "link", "set", bridgeDev(w), "up"); err != nil {
			return err
		}
	}
	for _, h := range l.hosts {
		made := []string{"add", h.ns}
		if h.name == l.cfg.First {
			made = []string{"attach", h.ns, "1"}
		}
		if err := ip(ctx, append([]string{"netns"}, made...)...); err != nil {
			return err
		}
		for w := range l.cfg.Wires {
			port := h.switchPort(w)
			if err := ip(ctx, "-n", l.bridge, "link", "add", port, "type", "veth", "peer", "name", wireDev(w), "netns", h.ns); err != nil {
				return err
			}
			if err := ip(ctx, "-n", l.bridge, "link", "set", port, "mtu", mtu, "master", bridgeDev(w), "up"); err != nil {
				return err
			}
		}
		if err := h.configure(ctx, mtu); err != nil {
			return err
		}
	}
	return nil
}

// wireDev is the name of a host's end of a wire.
func wireDev(wire int) string { return fmt.Sprintf("wire%d", wire) }

// bridgeDev is the name of the switch that a wire is.
func bridgeDev(wire int) string { return fmt.Sprintf("br%d", wire) }

const (
	namePrefix   = "iwlab-"
	maxHosts     = 200 // the last byte of an address numbers the host
	startTimeout = 5 * time.Minute
	closeTimeout = time.Minute
)
