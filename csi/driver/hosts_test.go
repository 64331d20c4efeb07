package driver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/internal/loopfs"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// asDaemon is the environment variable that has the test's program be a daemon with that configuration.
const asDaemon = "IRONWARP_CSI_DAEMON"

// waitTime bounds waiting for what takes milliseconds; a busy machine is no failure.
const waitTime = time.Minute

func beDaemon() int {
	d, err := daemon.Start(context.Background(), daemon.Options{Config: os.Getenv(asDaemon), Named: true, Version: "test", Log: func(config.Log) *slog.Logger {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	if err := d.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// host is a daemon in a process of its own: at a loopback address, or with a strongSwan in a network namespace.
type host struct {
	t    *testing.T
	name string
	node *node.Node // of a namespace; the fields from dir to cmd are of the others
	dir  string
	addr string
	port uint16
	udp  uint16
	cmd  *exec.Cmd
	api  *api.Client
}

func newHost(t *testing.T, name, addr string) *host {
	t.Helper()
	h := &host{t: t, name: name, dir: shortDir(t), addr: addr, port: iwarptest.FreePort(t), udp: iwarptest.FreeUDPPort(t)}
	h.configure("")
	h.api = api.NewClient(filepath.Join(h.dir, "run", "ironwarp.sock"))
	t.Cleanup(func() {
		h.api.Close()
		if h.end(syscall.SIGTERM); t.Failed() {
			if log, err := os.ReadFile(filepath.Join(h.dir, "log")); err == nil {
				t.Logf("log of %s:\n%s", h.name, log)
			}
		}
	})
	h.start()
	return h
}

// configure writes the daemon's main file, with more in it.
func (h *host) configure(more string) {
	h.t.Helper()
	text := fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n%s", h.port, h.udp, more)
	if err := os.WriteFile(filepath.Join(h.dir, "ironwarp.yaml"), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) start() {
	h.t.Helper()
	if h.node != nil {
		if err := h.node.Start(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		return
	}
	exe, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	h.cmd = exec.Command(exe)
	h.cmd.Env = append(os.Environ(), asDaemon+"="+filepath.Join(h.dir, "ironwarp.yaml"))
	h.cmd.Stdout, h.cmd.Stderr = log, log
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	eventually(h.t, "the daemon of "+h.name+" answers", func() bool {
		if h.cmd.Process.Signal(syscall.Signal(0)) != nil {
			h.t.Fatal("the daemon of " + h.name + " has ended")
		}
		_, err := h.api.Info(h.t.Context())
		return err == nil
	})
}

// end ends the daemon by a signal, and returns when it is gone.
func (h *host) end(sig syscall.Signal) {
	if h.cmd == nil {
		return
	}
	_ = h.cmd.Process.Signal(sig)
	_ = h.cmd.Process.Signal(syscall.SIGCONT)
	_ = h.cmd.Wait()
	h.cmd = nil
}

// kill ends the daemon where it stands.
func (h *host) kill() {
	if h.node != nil {
		h.node.Kill()
		return
	}
	h.end(syscall.SIGKILL)
}

// pause stops the daemon, and resume has it go on.
func (h *host) pause() {
	h.t.Helper()
	h.signal(syscall.SIGSTOP, (*node.Node).Pause)
}

func (h *host) resume() {
	h.t.Helper()
	h.signal(syscall.SIGCONT, (*node.Node).Resume)
}

func (h *host) signal(sig syscall.Signal, do func(*node.Node) error) {
	h.t.Helper()
	var err error
	if h.node != nil {
		err = do(h.node)
	} else {
		err = h.cmd.Process.Signal(sig)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// link declares two hosts to each other.
func link(t *testing.T, a, b *host) {
	t.Helper()
	for _, x := range []struct{ on, other *host }{{a, b}, {b, a}} {
		spec := api.PeerSpec{Name: x.other.name, Address: x.other.addr, LocalAddress: x.on.addr, Port: x.other.port, Protection: "loopback"}
		if _, err := x.on.api.AddPeer(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-tick.C:
		}
	}
}

// newStore is a storage host with the pool "fast", and nodes that are linked with it, of which the first one manages the pool. What
// the pool is made of is in YAML.
func newStore(t *testing.T, pool string, names ...string) (store *host, nodes []*host) {
	t.Helper()
	store = newHost(t, "store", "127.77.0.1")
	for i, name := range names {
		n := newHost(t, name, fmt.Sprintf("127.77.0.%d", i+2))
		link(t, store, n)
		nodes = append(nodes, n)
	}
	store.configure(fmt.Sprintf("pools: [{name: fast, %s, manage: [%s]}]\n", pool, names[0]))
	if _, err := store.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store, nodes
}

// fileSystem is a pool in a file system of its own with reflinks, until the test ends.
func fileSystem(t *testing.T) string {
	return "driver: file, path: '" + loopfs.Mount(t, "xfs", 1<<30) + "'"
}

// plugin serves a plugin over a host's daemon, and returns where: with the kernel's devices, or with a fake mounter and NBD sockets.
func (h *host) plugin(t *testing.T, dir string, controller, kernel bool) (endpoint string) {
	t.Helper()
	c := Config{Version: "test", Node: true, NodeID: h.name, BaseDir: dir, StateDir: filepath.Join(dir, "state")}
	if !kernel {
		c.sockets = true
		c.mounter, _ = newMounts()
	}
	if controller {
		c.Controller, c.Hosts = true, []Host{{Name: "store"}}
	}
	return serve(t, dir, h.api, c)
}

// caller calls a plugin, as an orchestrator does.
type caller struct {
	csi.ControllerClient
	csi.NodeClient
}

func call(t *testing.T, endpoint string) caller {
	t.Helper()
	c, err := grpc.NewClient("unix://"+strings.TrimPrefix(endpoint, "unix://"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return caller{csi.NewControllerClient(c), csi.NewNodeClient(c)}
}

// disk is an attached disk as a program has it.
type disk interface {
	// write writes durably.
	write(off uint64, b []byte) error
	// read fills b with what the disk has, and no cache.
	read(off uint64, b []byte) error
}

// open opens a disk that is attached to a host, as the kernel's device or else by its NBD socket.
func (h *host) open(export string) disk {
	h.t.Helper()
	list, err := h.api.Attachments(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(at api.Attachment) bool { return at.Export == export })
	if i < 0 {
		h.t.Fatalf("%s is not attached to %s: %+v", export, h.name, list)
	}
	if at := list[i]; at.Device != "" {
		f, err := os.OpenFile(at.Device, os.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0)
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() { f.Close() })
		return device{f}
	}
	socket := list[i].Socket
	if h.node != nil { // which has a /run of its own
		socket = filepath.Join(h.node.RunDir(), strings.TrimPrefix(socket, "/run/"))
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	u, err := url.Parse(list[i].URI)
	if err != nil {
		h.t.Fatal(err)
	}
	cl, err := nbdtest.Connect(c, strings.TrimPrefix(u.Path, "/"), false)
	if err != nil {
		h.t.Fatal(err)
	}
	return client{cl}
}

// NBD commands and a flag, as the protocol document numbers them.
const (
	nbdRead, nbdWrite = 0, 1
	nbdFUA            = 1
)

// client is a disk over NBD.
type client struct{ *nbdtest.Client }

func (c client) write(off uint64, b []byte) error {
	r, err := c.Do(nbdFUA, nbdWrite, off, uint32(len(b)), b)
	if err == nil && r.Error != 0 {
		err = syscall.Errno(r.Error)
	}
	return err
}

func (c client) read(off uint64, b []byte) error {
	r, err := c.Do(0, nbdRead, off, uint32(len(b)), nil)
	if err != nil {
		return err
	}
	if r.Error != 0 {
		return syscall.Errno(r.Error)
	}
	copy(b, r.Data)
	return nil
}

// device is a disk of the kernel, opened without its cache.
type device struct{ *os.File }

// aligned has f use memory that the kernel takes for I/O without its cache.
func aligned(n int, f func([]byte) (int, error)) error {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(b) }()
	_, err = f(b)
	return err
}

func (d device) write(off uint64, b []byte) error {
	return aligned(len(b), func(m []byte) (int, error) {
		copy(m, b)
		return d.WriteAt(m, int64(off))
	})
}

func (d device) read(off uint64, b []byte) error {
	return aligned(len(b), func(m []byte) (int, error) {
		n, err := d.ReadAt(m, int64(off))
		copy(b, m)
		return n, err
	})
}
