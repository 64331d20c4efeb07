package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// OutDir is where the guest has the directory that it shares with the host.
const OutDir = "/mnt/out"

// Options say how a script is run.
type Options struct {
	Timeout time.Duration // of the whole run, boot included; 0 for five minutes
	Boot    time.Duration // of one boot, after which another is tried; 0 for two minutes
	Console io.Writer     // gets the guest's console as it comes, if not nil
	CPUs    int           // 0 for two
	Memory  int           // MiB, 0 for 1536
	Kernel  string        // parameters for the kernel besides those that it needs, as in security=selinux

	// Disks are files that the guest has as virtio disks (modprobe virtio_blk): vda, vdb
	// and so on. What it writes to them is in the file even without a flush when QEMU is
	// killed; what is only in its page cache is not.
	Disks []string
	// Sockets are vhost-user back ends, whose disks the guest has behind those: QEMU
	// connects again within a second when one hangs up.
	Sockets []string
	// Forward, if not nil, gives the guest a network card (modprobe virtio_net) of address
	// 10.0.2.15/24 in a network of its own with this host, which is 10.0.2.2 there. The
	// map's keys are ports of 127.0.0.1 here, its values the guest's TCP ports behind
	// them; there is no other connection in or out.
	Forward map[uint16]uint16
}

// Result is the result of a script.
type Result struct {
	Status int           // exit status of the script
	Output string        // of the script: standard output and standard error
	CPU    time.Duration // of the host's processors used by the machine
}

// ErrDied means that the guest ended before its script.
var ErrDied = errors.New("the virtual machine ended before its script did")

// errNoBoot means that a guest did not get as far as its script.
var errNoBoot = errors.New("the virtual machine does not boot")

// boots is how often to start a machine that gets stuck before its script, as an
// emulated one on a busy host does now and then.
const boots = 3

// Run boots the image, has its bash run script as root and shuts it down. The
// directory out is the guest's OutDir, the only place where the guest can leave
// files. An error means that the script did not run to its end; its exit status
// is in the Result.
func (im *Image) Run(ctx context.Context, out, script string, o Options) (r Result, err error) {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.Boot <= 0 {
		o.Boot = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("the script took longer than %v", o.Timeout))
	defer cancel()
	if out, err = filepath.Abs(out); err == nil {
		err = os.WriteFile(filepath.Join(out, "script"), []byte("touch "+OutDir+"/"+booted+"\n"+script), 0o644)
	}
	if err != nil {
		return Result{}, fmt.Errorf("run a script in a virtual machine: %w", err)
	}
	release, err := hold(im.dir, syscall.LOCK_SH)
	if err != nil {
		return Result{}, fmt.Errorf("run a script in a virtual machine: %w", err)
	}
	defer release()
	for n := range boots {
		if r, err = im.boot(ctx, out, o, n == boots-1); !errors.Is(err, errNoBoot) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("run a script in a virtual machine: %w\n%s", err, tail(r.Output, 20))
	}
	return r, err
}

// booted is a file that the guest makes when its script begins.
const booted = "booted"

// stuck is what the kernel says of a processor that has done nothing else for 20 s: an emulated one stays so for ever
// now and then.
const stuck = "soft lockup"

// watch is a console on which a machine that is stuck may say so.
type watch struct {
	said  bytes.Buffer
	seen  int // bytes that were looked at
	stuck func()
}

func (w *watch) Write(b []byte) (n int, err error) {
	n, err = w.said.Write(b)
	if bytes.Contains(w.said.Bytes()[w.seen:], []byte(stuck)) {
		w.stuck()
	}
	w.seen = max(0, w.said.Len()-len(stuck))
	return n, err
}

