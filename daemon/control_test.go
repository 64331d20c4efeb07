package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// asUser makes the test binary ask the socket in it for its status, see
// askAsUser.
const asUser = "IRONWARP_TEST_ASK"

func askAsUser() int {
	_, err := api.NewClient(os.Getenv(asUser)).Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("answered")
	return 0
}

// nobody is a user without rights.
const nobody = 65534

func TestControlSocketAnswersRootOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	h := newHost(t, "")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary has to be reachable for the other user.
	bin := filepath.Join(h.dir, "test")
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(bin, data, 0o755), os.Chmod(h.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(h.dir, "run/ironwarp.sock")
	askBy := func(by *syscall.SysProcAttr) (string, error) {
		cmd := exec.Command(bin)
		cmd.Env = []string{asUser + "=" + socket}
		cmd.Dir = "/"
		cmd.SysProcAttr = by
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("another user was answered: %s", out)
		}
		return string(out), err
	}
	ask := func() string {
		out, _ := askBy(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}})
		return out
	}
	if out := ask(); !strings.Contains(out, "permission denied") || !strings.Contains(out, "sudo") {
		t.Errorf("by the socket's mode: %s", out)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if out := ask(); !strings.Contains(out, "user id 65534 may not use the control socket") || !strings.Contains(out, "sudo") {
		t.Errorf("by the daemon: %s", out)
	}
	// Whoever makes a user namespace is root in it, and himself out of it.
	mine := []syscall.SysProcIDMap{{ContainerID: 0, HostID: carol, Size: 1}}
	out, err := askBy(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mine, GidMappings: mine, Credential: &syscall.Credential{}})
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Logf("there are no user namespaces here: %v", err)
	} else if !strings.Contains(out, "user id 53103 may not use the control socket") {
		t.Errorf("root of a user namespace: %s", out)
	}
	h.status()
}

func TestMalformedRequestsGetAnErrorAndNothingElse(t *testing.T) {
	h := newHost(t, "")
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", filepath.Join(h.dir, "run/ironwarp.sock"))
	}}}
	defer client.CloseIdleConnections()
	for _, tc := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/", "", http.StatusNotFound},
		{"GET", "/v1/nothing", "", http.StatusNotFound},
		{"PUT", "/v1/status", "", http.StatusNotFound},
		{"GET", "/v1/peers/none", "", http.StatusNotFound},
		{"DELETE", "/v1/exports/none", "", http.StatusNotFound},
		{"DELETE", "/v1/attachments/a/b", "", http.StatusNotFound},
		{"DELETE", "/v1/sas?peer=none", "", http.StatusNotFound},
		{"GET", "/v1/ike?peer=none", "", http.StatusNotFound},
		{"DELETE", "/v1/ike?peer=none", "", http.StatusNotFound},
		{"DELETE", "/v1/ike", "", http.StatusNotFound},
		{"POST", "/v1/sas/rekey", `{"peer": "none"}`, http.StatusNotFound},
		{"POST", "/v1/ike/rekey", "{}", http.StatusNotFound},
		{"POST", "/v1/ike/rekey", `{"nonsense": 1}`, http.StatusBadRequest},
		{"POST", "/v1/sas/watch", `{"peer": "none"}`, http.StatusOK},
		{"POST", "/v1/peers", "", http.StatusBadRequest},
		{"POST", "/v1/peers", "{", http.StatusBadRequest},
		{"POST", "/v1/peers", `{"nonsense": 1}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2"} {}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "connections": -1}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "crc": "maybe"}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "protection": "hope"}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "psk_file": "/x", "gateway": "here"}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "psk_file": "/x", "child_sas": 17}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "psk_file": "/x", "idle_reap": "1s"}`, http.StatusBadRequest},
		{"POST", "/v1/peers", `{"name": "x", "address": "192.0.2.2", "psk_file": "/x", "mode": "beet"}`, http.StatusBadRequest},
		{"POST", "/v1/exports", `{"name": "x", "path": "relative"}`, http.StatusBadRequest},
		{"POST", "/v1/attachments", `{"peer": "x", "export": "y", "timeout_seconds": -1}`, http.StatusOK},
		{"POST", "/v1/ping", `{"peer": "x", "interval_seconds": 1e99}`, http.StatusOK},
		{"POST", "/v1/ping", strings.Repeat(" ", maxRequest+1), http.StatusBadRequest},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://x"+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(resp.Body); err != nil {
			t.Error(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.status || !strings.Contains(b.String(), `"code":`) {
			t.Errorf("%s %s %.60s: %s %s, want %d with an error", tc.method, tc.path, tc.body, resp.Status, b.String(), tc.status)
		}
	}
	if st := h.status(); len(st.Peers)+len(st.Exports) != 0 {
		t.Errorf("something was set up: %+v", st)
	}
}

