package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// askTime bounds one question to another process.
const askTime = 3 * time.Second

func (x *examination) privileges() {
	f := Finding{What: "privileges", Level: OK, Found: "root"}
	if os.Geteuid() != 0 {
		f.Level, f.Found = Warn, fmt.Sprintf("user id %d; the daemon needs root for the kernel's guard, and its control socket answers root only", os.Geteuid())
		f.Instead = "loopback peers, and a daemon with state_dir and runtime_dir of its own"
		f.Do = []string{"sudo ironwarp doctor"}
	}
	x.addFinding(f)
}

func (x *examination) configuration(err error) {
	f := Finding{What: "configuration", Level: OK}
	if err != nil {
		if f, denied := asRoot("configuration", err); denied && errors.Is(err, fs.ErrPermission) {
			x.addFinding(f)
			return
		}
		f.Level, f.Found = Fail, err.Error()
		f.Do = []string{"Correct the file, then run `ironwarp reload`."}
		x.addFinding(f)
		return
	}
	f.Found = fmt.Sprintf("%s: %d peers, %d exports", x.cfg.Path, len(x.cfg.Peers), len(x.cfg.Exports))
	if len(x.cfg.Peers) == 0 {
		f.Level = Note
		f.Do = []string{"ironwarp peer add --generate-psk NAME ADDRESS"}
	}
	for _, p := range x.cfg.Peers {
		if p.Protection == config.ProtectPlaintext {
			f.Level = Warn
			f.Found += fmt.Sprintf("; peer %s has insecure_plaintext: true, its streams travel in clear", p.Name)
			continue
		}
		for _, w := range p.Insecure() {
			f.Level = Warn
			f.Found += fmt.Sprintf("; peer %s: %s", p.Name, w)
		}
	}
	for _, u := range x.cfg.ULPs {
		if u.Disabled != nil {
			f.fault(Warn, fmt.Sprintf("ULP %s is disabled: %v", u.Name, u.Disabled), "ironwarp daemon --check")
		}
	}
	x.addFinding(f)
}

// daemonState is the answer of a control socket.
type daemonState struct {
	socket string
	ulps   []api.ULP // nil if it does not answer
	err    error
}

// askDaemon asks the daemon at a control socket for its state.
func (x *examination) askDaemon(ctx context.Context, socket string) daemonState {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cl := api.NewClient(socket)
	defer cl.Close()
	a := daemonState{socket: socket}
	st, err := cl.Status(ctx)
	if err == nil {
		x.run = &st
		a.ulps, _ = cl.ULPs(ctx)
	}
	a.err = err
	return a
}

func (x *examination) daemon(a daemonState) {
	f := Finding{What: "daemon", Level: OK}
	if a.err != nil {
		f.Level = Warn
		f.Found = a.err.Error()
		var e *api.Error
		if errors.As(a.err, &e) {
			f.Found = e.Message
			if e.Code == api.CodeForbidden && os.Geteuid() != 0 {
				f.Level = Note
			} else {
				f.Do = lines(e.Fix)
			}
		}
		if api.NotRunning(a.err) {
			f.Do = []string{"systemctl start ironwarp", "If it runs already, name its socket with --socket or IRONWARP_SOCKET."}
		}
		x.addFinding(f)
		return
	}
	st := x.run
	f.Found = fmt.Sprintf("version %s, process %d", st.Info.Version, st.Info.PID)
	if x.opt.Version != "" && st.Info.Version != x.opt.Version {
		f.Level = Warn
		f.Found += fmt.Sprintf("; this command is version %s", x.opt.Version)
		f.Do = []string{"systemctl restart ironwarp"}
	}
	if used := st.Info.Config; used != "" && used != x.opt.Config {
		f.Level = Warn
		f.Found += fmt.Sprintf("; it uses %s, and what is said here is about %s", used, x.opt.Config)
		f.Do = append(f.Do, "ironwarp doctor --config "+used)
	}
	// With ULPs of users everybody may connect: the daemon asks the kernel for the user.
	if a.ulps != nil {
		checkSocketAccess(&f, a.socket, slices.ContainsFunc(a.ulps, func(u api.ULP) bool { return u.Problem == nil && len(u.Users)+len(u.Groups) > 0 }))
	}
	x.addFinding(f)
	for _, p := range st.Peers {
		if i := p.IPsec; i != nil && time.Since(i.ReloadedAt) < reloadedLately {
			x.addFinding(Finding{What: "peer " + p.Name, Level: Warn,
				Found: fmt.Sprintf("strongSwan had lost what the daemon gave it (%d times, last at %s), and got it again", i.Reloads, i.ReloadedAt.Local().Format("15:04:05")),
				Do:    []string{"After `systemctl reload strongswan` there is nothing to do. Otherwise find out what runs swanctl: --load-all and --load-creds --clear unload what is not in swanctl.conf."}})
		}
	}
	x.partitions(st)
	x.paths(st.Peers)
	for _, e := range st.Exports {
		if w := e.Warning; w != nil {
			x.addFinding(Finding{What: "export " + e.Name, Level: Warn, Found: w.Message, Do: lines(w.Fix)})
		}
	}
	for _, p := range problems(st) {
		x.addFinding(Finding{What: p.what, Level: Fail, Found: p.err.Message, Do: lines(p.err.Fix)})
	}
}

