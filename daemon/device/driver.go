package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/internal/rate"
)

// Driver is Linux's nbd driver.
type Driver struct{ access Access }

// Access is how a driver is reached.
type Access struct {
	// Exchange carries a command to the driver, and returns its answers (generic netlink's
	// header and what follows).
	Exchange func(cmd uint8, attrs []byte) ([][]byte, error)
	// Claim opens a device exclusively (O_EXCL). It fails with unix.EBUSY if somebody else has it open so.
	Claim     func(path string) (io.Closer, error)
	Sys       string // where sysfs is
	Dev       string // the directory of devices
	UDev      string // the socket of udev
	MountInfo string // what is mounted (proc(5), /proc/PID/mountinfo)
}

// New returns a driver that is reached by w.
func New(w Access) *Driver { return &Driver{w} }

// Kernel returns the kernel's driver, whose module need not be loaded yet.
func Kernel() *Driver {
	return New(Access{exchange, claim, "/sys", "/dev", "/run/udev/control", "/proc/self/mountinfo"})
}

// initial is the network namespace of process 1, in which the driver's family is while a
// daemon has a namespace of its own.
const initial = "/proc/1/ns/net"

// exchange asks in this process's network namespace, and, if the family is not there, in
// that of process 1: the kernel has it in its initial one only.
func exchange(cmd uint8, attrs []byte) (answers [][]byte, err error) {
	asked := false
	ask := func() error {
		family, err := netlink.GenlFamilyGet(familyName)
		if errors.Is(err, unix.ENOENT) {
			return errNoFamily
		} else if err != nil {
			return err
		}
		asked = true
		req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
		req.AddData(&nl.Genlmsg{Command: cmd, Version: familyVersion})
		req.AddRawData(attrs)
		answers, err = req.Execute(unix.NETLINK_GENERIC, 0)
		return err
	}
	if err = ask(); !errors.Is(err, errNoFamily) {
		return answers, err
	}
	if there := nsdo.Do(initial, ask); asked {
		return answers, there
	}
	return nil, err
}

var errNoFamily = errors.New("generic netlink has no family " + familyName)