func TestSecondDaemonIsRefusedAndTheFirstKeepsRunning(t *testing.T) {
	h := newHost(t, "")
	_, err := Start(t.Context(), h.options())
	says(t, err, api.CodeInUse, "another ironwarp daemon (process "+fmt.Sprint(os.Getpid())+") uses the state directory", "ironwarp status", "systemctl stop")
	other := shortDir(t)
	for _, conf := range []string{
		fmt.Sprintf("state_dir: %s/s\nruntime_dir: %s/run\n", other, h.dir),
		fmt.Sprintf("state_dir: %s/state\nruntime_dir: %s/r\n", h.dir, other),
		fmt.Sprintf("state_dir: %s/s\nruntime_dir: %s/r\ncontrol_socket: %s/run/ironwarp.sock\n", other, other, h.dir),
	} {
		opt := h.options()
		opt.Config = filepath.Join(other, "x.yaml")
		if err := os.WriteFile(opt.Config, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), opt)
		says(t, err, api.CodeInUse)
	}
	h.status()
}

func TestStateAndRuntimeDirectoryMayBeOne(t *testing.T) {
	h := newHost(t, "")
	h.stop()
	for _, dirs := range []string{"state_dir: run\nruntime_dir: run\n", "state_dir: link\nruntime_dir: run\n"} {
		if err := os.Symlink("run", filepath.Join(h.dir, "link")); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		h.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d}\n%s", h.port, dirs))
		h.start()
		_, err := Start(t.Context(), h.options())
		says(t, err, api.CodeInUse, "another ironwarp daemon")
		h.status()
		h.stop()
	}
}

func TestBrokenStateFileIsNamed(t *testing.T) {
	h := newHost(t, "")
	h.stop()
	for _, text := range []string{"{", `{"version": 99}`} {
		h.write("state/attachments.json", text)
		_, err := Start(t.Context(), h.options())
		if err == nil || !strings.Contains(err.Error(), "attachments.json") || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestMetricsAreServedWhenAskedFor(t *testing.T) {
	port := iwarptest.FreePort(t)
	h := newHost(t, fmt.Sprintf("metrics: {listen: \"127.0.0.1:%d\"}\n", port))
	other := newHost(t, "")
	link(t, h, other)
	get := func() string {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var b bytes.Buffer
		if _, err := b.ReadFrom(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s, %v: %s", resp.Status, err, b.String())
		}
		return b.String()
	}
	for _, want := range []string{`ironwarp_info{version="test"} 1`, `ironwarp_peer_usable{peer="beta",state="up"} 1`,
		`ironwarp_peer_transport{configured="tcp",peer="beta",transport="tcp"} 1`, `ironwarp_transport_fallbacks_total{peer="beta"} 0`,
		`ironwarp_rnic_resource_limit{kind="device",principal="",resource="streams"} 1024`, `ironwarp_rnic_resource_used{kind="ulp",principal="exports",resource="streams"} 0`,
		`ironwarp_rnic_resource_share{kind="peer",principal="beta",resource="streams"} 256`, "ironwarp_refused_connections_total 0", "go_goroutines"} {
		if text := get(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, err := h.api.Block(t.Context(), api.BlockRequest{Peer: "beta"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ironwarp_peer_blocked{by="daemon",peer="beta"} 1`, `ironwarp_rnic_events_total{event="blocked",peer="beta"} 1`} {
		if text := get(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	opt := other.options()
	opt.Config = filepath.Join(other.dir, "second.yaml")
	other.write("second.yaml", fmt.Sprintf("state_dir: s2\nruntime_dir: r2\nmetrics: {listen: \"127.0.0.1:%d\"}\n", port))
	_, err := Start(t.Context(), opt)
	says(t, err, api.CodeInUse, "cannot serve metrics", "ss -ltnp")
}

func TestSystemdIsToldReadyAndStopping(t *testing.T) {
	sd := newSystemd(t)
	t.Setenv("WATCHDOG_USEC", "60000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	h := newHost(t, "")
	// The watchdog begins before the daemon is ready.
	other := func() (m string) {
		for m = sd.next(); m == "WATCHDOG=1"; m = sd.next() {
		}
		return m
	}
	if m := other(); m != "READY=1" {
		t.Errorf("first %q", m)
	}
	if m := sd.next(); m != "WATCHDOG=1" {
		t.Errorf("then %q", m)
	}
	h.stop()
	if m := other(); m != "STOPPING=1" {
		t.Errorf("last %q", m)
	}
}