// paths reports the paths that drop long packets.
func (x *examination) paths(peers []api.Peer) {
	for _, p := range peers {
		if n := p.NarrowPath; n != nil {
			x.addFinding(Finding{What: "path to " + p.Name, Level: Warn, Found: "it " + n.String(), Do: []string{"ip route get " + cmp.Or(p.Resolved, p.Address), n.Fix()}})
		}
	}
}

// reloadedLately is how long doctor mentions that strongSwan had lost a peer.
const reloadedLately = time.Hour

// checkSocketAccess checks who may connect to the control socket.
func checkSocketAccess(f *Finding, socket string, everybody bool) {
	st, err := os.Stat(socket)
	if err != nil {
		return
	}
	want := fs.FileMode(0o600)
	if everybody {
		want = 0o666
	}
	mode := st.Mode().Perm()
	switch {
	case mode&^want&0o077 != 0:
		f.fault(Warn, fmt.Sprintf("the control socket has mode %#o, and only root is to connect", mode), fmt.Sprintf("chmod %o %s", want, socket))
	case want&^mode != 0:
		f.fault(Warn, fmt.Sprintf("the control socket has mode %#o, so that not all users of ulps: can connect", mode), fmt.Sprintf("chmod %o %s", want, socket))
	}
}

type problem struct {
	what string
	err  *api.Error
}

// problems are those of a status, except the IKE daemon's, which is examined by
// itself.
func problems(st *api.Status) []problem {
	var out []problem
	add := func(what string, e *api.Error) {
		if e != nil {
			out = append(out, problem{what, e})
		}
	}
	for _, l := range st.Listeners {
		add("listener", l.Problem)
	}
	for _, p := range st.Peers {
		add("peer "+p.Name, p.Problem)
	}
	for _, e := range st.Exports {
		add("export "+e.Name, e.Problem)
	}
	for _, at := range st.Attachments {
		add("disk "+at.Name(), at.Problem)
	}
	return out
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

func (x *examination) tun() {
	f := Finding{What: "TUN device", Level: OK, Found: "/dev/net/tun"}
	fd, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err == nil {
		fd.Close()
		x.addFinding(f)
		return
	}
	f.Level, f.Found = Note, err.Error()
	f.Instead = "kernel ESP does without it"
	f.Do = []string{"modprobe tun", "In a container, pass /dev/net/tun through."}
	if g, denied := asRoot(f.What, err); denied && errors.Is(err, fs.ErrPermission) {
		f = g
	}
	x.addFinding(f)
}

// descriptors compares what streams may need with what the daemon may open. The limits
// of this process are those of a shell, and prove nothing about that.
func (x *examination) descriptors() {
	f := Finding{What: "file descriptors", Level: OK}
	need := uint64(config.DefaultStreams)
	if x.cfg != nil {
		need = uint64(x.cfg.Limits.Device.Streams)
	}
	streams := need
	need += 256
	if x.cfg != nil {
		need += uint64(len(x.cfg.Exports) * backing.Descriptors)
	}
	need += x.volumeDescriptors()
	if x.run == nil {
		f.Level, f.Found = Note, fmt.Sprintf("%d streams may need %d; what the daemon may open is seen when it runs", streams, need)
		x.addFinding(f)
		return
	}
	may, err := openFiles(x.run.Info.PID)
	if err != nil {
		f.Level, f.Found = Note, fmt.Sprintf("not known how many the daemon may open: %v", err)
		if g, denied := asRoot(f.What, err); denied {
			f = g
		}
		x.addFinding(f)
		return
	}
	f.Found = fmt.Sprintf("the daemon may open %d", may)
	if may < need {
		f.Level = Warn
		f.Found += fmt.Sprintf(", %d streams may need %d", streams, need)
		f.Do = []string{fmt.Sprintf("Raise LimitNOFILE= of its unit to %d, with `systemctl edit ironwarp`; by hand, run `ulimit -n %d` before it.", need, need)}
	}
	x.addFinding(f)
}

// openFiles is how many descriptors a process may have (proc(5), /proc/PID/limits).
func openFiles(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				return strconv.ParseUint(f[0], 10, 64)
			}
		}
	}
	return 0, errors.New("the kernel does not say")
}

