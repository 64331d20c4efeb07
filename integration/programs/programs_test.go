// Package programs runs programs of others, which know RDMA by libibverbs and librdmacm, on IronWarp.
package programs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
)

var built = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "programs-"); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"build", "-o", filepath.Join(dir, "ironwarp"), "./cmd/ironwarp"},
		{"run", "./internal/tools/rdmalib", "-out", filepath.Join(dir, "rdma")},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := built(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// ironwarp returns the command, and skips where it can't be built with its libraries or a program is missing.
func ironwarp(t *testing.T, programs ...string) string {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s: apt-get install perftest rdmacm-utils ibverbs-utils fio", p)
		}
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("needs libibverbs-dev and librdmacm-dev")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "ironwarp")
}

// process is a program under `ironwarp run --lab`.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startOver(t, "tcp", args...)
}

// startOver starts a program whose streams are over a transport.
func startOver(t *testing.T, transport string, args ...string) *process {
	t.Helper()
	var bin string
	if args[0] == "ironwarp" { // itself, without run
		bin, args = ironwarp(t), args[1:]
	} else {
		bin, args = ironwarp(t, args[0]), append([]string{"run", "--lab", "--transport", transport, "--"}, args...)
	}
	p := &process{t: t, cmd: exec.CommandContext(t.Context(), bin, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// within waits for a program's end.
func (p *process) within(limit time.Duration) error {
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(limit):
		p.cmd.Process.Kill()
		<-p.done
		return context.DeadlineExceeded
	}
}

// listens waits until somebody listens on a TCP or UDP port of this host, without connecting to it.
func listens(t *testing.T, port uint16, p *process) {
	t.Helper()
	want := fmt.Sprintf(":%04X", port)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6", "/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
			b, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], want) && (f[3] == "0A" || strings.Contains(file, "udp")) {
					return
				}
			}
		}
		select {
		case err := <-p.done:
			p.done <- err
			t.Fatalf("%v has ended: %v\n%s", p.cmd.Args, err, p.out.String())
		default:
		}
	}
	t.Fatalf("%v does not listen on port %d", p.cmd.Args, port)
}

// ends waits for a program's end. It fails where that is not a good one, but for an error of rping's own: until release 59 its thread for events may find their channel
// closed when the program is about to end (rdma-core, f3ae6534).
func (p *process) ends() error {
	err := p.within(limit)
	if err != nil && strings.Contains(p.out.String(), "rdma_get_cm_event: Bad file descriptor") {
		return nil
	}
	return err
}

// ends checks that a server and a client have ended well, and that the client has said something.
func ends(t *testing.T, server, client *process, want string) {
	t.Helper()
	if err := client.ends(); err != nil || !strings.Contains(client.out.String(), want) {
		server.cmd.Process.Kill()
		<-server.done
		t.Fatalf("the client: %v\n%s\nthe server:\n%s", err, client.out.String(), server.out.String())
	}
	if err := server.ends(); err != nil {
		t.Errorf("the server: %v\n%s", err, server.out.String())
	}
}

const limit = 4 * time.Minute