func claim(path string) (io.Closer, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Probe counts the driver's devices, and those of them that are connected. It fails with an
// *api.Error where there is no driver.
func (d *Driver) Probe() (devices, connected int, err error) {
	answers, err := d.access.Exchange(cmdStatus, nil)
	if err != nil {
		return 0, 0, d.failure("ask the kernel for its nbd devices", err)
	}
	for _, msg := range answers {
		list, err := parseStatus(msg)
		if err != nil {
			return 0, 0, d.failure("ask the kernel for its nbd devices", err)
		}
		devices += len(list)
		for _, s := range list {
			if s.connected {
				connected++
			}
		}
	}
	return devices, connected, nil
}

// failure explains what the driver refused, with what to do.
func (d *Driver) failure(what string, err error) *api.Error {
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot %s: %v", what, err)}
	switch {
	case errors.Is(err, errNoFamily) && d.exists("module", "nbd"):
		e.Message += "; the module nbd is loaded, but answers only in the host's own network namespace"
		e.Fix = "in a container, give it the host's network, or let it see the host's process 1; otherwise attach without --device and use the NBD socket"
	case errors.Is(err, errNoFamily):
		e.Message += "; the module nbd is not loaded, and " + d.ublk()
		e.Fix = "modprobe nbd (in a container: on its host), then attach again; where the kernel has no such module, attach without --device and use the NBD socket"
	case errors.Is(err, unix.EPERM):
		e.Code, e.Fix = api.CodeForbidden, "run the daemon as root of the host: it takes CAP_SYS_ADMIN outside of user namespaces"
	}
	return e
}

// ublk says whether the kernel has its other driver for disks of processes.
func (d *Driver) ublk() string {
	if _, err := os.Stat(filepath.Join(d.access.Dev, "ublk-control")); err == nil {
		return "ublk, which this kernel has, is not supported yet"
	}
	return "there is no ublk either (" + filepath.Join(d.access.Dev, "ublk-control") + " is missing)"
}

func (d *Driver) exists(path ...string) bool {
	_, err := os.Stat(filepath.Join(append([]string{d.access.Sys}, path...)...))
	return err == nil
}

// kernelName is a device's name, such as nbd0.
func kernelName(index uint32) string { return "nbd" + strconv.FormatUint(uint64(index), 10) }

func (d *Driver) path(index uint32) string { return filepath.Join(d.access.Dev, kernelName(index)) }

// sysfsPath is a path below a device's directory in sysfs.
func (d *Driver) sysfsPath(index uint32, path ...string) string {
	return filepath.Join(append([]string{d.access.Sys, "block", kernelName(index)}, path...)...)
}

func (d *Driver) attribute(index uint32, name string) string {
	b, err := os.ReadFile(d.sysfsPath(index, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// find finds the device that was set up for a backend. One that has ended keeps its name for as
// long as somebody has it open, and takes no commands any more.
func (d *Driver) find(backend string) (index uint32, found bool) {
	all, _ := filepath.Glob(filepath.Join(d.access.Sys, "block", "nbd*"))
	for _, dir := range all {
		n, err := strconv.ParseUint(strings.TrimPrefix(filepath.Base(dir), "nbd"), 10, 32)
		if err != nil || d.attribute(uint32(n), "backend") != backend || !d.exists("block", filepath.Base(dir), "pid") {
			continue
		}
		if err := d.reconfigure(uint32(n), backend, request{}); !errors.Is(err, unix.EINVAL) {
			return uint32(n), true
		}
	}
	return 0, false
}

// reconfigure changes what r says of a device, which is nothing if it is empty.
func (d *Driver) reconfigure(index uint32, backend string, r request) error {
	r.index, r.backend = &index, backend
	_, err := d.access.Exchange(cmdReconfigure, r.append(nil))
	return err
}

// connections is how many connections a device has, alive or not: a hardware queue each.
func (d *Driver) connections(index uint32) int {
	queues, _ := filepath.Glob(d.sysfsPath(index, "mq", "*"))
	return max(len(queues), 1)
}

// size of a device in bytes, 0 if it is not known.
func (d *Driver) size(index uint32) uint64 {
	const sector = 512
	n, _ := strconv.ParseUint(d.attribute(index, "size"), 10, 64)
	return n * sector
}

// Use is the exclusive use of a device, until Close.
type Use struct {
	claimed io.Closer // nil: it is not there
	uevent  string
}

// Close releases the device.
func (u Use) Close() {
	if u.claimed == nil {
		return
	}
	u.claimed.Close()
	// What the kernel has told udev at the device's end may have been read before it was
	// the end.
	_ = os.WriteFile(u.uevent, []byte("change"), 0)
}

// Claim takes exclusive use of the device of a name, if there is one. It fails with an *api.Error if
// somebody else uses it.
func (d *Driver) Claim(ctx context.Context, name string) (Use, error) {
	index, found := d.find(backendOf(name))
	if !found {
		return Use{}, nil
	}
	path := d.path(index)
	inUse := func(how string) (Use, error) {
		return Use{}, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is in use: %s", path, how),
			Fix: "unmount it and end what uses it first, or use --force: its I/O fails then"}
	}
	if at := d.mounts(index); len(at) > 0 {
		return inUse("it is mounted on " + strings.Join(at, " and "))
	}
	if by, _ := filepath.Glob(d.sysfsPath(index, "holders", "*")); len(by) > 0 {
		return inUse(filepath.Base(by[0]) + " is made of it")
	}
	type result struct {
		c   io.Closer
		err error
	}
	opened := make(chan result, 1)
	go func() {
		c, err := d.access.Claim(path)
		opened <- result{c, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	select {
	case r := <-opened:
		switch {
		case r.err == nil:
			return Use{r.c, d.sysfsPath(index, "uevent")}, nil
		case errors.Is(r.err, unix.EBUSY):
			return inUse("a program, swap or another device has it for itself")
		case errors.Is(r.err, fs.ErrNotExist):
			return Use{}, nil
		}
		return Use{}, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("whether somebody uses %s is not known: %v", path, r.err), Fix: "use --force: its I/O fails then"}
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				r.c.Close()
			}
		}()
		return inUse("it could not be opened within " + claimTime.String() + ", since its I/O waits")
	}
}

// mounts are the directories where a device or a partition of it is mounted, as far as
// this process sees them.
func (d *Driver) mounts(index uint32) (at []string) {
	b, err := os.ReadFile(d.access.MountInfo)
	if err != nil {
		return nil
	}
	numbers := map[string]bool{}
	parts, _ := filepath.Glob(d.sysfsPath(index, kernelName(index)+"p*", "dev"))
	for _, file := range append(parts, d.sysfsPath(index, "dev")) {
		if n, err := os.ReadFile(file); err == nil {
			numbers[strings.TrimSpace(string(n))] = true
		}
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && numbers[f[2]] {
			at = append(at, f[4])
		}
	}
	return at
}

// Remove ends the device of a name, if there is one. I/O under way fails. It fails with an
// *api.Error.
func (d *Driver) Remove(name string) error {
	index, found := d.find(backendOf(name))
	if !found {
		return nil
	}
	if _, err := d.access.Exchange(cmdDisconnect, (&request{index: &index}).append(nil)); err != nil {
		return d.failure("end "+d.path(index), err)
	}
	if d.pointsTo(d.link(name), index) && !d.hasUdev() {
		return os.Remove(d.link(name))
	}
	return nil
}

// backendOf is what the kernel shows in sysfs as a device's backend: udev's rule makes the
// link's name of it.
func backendOf(name string) string { return "ironwarp/" + name }

func (d *Driver) link(name string) string {
	return filepath.Join(d.access.Dev, "disk", "by-ironwarp", name)
}

func (d *Driver) hasUdev() bool {
	_, err := os.Stat(d.access.UDev)
	return err == nil
}

func (d *Driver) pointsTo(link string, index uint32) bool {
	to, err := os.Readlink(link)
	return err == nil && filepath.Base(to) == kernelName(index)
}

// awaitLink waits for udev to make the link of a device, and makes it where udev does not
// run or has no rule for it.
func (d *Driver) awaitLink(ctx context.Context, name string, index uint32) error {
	link := d.link(name)
	if d.hasUdev() {
		ctx, cancel := context.WithTimeout(ctx, linkTime)
		defer cancel()
		for range rate.Ticks(ctx, pollEvery) {
			if d.pointsTo(link, index) {
				return nil
			}
		}
	}
	if d.pointsTo(link, index) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink("../../"+kernelName(index), link)
}
