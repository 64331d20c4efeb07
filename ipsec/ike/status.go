package ike

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// Status is the state of charon and of the connection to it.
type Status struct {
	Socket    string    `json:"socket"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Daemon    string    `json:"daemon,omitempty"`  // charon or charon-systemd
	Version   string    `json:"version,omitempty"` // such as 5.9.8
	DataPlane esp.Plane `json:"data_plane"`
	Reason    string    `json:"data_plane_reason,omitempty"` // why it is that one
	Tun       string    `json:"tun,omitempty"`               // device of userland ESP, where it can be told
	Plugins   []string  `json:"plugins,omitempty"`
	LastError string    `json:"last_error,omitempty"`
	Restarts  uint64    `json:"restarts"` // connections lost since Run
	Refused   uint64    `json:"refused"`  // flows not admitted that are no peer's
}

// The oldest charon that has what is used here: child priorities, replay
// windows and forced terminations over VICI.
const (
	oldestMajor = 5
	oldestMinor = 9
)

// Probe connects to charon once and returns what it is. The error is a
// *charon.Error whose text says what to do.
func Probe(ctx context.Context, socket string) (Status, error) {
	socket = SocketPath(socket)
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	c, err := charon.Dial(ctx, socket)
	if err != nil {
		return Status{Socket: socket, LastError: err.Error()}, err
	}
	defer c.Close()
	st, err := identify(ctx, c)
	if err == nil {
		st.choose(esp.Auto)
	}
	return st, err
}

// identify asks charon for its version and plugins.
func identify(ctx context.Context, c *charon.Conn) (Status, error) {
	d := Status{Socket: c.Socket}
	v, err := c.Call(ctx, "version", "charon", nil, nil)
	if err != nil {
		d.LastError = err.Error()
		return d, err
	}
	d.Daemon, d.Version = charon.Str(v, "daemon"), charon.Str(v, "version")
	if tooOld(d.Version) {
		err := &charon.Error{Op: "version", Socket: c.Socket, Kind: charon.ErrTooOld,
			Err:    fmt.Errorf("it is %q", d.Version),
			Advice: fmt.Sprintf("%d.%d or later is needed", oldestMajor, oldestMinor)}
		d.LastError = err.Error()
		return d, err
	}
	stats, err := c.Call(ctx, "stats", "charon", nil, nil)
	if err != nil {
		d.LastError = err.Error()
		return d, err
	}
	d.Plugins = charon.List(stats, "plugins")
	if err := checkPlugins(c.Socket, d.Plugins); err != nil {
		d.LastError = err.Error()
		return d, err
	}
	d.Connected, d.Since = true, time.Now()
	if slices.Contains(d.Plugins, esp.Plugin) {
		d.Tun = tunOf(c.PID)
	}
	return d, nil
}

func tooOld(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return true
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(strings.TrimRight(parts[1], "abcdefghijklmnopqrstuvwxyz"))
	return err1 != nil || err2 != nil || major < oldestMajor || major == oldestMajor && minor < oldestMinor
}

// tunOf finds the tun device that a process holds open, "" if it cannot be told.
func tunOf(pid int) string {
	if pid <= 0 {
		return ""
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		name := ""
		for s := bufio.NewScanner(f); s.Scan(); {
			if v, ok := strings.CutPrefix(s.Text(), "iff:"); ok {
				name = strings.TrimSpace(v)
			}
		}
		f.Close()
		if name != "" {
			return name
		}
	}
	return ""
}

// choose settles who does ESP here, and why: configured is what the configuration
// says.
func (d *Status) choose(configured esp.Plane) {
	probe := esp.ProbeKernel()
	kernel := "the kernel has ESP"
	switch {
	case errors.Is(probe, esp.ErrNoKernel):
		kernel = probe.Error()
	case probe != nil:
		kernel = fmt.Sprintf("it is not known whether the kernel has ESP (%v)", probe)
	}
	loaded := slices.Contains(d.Plugins, esp.Plugin)
	switch {
	case loaded && probe != nil:
		d.DataPlane, d.Reason = esp.Userland, fmt.Sprintf("strongSwan has loaded its plugin %s, and %s", esp.Plugin, kernel)
	case loaded:
		d.DataPlane, d.Reason = esp.Userland, fmt.Sprintf("strongSwan has loaded its plugin %s, although %s", esp.Plugin, kernel)
	case probe != nil:
		d.DataPlane, d.Reason = esp.Kernel, fmt.Sprintf("strongSwan has not loaded its plugin %s; but %s", esp.Plugin, kernel)
	default:
		d.DataPlane, d.Reason = esp.Kernel, kernel
	}
	if configured != esp.Auto && configured != d.DataPlane {
		d.Reason = fmt.Sprintf("the configuration says so; by itself it would be %v: %s", d.DataPlane, d.Reason)
		d.DataPlane = configured
	}
}

// ProbeAlgorithms asks charon once for the algorithms that its plugins bring. It fails
// as charon.Dial does.
func ProbeAlgorithms(ctx context.Context, socket string) (profile.Algorithms, error) {
	socket = SocketPath(socket)
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	c, err := charon.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	m, err := c.Call(ctx, "get-algorithms", "charon", nil, nil)
	if err != nil {
		return nil, err
	}
	all := profile.Algorithms{}
	for _, kind := range m.Keys() {
		for _, name := range charon.Sub(m, kind).Keys() {
			all[name] = true
		}
	}
	return all, nil
}