// pairs are programs with a server and a client. By -F perftest makes its report also where it has not found out how fast the
// processor's clock is, as on a busy machine. PORT is a free port. A client's output has to contain want, if there is
// one; a server that serves on is stopped.
var pairs = []struct {
	name           string
	server, client string
	want           string
	serves         bool
	sctp           bool // their streams are over SCTP in UDP
}{
	{name: "perftest send_bw", server: "ib_send_bw -F -R -p PORT -n 1000", client: "ib_send_bw -F -R -p PORT -n 1000 127.0.0.1", want: "65536      1000"},
	{name: "perftest write_bw", server: "ib_write_bw -F -R -p PORT -n 1000", client: "ib_write_bw -F -R -p PORT -n 1000 127.0.0.1", want: "65536      1000"},
	{name: "perftest read_bw", server: "ib_read_bw -F -R -p PORT -n 1000", client: "ib_read_bw -F -R -p PORT -n 1000 127.0.0.1", want: "65536      1000"},
	{name: "perftest send_lat", server: "ib_send_lat -F -R -p PORT -n 500", client: "ib_send_lat -F -R -p PORT -n 500 127.0.0.1", want: "2       500"},
	{name: "perftest write_lat", server: "ib_write_lat -F -R -p PORT -n 500", client: "ib_write_lat -F -R -p PORT -n 500 127.0.0.1", want: "2       500"},
	{name: "perftest read_lat", server: "ib_read_lat -F -R -p PORT -n 500", client: "ib_read_lat -F -R -p PORT -n 500 127.0.0.1", want: "2       500"},
	{name: "perftest atomic_bw", server: "ib_atomic_bw -F -R -p PORT -n 500", client: "ib_atomic_bw -F -R -p PORT -n 500 127.0.0.1", want: "8          500"},
	{name: "perftest atomic_lat", server: "ib_atomic_lat -F -R -p PORT -n 500", client: "ib_atomic_lat -F -R -p PORT -n 500 127.0.0.1", want: "8       500"},
	{name: "perftest atomic compare and swap", server: "ib_atomic_bw -F -R -A CMP_AND_SWAP -p PORT -n 500", client: "ib_atomic_bw -F -R -A CMP_AND_SWAP -p PORT -n 500 127.0.0.1", want: "8          500"},
	{name: "perftest all sizes", server: "ib_write_bw -F -R -a -p PORT -n 20", client: "ib_write_bw -F -R -a -p PORT -n 20 127.0.0.1", want: "8388608    20"},
	{name: "perftest events, send_lat", server: "ib_send_lat -F -R -e -p PORT -n 500", client: "ib_send_lat -F -R -e -p PORT -n 500 127.0.0.1", want: "2       500"},
	{name: "perftest events, send_bw", server: "ib_send_bw -F -R -e -p PORT -n 500", client: "ib_send_bw -F -R -e -p PORT -n 500 127.0.0.1", want: "65536      500"},
	{name: "perftest inline", server: "ib_write_lat -F -R -I 128 -p PORT -n 500", client: "ib_write_lat -F -R -I 128 -p PORT -n 500 127.0.0.1", want: "2       500"},
	{name: "perftest 16 queue pairs", server: "ib_write_bw -F -R -q 16 -p PORT -n 200", client: "ib_write_bw -F -R -q 16 -p PORT -n 200 127.0.0.1", want: "65536      3200"},
	{name: "perftest 4 queue pairs, sends", server: "ib_send_bw -F -R -q 4 -p PORT -n 1000", client: "ib_send_bw -F -R -q 4 -p PORT -n 1000 127.0.0.1", want: "65536      4000"},
	{name: "perftest both ways", server: "ib_send_bw -F -R -b -p PORT -n 500", client: "ib_send_bw -F -R -b -p PORT -n 500 127.0.0.1", want: "65536      500"},
	{name: "perftest shared receive queue", server: "ib_send_bw -F -R --use-srq -p PORT -n 1000", client: "ib_send_bw -F -R --use-srq -p PORT -n 1000 127.0.0.1", want: "65536      1000"},
	{name: "rping", server: "rping -s -a 127.0.0.1 -p PORT -C 20", client: "rping -c -v -a 127.0.0.1 -p PORT -C 20", want: "rdma-ping-19"},
	{name: "rping, persistent server", server: "rping -s -P -S 4096 -a 127.0.0.1 -p PORT", client: "rping -c -v -a 127.0.0.1 -p PORT -C 3 -S 4096", want: "rdma-ping-2", serves: true},
	{name: "rping, of ironwarp rping", server: "ironwarp rping -s -a 127.0.0.1 -p PORT", client: "rping -c -v -a 127.0.0.1 -p PORT -C 3", want: "rdma-ping-2"},
	{name: "ironwarp rping, of rping", server: "rping -s -v -a 127.0.0.1 -p PORT -C 3", client: "ironwarp rping -c -v -V -a 127.0.0.1 -p PORT -C 3", want: "rdma-ping-2"},
	{name: "rping over IPv6", server: "rping -s -a ::1 -p PORT -C 3", client: "rping -c -v -a ::1 -p PORT -C 3", want: "rdma-ping-2"},
	{name: "rdma_server", server: "rdma_server -p PORT", client: "rdma_client -s 127.0.0.1 -p PORT", want: "rdma_client: end 0"},
	{name: "rdma_xserver", server: "rdma_xserver -p PORT -c r", client: "rdma_xclient -s 127.0.0.1 -p PORT -c r", want: "rdma_xclient: end 0"},
	{name: "ucmatose", server: "ucmatose -c 8 -p PORT", client: "ucmatose -c 8 -s 127.0.0.1 -p PORT", want: "return status 0"},
	{name: "ucmatose, 300 connections at once", server: "ucmatose -c 300 -p PORT", client: "ucmatose -c 300 -s 127.0.0.1 -p PORT", want: "return status 0"},
	{name: "ucmatose, migrated", server: "ucmatose -c 4 -m -p PORT", client: "ucmatose -c 4 -m -s 127.0.0.1 -p PORT", want: "return status 0"},
	{name: "cmtime", server: "cmtime -c 20 -p PORT", client: "cmtime -c 20 -s 127.0.0.1 -p PORT", want: "connect", serves: true},
	{name: "rstream", server: "rstream -p PORT -S 65536 -C 200 -T v", client: "rstream -s 127.0.0.1 -p PORT -S 65536 -C 200 -T v", want: "64k"},
	{name: "rstream, all its tests", server: "rstream -p PORT", client: "rstream -s 127.0.0.1 -p PORT", want: "1m"},
	{name: "over SCTP in UDP, perftest write_bw", sctp: true, server: "ib_write_bw -F -R -p PORT -n 1000", client: "ib_write_bw -F -R -p PORT -n 1000 127.0.0.1", want: "65536      1000"},
	{name: "over SCTP in UDP, perftest send_bw both ways", sctp: true, server: "ib_send_bw -F -R -b -p PORT -n 500", client: "ib_send_bw -F -R -b -p PORT -n 500 127.0.0.1", want: "65536      500"},
	{name: "over SCTP in UDP, rping", sctp: true, server: "rping -s -a 127.0.0.1 -p PORT -C 20", client: "rping -c -v -a 127.0.0.1 -p PORT -C 20", want: "rdma-ping-19"},
	{name: "over SCTP in UDP, rping over IPv6", sctp: true, server: "rping -s -a ::1 -p PORT -C 3", client: "rping -c -v -a ::1 -p PORT -C 3", want: "rdma-ping-2"},
	{name: "over SCTP in UDP, ucmatose", sctp: true, server: "ucmatose -c 8 -p PORT", client: "ucmatose -c 8 -s 127.0.0.1 -p PORT", want: "return status 0"},
	{name: "over SCTP in UDP, rstream", sctp: true, server: "rstream -p PORT -S 65536 -C 200 -T v", client: "rstream -s 127.0.0.1 -p PORT -S 65536 -C 200 -T v", want: "64k"},
	{name: "riostream", server: "riostream -p PORT -S 65536 -C 200 -T v", client: "riostream -s 127.0.0.1 -p PORT -S 65536 -C 200 -T v", want: "64k"},
}

