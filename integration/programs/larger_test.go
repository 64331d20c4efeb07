package programs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi/libiscsitest"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// monitor is QEMU's, by QMP.
type monitor struct {
	t  *testing.T
	nc net.Conn
	r  *bufio.Reader
}

func openMonitor(t *testing.T, path string, p *process) *monitor {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if nc, err := net.Dial("unix", path); err == nil {
			t.Cleanup(func() { nc.Close() })
			nc.SetDeadline(time.Now().Add(limit))
			m := &monitor{t, nc, bufio.NewReader(nc)}
			m.do("qmp_capabilities", nil, nil)
			return m
		}
	}
	t.Fatalf("QEMU does not open its monitor: %s", p.out.String())
	return nil
}

// do carries a command out, and reads what it returns into result.
func (m *monitor) do(command string, arguments map[string]any, result any) {
	m.t.Helper()
	line := map[string]any{"execute": command}
	if arguments != nil {
		line["arguments"] = arguments
	}
	if err := json.NewEncoder(m.nc).Encode(line); err != nil {
		m.t.Fatal(err)
	}
	for {
		b, err := m.r.ReadBytes('\n')
		if err != nil {
			m.t.Fatalf("%s: %v", command, err)
		}
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(b, &answer); err != nil {
			m.t.Fatal(err)
		}
		switch {
		case answer.Error != nil:
			m.t.Fatalf("%s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			if result != nil {
				if err := json.Unmarshal(answer.Return, result); err != nil {
					m.t.Fatal(err)
				}
			}
			return
		}
	}
}

// guestMigrates: QEMU moves a running guest over RDMA.
func guestMigrates(t *testing.T) {
	t.Attr("row", "qemu-system-x86_64: migrate rdma: of a running guest")
	dir, port := t.TempDir(), iwarptest.FreePort(t)
	machine := func(name string, more ...string) (*process, *monitor) {
		socket := filepath.Join(dir, name)
		p := start(t, append([]string{"qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "pc,accel=tcg", "-m", "64", "-qmp", "unix:" + socket + ",server,nowait"}, more...)...)
		return p, openMonitor(t, socket, p)
	}
	to := fmt.Sprintf("rdma:127.0.0.1:%d", port)
	q, there := machine("there", "-incoming", to)
	p, here := machine("here")
	here.do("migrate", map[string]any{"uri": to}, nil)
	var info, status struct{ Status string }
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); info.Status != "completed"; <-tick.C {
		here.do("query-migrate", nil, &info)
		if info.Status == "failed" || time.Now().After(end) {
			t.Fatalf("the migration has %s\n%s\nthe host that it goes to:\n%s", info.Status, p.out.String(), q.out.String())
		}
	}
	for end := time.Now().Add(limit); status.Status != "running"; <-tick.C {
		there.do("query-status", nil, &status)
		if time.Now().After(end) {
			t.Fatalf("the guest that was moved is %s", status.Status)
		}
	}
}

// noDataOut is a test about Data-Out PDUs, of which iSER has none.
const noDataOut = "iSCSI.iSCSIdatasn.iSCSIDataSnInvalid"

// libiscsiOverISER: libiscsi, on IronWarp's libibverbs, passes with our target what tgt passes.
func libiscsiOverISER(t *testing.T) {
	t.Attr("row", "libiscsi's suite over iser:// with our target: all tests that tgt passes, but for the one that is about Data-Out PDUs")
	bin := ironwarp(t, "iscsi-test-cu", "gcc")
	dir := t.TempDir()
	suite, err := libiscsitest.Find()
	if err != nil {
		t.Fatal(err)
	}
	suite.Preload = filepath.Join(dir, "interpose.so")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", suite.Preload, "../initiators/testdata/interpose.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names, err := os.ReadFile("../initiators/testdata/tgt.txt")
	if err != nil {
		t.Fatal(err)
	}
	disk, config := filepath.Join(dir, "disk"), filepath.Join(dir, "ironwarp.yaml")
	port := iwarptest.FreePort(t)
	text := fmt.Sprintf("listen: {port: %d, addresses: [127.0.0.1]}\npeers: [{name: initiator, address: 127.0.0.1, port: %d, protection: loopback}]\n"+
		"targets: [{name: disk, iqn: %q, port: %d, addresses: [127.0.0.1], peers: [initiator], luns: [{number: 0, path: %q}]}]\nstate_dir: %q\nruntime_dir: %q\n",
		iwarptest.FreePort(t), iwarptest.FreePort(t), "iqn.2026-01.org.ironwarp:disk", port, disk, filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 64<<20), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	d := &process{t: t, cmd: exec.Command(bin, "daemon", "--config", config), done: make(chan error, 1)}
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.done <- d.cmd.Wait() }()
	t.Cleanup(func() {
		d.cmd.Process.Signal(os.Interrupt)
		d.within(limit)
	})
	listens(t, port, d)
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(filepath.Dir(bin), "rdma"))
	t.Setenv("IRONWARP_LAB", "")
	url := fmt.Sprintf("iser://127.0.0.1:%d/iqn.2026-01.org.ironwarp:disk/0", port)
	passed := 0
	for name := range strings.FieldsSeq(string(names)) {
		if name == noDataOut {
			continue
		}
		if v, out := suite.Run(t.Context(), name, url, limit); v == libiscsitest.Passed {
			passed++
		} else {
			t.Errorf("%s: %s\n%s", name, v, out)
		}
	}
	t.Attr("detail", fmt.Sprintf("%d tests", passed))
}