func (x *examination) nbdClients() {
	var have, lack []string
	for _, c := range []struct{ program, pkg string }{{"nbd-client", "nbd-client"}, {"nbdcopy", "libnbd-bin"}, {"qemu-img", "qemu-utils"}} {
		if _, err := exec.LookPath(c.program); err == nil {
			have = append(have, c.program)
		} else {
			lack = append(lack, c.pkg)
		}
	}
	f := Finding{What: "NBD clients", Level: OK, Found: strings.Join(have, ", ")}
	if len(lack) > 0 {
		f.Level = Note
		f.Found = strings.TrimPrefix(f.Found+"; not installed: "+strings.Join(lack, ", "), "; ")
		f.Do = []string{"apt-get install " + strings.Join(lack, " ")}
	}
	x.addFinding(f)
}

// blockDevices checks for the kernel's nbd, which `ironwarp attach --device` takes.
func (x *examination) blockDevices() {
	f := Finding{What: "block devices", Level: OK}
	devices, connected, err := device.Kernel().Probe()
	if err == nil {
		f.Found = fmt.Sprintf("the kernel's nbd has %d devices, %d of them in use", devices, connected)
		for _, at := range x.attachments() {
			if at.Device != "" {
				f.Found += fmt.Sprintf("; %s is %s", at.Device, at.Name())
			}
		}
		x.addFinding(f)
		return
	}
	f.Level, f.Found = Note, err.Error()
	var e *api.Error
	if errors.As(err, &e) {
		f.Found, f.Do = e.Message, []string{"modprobe nbd"}
		if e.Code == api.CodeForbidden {
			f.Do = lines(e.Fix)
		}
	}
	f.Instead = "NBD sockets, for nbdcopy, qemu and other NBD clients"
	x.addFinding(f)
}

// attachments are those of the daemon, if it runs.
func (x *examination) attachments() []api.Attachment {
	if x.run == nil {
		return nil
	}
	return x.run.Attachments
}

// sctp checks for the kernel's SCTP, and for what makes SCTP in UDP fast.
func (x *examination) sctp() {
	f := Finding{What: "kernel SCTP", Level: OK, Found: "available"}
	if err := ksctp.Available(); err != nil {
		f.Level, f.Found = x.levelOfMissing(x.needsKernelSCTP()), "this kernel has none"
		if !errors.Is(err, ksctp.ErrUnavailable) {
			f.Found = err.Error()
		}
		f.Instead = "transport: sctp-udp, which has an SCTP of its own, and TCP; transport: auto does without it by itself"
		f.Do = []string{"modprobe sctp", "Where there is no such module, install this kernel's linux-modules-extra or kernel-modules-extra, where distributions keep it apart."}
	}
	x.addFinding(f)
	x.udpBatches()
}

// needsKernelSCTP reports whether a configured peer needs the kernel's SCTP.
func (x *examination) needsKernelSCTP() bool {
	return x.cfg != nil && slices.ContainsFunc(x.cfg.Peers, func(p config.Peer) bool { return p.Transport == config.TransportSCTP })
}

// udpBatches checks whether the kernel sends and receives many UDP packets at once.
func (x *examination) udpBatches() {
	f := Finding{What: "UDP in batches", Level: OK}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var have, lack []string
	for _, o := range []struct {
		name   string
		option int
		value  int
	}{{"GSO (UDP_SEGMENT)", unix.UDP_SEGMENT, 1200}, {"GRO (UDP_GRO)", unix.UDP_GRO, 1}} {
		if unix.SetsockoptInt(fd, unix.IPPROTO_UDP, o.option, o.value) == nil {
			have = append(have, o.name)
		} else {
			lack = append(lack, o.name)
		}
	}
	f.Found = strings.Join(have, ", ")
	if len(lack) > 0 {
		f.Level = Note
		f.Found = "this kernel lacks " + strings.Join(lack, ", ")
		f.Instead = "SCTP in UDP works without, at several times the CPU for each packet"
		f.Do = []string{"Use a kernel from 5.0 on."}
	}
	x.addFinding(f)
}