// TestPrograms: what others wrote, unchanged, connects, moves data and ends well, and reaches nobody but whom it may.
func TestPrograms(t *testing.T) {
	if os.Getenv("IRONWARP_VM_CACHE") == "" && os.Getenv("IRONWARP_PROGRAMS") == "" {
		t.Skip("make interop runs it; alone it is run with IRONWARP_PROGRAMS=1")
	}
	t.Run("device", device)
	for _, x := range own {
		t.Run(x.name, func(t *testing.T) {
			t.Attr("row", "a program of our own: "+x.row)
			allIsWell(t, x.name+".c", nil, x.args...)
		})
	}
	t.Run("plugin", func(t *testing.T) {
		t.Attr("row", "a program of our own: plugins that are loaded, used and unloaded again and again, from a program without RDMA, also with signals")
		allIsWell(t, "plugin.c", nil, plugins(t)...)
	})
	t.Run("AddressSanitizer", sanitized)
	t.Run("file copied", fileCopied)
	t.Run("sockets", socketsAreRDMA)
	t.Run("fio", fioVerified)
	t.Run("guest migrates", guestMigrates)
	t.Run("libiscsi", libiscsiOverISER)
	t.Run("other hosts are not reached", otherHostsAreNotReached)
	t.Run("not without run", notWithoutRun)
	for _, x := range pairs {
		t.Run(x.name, func(t *testing.T) {
			t.Attr("row", x.name+": "+strings.NewReplacer(" -F", "", " -p PORT", "", " 127.0.0.1", "").Replace(x.client))
			port := iwarptest.FreePort(t)
			args := func(line string) []string {
				return strings.Fields(strings.ReplaceAll(line, "PORT", fmt.Sprint(port)))
			}
			over := "tcp"
			if x.sctp {
				over = "sctp-udp"
			}
			server := startOver(t, over, args(x.server)...)
			listens(t, port, server)
			client := startOver(t, over, args(x.client)...)
			if x.serves {
				if err := client.within(limit); err != nil || !strings.Contains(client.out.String(), x.want) {
					t.Errorf("the client: %v\n%s\nthe server:\n%s", err, client.out.String(), server.out.String())
				}
				return
			}
			ends(t, server, client, x.want)
		})
	}
}