// boot starts the machine once. For the last time it has all of Options.Boot, also if it seems to be stuck.
func (im *Image) boot(ctx context.Context, out string, o Options, last bool) (r Result, err error) {
	status, begun := filepath.Join(out, "status"), filepath.Join(out, booted)
	if err := errors.Join(os.RemoveAll(status), os.RemoveAll(begun)); err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	giveUp := func(why string) {
		if _, err := os.Stat(begun); err != nil {
			cancel(fmt.Errorf("%w: %s", errNoBoot, why))
		}
	}
	late := time.AfterFunc(o.Boot, func() { giveUp(fmt.Sprintf("its script has not begun within %v", o.Boot)) })
	defer late.Stop()
	console := watch{stuck: func() {
		if !last {
			giveUp("it is stuck")
		}
	}}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", im.args(out, o)...)
	cmd.Stdout, cmd.Stderr = &console, &stderr
	if o.Console != nil {
		cmd.Stdout = io.MultiWriter(&console, o.Console)
	}
	cmd.WaitDelay = 5 * time.Second
	endWithParent(cmd)
	err = cmd.Run()
	r.Output = console.said.String()
	if s := cmd.ProcessState; s != nil {
		r.CPU = s.UserTime() + s.SystemTime()
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("qemu-system-x86_64: %w\n%s", err, tail(stderr.String(), 20))
	}
	if _, err := os.Stat(begun); err != nil {
		return r, fmt.Errorf("%w: it ended before its script began", errNoBoot)
	}
	b, err := os.ReadFile(status)
	if err == nil {
		r.Status, err = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrDied, err)
	}
	return r, nil
}

// args are QEMU's. The kernel is an ELF image, which it starts without a BIOS.
func (im *Image) args(out string, o Options) []string {
	cpus, memory := o.CPUs, o.Memory
	if cpus <= 0 {
		cpus = 2
	}
	if memory <= 0 {
		memory = 1536
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", strconv.Itoa(cpus), "-m", strconv.Itoa(memory),
		"-kernel", filepath.Join(im.dir, "vmlinux"), "-initrd", filepath.Join(im.dir, "initrd.gz"),
		// Without tsc=reliable the guest's clock is the HPET, whose every reading costs
		// microseconds. Without no_timer_check the kernel panics when a busy host delays its
		// first timer ticks. Its tests of its own ciphers take seconds of each boot, in which it
		// was seen to get stuck.
		"-append", strings.TrimSpace("console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check cryptomgr.notests " + o.Kernel),
	}
	share := func(tag, path, options string) {
		args = append(args, "-fsdev", "local,id="+tag+",path="+strings.ReplaceAll(path, ",", ",,")+options,
			"-device", "virtio-9p-pci,fsdev="+tag+",mount_tag="+tag)
	}
	share("hostroot", "/", ",security_model=passthrough,readonly=on,multidevs=remap")
	share("modules", filepath.Join(im.dir, "modules"), ",security_model=passthrough,readonly=on")
	share("out", out, ",security_model=none")
	for i, file := range o.Disks {
		id := "disk" + strconv.Itoa(i)
		args = append(args, "-drive", "if=none,format=raw,cache=writeback,id="+id+",file="+strings.ReplaceAll(file, ",", ",,"), "-device", "virtio-blk-pci,drive="+id+",serial="+id)
	}
	if len(o.Sockets) > 0 {
		args = append(args, "-object", "memory-backend-memfd,id=mem,share=on,size="+strconv.Itoa(memory)+"M", "-machine", "memory-backend=mem")
	}
	for i, path := range o.Sockets {
		id := "socket" + strconv.Itoa(i)
		args = append(args, "-chardev", "socket,reconnect=1,id="+id+",path="+strings.ReplaceAll(path, ",", ",,"), "-device", "vhost-user-blk-pci,chardev="+id)
	}
	if o.Forward != nil {
		net := "user,id=net,restrict=on"
		for here, there := range o.Forward {
			net += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-:%d", here, there)
		}
		args = append(args, "-netdev", net, "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	return args
}

// endWithParent makes the command and its children die with this process or its
// context.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
