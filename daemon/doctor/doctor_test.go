package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// examine writes a configuration and looks at the host with it.
func examine(t *testing.T, files map[string]string) map[string]Finding {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "$DIR", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	found := map[string]Finding{}
	for _, f := range Run(t.Context(), Options{Config: filepath.Join(dir, "ironwarp.yaml"), Named: true, Version: "test"}) {
		if f.Level != OK && f.Found == "" {
			t.Errorf("%s: %s, but not what was found", f.What, f.Level)
		}
		if f.Level == Fail && len(f.Do) == 0 {
			t.Errorf("%s fails, and nothing says what to do: %s", f.What, f.Found)
		}
		found[f.What] = f
	}
	return found
}

// What is to be done is a command or a sentence, wherever it comes from.
func TestAdviceIsACommandOrASentence(t *testing.T) {
	for in, want := range map[string]string{
		"ironwarp reload":                      "ironwarp reload",
		"the daemon keeps trying":              "The daemon keeps trying.",
		"`ironwarp doctor` says what is there": "`ironwarp doctor` says what is there.",
		"Correct the file.":                    "Correct the file.",
		"systemctl restart ironwarp":           "systemctl restart ironwarp",
	} {
		x := &examination{}
		x.addFinding(Finding{Do: []string{in}})
		if got := x.out[0].Do[0]; got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// fakeDaemon answers with a status at the socket that it returns.
func fakeDaemon(t *testing.T, st api.Status) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "iw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(answer) })}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

func TestPathsAndStorageThatKeepSilentAreShown(t *testing.T) {
	narrow := api.Peer{PeerSpec: api.PeerSpec{Name: "beta", Address: "192.0.2.2"}, NarrowPath: &api.NarrowPath{Transport: "tcp", CarriesBytes: 1276, LostBytes: 1400}}
	st := api.Status{Info: api.Info{Version: "test", PID: os.Getpid()}, Exports: []api.Export{{ExportSpec: api.ExportSpec{Name: "disk"}, Warning: &api.Error{Message: "it goes on", Fix: "tune2fs -e remount-ro /dev/sdx"}}}, Peers: []api.Peer{narrow, {PeerSpec: api.PeerSpec{Name: "gamma"}}}}
	found := map[string]Finding{}
	for _, f := range Run(t.Context(), Options{Config: filepath.Join(t.TempDir(), "none.yaml"), Socket: fakeDaemon(t, st), Version: "test"}) {
		found[f.What] = f
	}
	check(t, found, "path to beta", Warn, "drops packets of 1400 bytes without a word", "1276 get through", "ip route get 192.0.2.2", "set the MTU", "on both hosts")
	check(t, found, "export disk", Warn, "it goes on", "tune2fs -e remount-ro /dev/sdx")
	if f, ok := found["path to gamma"]; ok {
		t.Errorf("%+v", f)
	}
}

// The configuration is that of the daemon that runs, unless another one is named.
func TestConfigurationIsThatOfTheDaemonThatRuns(t *testing.T) {
	dir := t.TempDir()
	running := filepath.Join(dir, "running.yaml")
	if err := os.WriteFile(running, []byte("listen: {port: 7999}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := fakeDaemon(t, api.Status{Info: api.Info{Version: "test", PID: os.Getpid(), Config: running}})
	other := filepath.Join(dir, "other.yaml")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for named, want := range map[bool]string{false: running, true: other} {
		found := map[string]Finding{}
		for _, f := range Run(t.Context(), Options{Config: other, Named: named, Socket: socket, Version: "test"}) {
			found[f.What] = f
		}
		if f := found["configuration"]; !strings.HasPrefix(f.Found, want) {
			t.Errorf("named %v: %s, want %s", named, f.Found, want)
		}
		if f := found["daemon"]; named != (f.Level == Warn && strings.Contains(f.Found, running)) {
			t.Errorf("named %v: %+v", named, f)
		}
		var r unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
			t.Fatal(err)
		}
		// This process plays the daemon.
		check(t, found, "file descriptors", found["file descriptors"].Level, fmt.Sprintf("the daemon may open %d", r.Cur))
	}
}

func TestKernelESPThatTheKernelLacksIsNotFine(t *testing.T) {
	if !errors.Is(esp.ProbeKernel(), esp.ErrNoKernel) {
		t.Skip("this kernel has ESP, or this user may not look")
	}
	peers := []config.Peer{{Name: "beta", Protection: config.ProtectIPsec}}
	x := &examination{cfg: &config.Config{Peers: peers}, ike: &ike.Status{DataPlane: esp.Kernel, Reason: "by default"}}
	x.dataPlane()
	check(t, map[string]Finding{"data plane": x.out[0]}, "data plane", Fail, "this kernel has none", "modprobe esp4")
}

const base = "runtime_dir: $DIR/run\nipsec: {vici: \"unix://$DIR/no-charon\"}\n"

func check(t *testing.T, found map[string]Finding, what, level string, words ...string) {
	t.Helper()
	f, ok := found[what]
	if !ok {
		t.Errorf("nothing about %s", what)
		return
	}
	text := f.Found + " " + f.Instead + " " + strings.Join(f.Do, " ")
	if f.Level != level {
		t.Errorf("%s is %s, want %s: %s", what, f.Level, level, text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q: %s", what, w, text)
		}
	}
}

func TestHostWithoutPeersLacksNothing(t *testing.T) {
	found := examine(t, map[string]string{"ironwarp.yaml": base})
	check(t, found, "configuration", Note, "0 peers", "ironwarp peer add")
	check(t, found, "daemon", Warn, "the socket does not exist", "systemctl start ironwarp")
	check(t, found, "strongSwan", Note)
	for _, f := range found {
		if f.Level == Fail {
			t.Errorf("%+v", f)
		}
	}
}

func TestPeerMakesWhatItNeedsAFailure(t *testing.T) {
	found := examine(t, map[string]string{
		"ironwarp.yaml":     base,
		"peers.d/beta.yaml": "name: beta\naddress: 192.0.2.2\npsk_file: beta.psk\n",
		"beta.psk":          "0123456789abcdef",
	})
	check(t, found, "strongSwan", Fail, "strongSwan")
	check(t, found, "secrets", Fail, "peer beta: secret file refused", "mode 0644", "ironwarp reload")
	if strings.Contains(found["secrets"].Found, "0123456789abcdef") {
		t.Error("the secret shows")
	}
}

func TestPlaintextPeerIsAWarning(t *testing.T) {
	found := examine(t, map[string]string{
		"ironwarp.yaml":    base,
		"peers.d/lab.yaml": "name: lab\naddress: 192.0.2.2\ninsecure_plaintext: true\n",
	})
	check(t, found, "configuration", Warn, "lab has insecure_plaintext: true")
	check(t, found, "strongSwan", Note, "loopback peers only")
}

func TestPluginsForCertificates(t *testing.T) {
	whole := []string{"x509", "pem", "pubkey", "constraints", "revocation", "curl"}
	cert := config.Peer{Name: "beta", Protection: config.ProtectIPsec, Auth: config.AuthCert, CRLURIs: []string{"http://ca.example/list.crl"}}
	file := cert
	file.CRLURIs = []string{"file:///etc/list.crl"}
	for _, tc := range []struct {
		name    string
		peers   []config.Peer
		without string
		level   string
		words   []string
	}{
		{"all there", []config.Peer{cert}, "", OK, nil},
		{"nobody needs them", nil, "revocation", Note, []string{"revocation"}},
		{"needed to check", []config.Peer{cert}, "revocation", Fail, []string{"revocation", "libstrongswan-standard-plugins", "pre-shared keys"}},
		{"needed to fetch", []config.Peer{cert}, "curl", Fail, []string{"curl", "libstrongswan-extra-plugins", "file:"}},
		{"nothing to fetch", []config.Peer{file}, "curl", Note, []string{"curl"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plugins := slices.DeleteFunc(slices.Clone(whole), func(p string) bool { return p == tc.without })
			x := &examination{cfg: &config.Config{Peers: tc.peers}, ike: &ike.Status{Plugins: plugins}}
			x.revocation()
			check(t, map[string]Finding{"certificates": x.out[0]}, "certificates", tc.level, tc.words...)
		})
	}
}

func TestDataPlaneIsShownWithItsReason(t *testing.T) {
	x := &examination{cfg: &config.Config{}, ike: &ike.Status{DataPlane: esp.Userland, Reason: "the kernel has no ESP: protocol not supported"}}
	x.dataPlane()
	check(t, map[string]Finding{"data plane": x.out[0]}, "data plane", OK, "userland ESP: the kernel has no ESP", "tunnel mode")
	x = &examination{cfg: &config.Config{IPsec: config.IPsec{DataPlane: "kernel"}}, ike: x.ike}
	x.dataPlane()
	if errors.Is(esp.ProbeKernel(), esp.ErrNoKernel) {
		check(t, map[string]Finding{"data plane": x.out[0]}, "data plane", Note, "this kernel has none")
		return
	}
	check(t, map[string]Finding{"data plane": x.out[0]}, "data plane", Warn, "kernel ESP: the configuration says so", "by itself it would be userland ESP", "data_plane: auto")
}

func TestFaultyConfigurationIsShown(t *testing.T) {
	found := examine(t, map[string]string{"ironwarp.yaml": "nonsense: 1\n"})
	check(t, found, "configuration", Fail, `ironwarp.yaml:1:1: unknown key "nonsense"`)
}

func TestWorst(t *testing.T) {
	for _, tc := range []struct {
		levels []string
		want   string
	}{{nil, OK}, {[]string{OK, Note}, Note}, {[]string{Fail, Warn, OK}, Fail}, {[]string{Note, Warn}, Warn}} {
		var fs []Finding
		for _, l := range tc.levels {
			fs = append(fs, Finding{Level: l})
		}
		if got := Worst(fs); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.levels, got, tc.want)
		}
	}
}

// TestKernelSCTPIsNeededByWhoSaysSo: only a peer with transport sctp cannot do
// without.
func TestKernelSCTPIsNeededByWhoSaysSo(t *testing.T) {
	lacking := ksctp.Available() != nil
	for carrier, level := range map[config.Transport]string{config.TransportTCP: Note, config.TransportAuto: Note, config.TransportSCTPUDP: Note, config.TransportSCTP: Fail} {
		x := &examination{cfg: &config.Config{Peers: []config.Peer{{Name: "beta", Transport: carrier}}}}
		x.sctp()
		if !lacking {
			level = OK
		}
		if f := x.out[0]; f.What != "kernel SCTP" || f.Level != level {
			t.Errorf("%s: %+v, want %s", carrier, f, level)
		} else if lacking && (!strings.Contains(f.Instead, "sctp-udp") || !slices.Contains(f.Do, "modprobe sctp")) {
			t.Errorf("%s: %+v does not say what to do", carrier, f)
		}
		if f := x.out[1]; f.What != "UDP in batches" || f.Found == "" {
			t.Errorf("%+v", f)
		}
	}
}