// device: the tools of libibverbs see an RNIC.
func device(t *testing.T) {
	t.Attr("row", "ibv_devinfo: an RNIC, its port and its limits")
	p := start(t, "ibv_devinfo", "-v")
	if err := p.within(limit); err != nil {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	for _, want := range []string{"hca_id:\tironwarp0", "iWARP (1)", "PORT_ACTIVE", "link_layer:\t\tEthernet", "max_sge:\t\t\t30", "ATOMIC_HCA"} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, p.out.String())
		}
	}
}

// own are programs of our own, in testdata.
var own = []struct {
	name, row string
	args      []string
	sanitized []string // its arguments under AddressSanitizer, with which it is slow
}{
	{name: "verbs", row: "ibv_wr_*, extended and resized completion queues, windows, shared receive queues, lists of 30, statuses"},
	{name: "stress", row: "64 threads that post to one queue pair, fork before and after the device's use, an exit in the middle"},
	{name: "churn", row: "10,000 connects and disconnects, after which no files, threads and memory are left", sanitized: []string{"500"}},
	{name: "many", row: "2,000 queue pairs at once that all move data"},
	{name: "signals", row: "handlers set before the device's first use and after it, timers without SA_RESTART, a fault, SIGPIPE, sigtimedwait"},
	{name: "exits", row: "ends in the middle of everything: exit in another thread and in a handler, main's return, handlers of atexit"},
}

// allIsWell runs a program of our own, by the command or in an environment.
func allIsWell(t *testing.T, source string, env []string, args ...string) {
	t.Helper()
	bin := ironwarp(t, "gcc")
	program := compiled(t, source, "program", "-lrdmacm", "-libverbs", "-lpthread")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append([]string{"run", "--lab", program}, args...)...)
	if env != nil {
		cmd = exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), env...)
	}
	// A child that is left has no part in the output.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	text, _ := os.ReadFile(out.Name())
	if err != nil || !strings.Contains(string(text), "all is well") {
		t.Errorf("%v\n%s", err, text)
	}
}

// compiled is a program of testdata, or a library.
func compiled(t *testing.T, source, name string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	args := append([]string{"-Wall", "-g", "-Wl,--as-needed", "-o", file, filepath.Join("testdata", source)}, flags...)
	if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// plugins are those of plugin.c: one with librdmacm, and one without.
func plugins(t *testing.T) []string {
	t.Helper()
	ironwarp(t, "gcc")
	return []string{
		compiled(t, "plugin.c", "plugin.so", "-DPLUGIN", "-shared", "-fPIC", "-lrdmacm", "-libverbs"),
		compiled(t, "plugin.c", "bare.so", "-DBARE", "-shared", "-fPIC", "-libverbs"),
	}
}

// sanitized: the C library does no harm to memory, whatever programs do.
func sanitized(t *testing.T) {
	t.Attr("row", "all of these, with AddressSanitizer in libibverbs.so.1")
	ironwarp(t, "gcc")
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "run", "./internal/tools/rdmalib", "-sanitize", "address", "-out", dir)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lib, err := exec.CommandContext(t.Context(), "gcc", "-print-file-name=libasan.so").Output()
	if err != nil {
		t.Skipf("needs gcc: %v", err)
	}
	// What ends in the middle gives nothing back; what is freed is kept no longer than memory is measured.
	env := []string{"LD_LIBRARY_PATH=" + dir, "IRONWARP_LAB=", "LD_PRELOAD=" + strings.TrimSpace(string(lib)), "ASAN_OPTIONS=quarantine_size_mb=1"}
	for _, x := range own {
		t.Run(x.name, func(t *testing.T) {
			env := env
			if x.name == "exits" {
				env = append(slices.Clone(env), "ASAN_OPTIONS=detect_leaks=0")
			}
			args := x.args
			if x.sanitized != nil {
				args = x.sanitized
			}
			allIsWell(t, x.name+".c", env, args...)
		})
	}
	t.Run("plugin", func(t *testing.T) { // librdmacm gives nothing back when it is unloaded
		allIsWell(t, "plugin.c", append(slices.Clone(env), "ASAN_OPTIONS=detect_leaks=0"), plugins(t)...)
	})
}

// fileCopied: rcopy, over rsockets, copies a file as it is.
func fileCopied(t *testing.T) {
	t.Attr("row", "rcopy: a file comes as it is")
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	data := bytes.Repeat([]byte("0123456789abcdef!"), 300_000)
	if err := os.WriteFile(source, data, 0o600); err != nil {
		t.Fatal(err)
	}
	port := iwarptest.FreePort(t)
	server := start(t, "rcopy", "-p", fmt.Sprint(port))
	listens(t, port, server)
	client := start(t, "rcopy", source, "127.0.0.1:"+target, "-p", fmt.Sprint(port))
	if err := client.within(limit); err != nil {
		t.Fatalf("%v\n%s", err, client.out.String())
	}
	if got, err := os.ReadFile(target); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes have come, %v", len(got), err)
	}
}

// socketsAreRDMA: curl, whose sockets librspreload makes RDMA's, gets a file as it is, from another such program.
func socketsAreRDMA(t *testing.T) {
	t.Attr("row", "curl with librspreload: an HTTP server's file comes as it is, and by RDMA")
	const preload = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
	if _, err := os.Stat(preload); err != nil {
		t.Skipf("needs librdmacm1's librspreload: %v", err)
	}
	ironwarp(t, "curl", "gcc")
	dir := t.TempDir()
	source, target, program := filepath.Join(dir, "source"), filepath.Join(dir, "target"), filepath.Join(dir, "serve")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-Wall", "-o", program, "testdata/serve.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data := bytes.Repeat([]byte("0123456789abcdef!"), 300_000)
	if err := os.WriteFile(source, data, 0o600); err != nil {
		t.Fatal(err)
	}
	port := iwarptest.FreePort(t)
	server := start(t, "env", "LD_PRELOAD="+preload, program, fmt.Sprint(port), source)
	listens(t, port, server)
	between, first := startsSeen(t, port)
	client := start(t, "env", "LD_PRELOAD="+preload, "curl", "--silent", "--output", target, "http://"+between+"/")
	if err := client.within(limit); err != nil {
		t.Fatalf("%v\n%s\n%s", err, client.out.String(), server.out.String())
	}
	if got, err := os.ReadFile(target); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes have come, %v", len(got), err)
	}
	if got := <-first; got != "MPA ID Req Frame" { // RFC 5044 section 7.1.1
		t.Errorf("the connection begins with %q", got)
	}
}

// startsSeen lets one connection through to a port of this host, and tells how its client begins.
func startsSeen(t *testing.T, port uint16) (address string, first <-chan string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	seen := make(chan string, 1)
	go func() {
		defer close(seen)
		client, err := ln.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return
		}
		defer server.Close()
		begin := make([]byte, 16)
		n, _ := io.ReadFull(client, begin)
		seen <- string(begin[:n])
		server.Write(begin[:n])
		go io.Copy(server, client)
		io.Copy(client, server)
	}()
	return ln.Addr().String(), seen
}

// fioVerified: fio's rdma engine.
func fioVerified(t *testing.T) {
	t.Attr("row", "fio: ioengine=rdma, verb=write")
	port := fmt.Sprint(iwarptest.FreePort(t))
	server := start(t, "fio", "--name=server", "--ioengine=rdma", "--port="+port, "--bs=64k", "--size=32m", "--iodepth=16", "--rw=read")
	n := 0
	fmt.Sscan(port, &n)
	listens(t, uint16(n), server)
	client := start(t, "fio", "--name=client", "--ioengine=rdma", "--hostname=127.0.0.1", "--port="+port, "--verb=write", "--bs=64k", "--size=32m", "--iodepth=16", "--rw=write")
	if err := client.within(limit); err != nil {
		server.cmd.Process.Kill()
		<-server.done
		t.Fatalf("%v\n%s\n%s", err, client.out.String(), server.out.String())
	}
	if err := server.within(limit); err != nil {
		t.Errorf("the server: %v\n%s", err, server.out.String())
	}
}

// otherHostsAreNotReached: what was not named is not reached, and the program is told so by an event.
func otherHostsAreNotReached(t *testing.T) {
	p := start(t, "rping", "-c", "-a", "192.0.2.1", "-p", "7174", "-C", "1")
	err := p.within(limit)
	if err == nil || !strings.Contains(p.out.String(), "error -13") && !strings.Contains(p.out.String(), "ADDR_ERROR") {
		t.Errorf("rping to a host that was not named: %v\n%s", err, p.out.String())
	}
}

// notWithoutRun: nobody gets a device that nobody has said the limits of.
func notWithoutRun(t *testing.T) {
	bin := ironwarp(t, "rping")
	cmd := exec.CommandContext(t.Context(), "rping", "-c", "-a", "127.0.0.1", "-C", "1")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(filepath.Dir(bin), "rdma"))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "ironwarp run") {
		t.Errorf("%v: %s", err, out)
	}
}
