package config

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// TestSetPeerChangesWhatWasAskedForAlone: comments, keys that no command writes
// and the order of a file that a person has edited stay.
func TestSetPeerChangesWhatWasAskedForAlone(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "# nothing\n")
	file := write(t, dir, "peers.d/beta.yaml", `# The host in the cellar.
name: beta
address: 192.0.2.2
psk_file: secrets/beta.psk # of last May
# It reads much.
limits: {streams: 8}
connections: 4
`)
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	was := p.Limits
	p.Address, p.Connections, p.RemoteID = netip.MustParseAddr("192.0.2.9"), DefaultConnections, "beta.example"
	if path, err := SetPeer(main, p); err != nil || path != file {
		t.Fatalf("%s, %v", path, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# The host in the cellar.\n", "address: 192.0.2.9\n", "psk_file: secrets/beta.psk # of last May\n", "# It reads much.\n", "remote_id: beta.example\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	for _, not := range []string{"connections", "port", "profile", "mode"} {
		if strings.Contains(string(data), not) {
			t.Errorf("%q in\n%s", not, data)
		}
	}
	if c, err = Load(main, true); err != nil {
		t.Fatal(err)
	}
	if q, _ := c.Peer("beta"); !q.Equal(p) || q.Limits != was {
		t.Errorf("\n got %+v\nwant %+v", q, p)
	}
	p.Address = netip.MustParseAddr("127.0.0.1")
	if _, err := SetPeer(main, p); err == nil || !strings.Contains(err.Error(), "use protection: loopback") {
		t.Errorf("a change that does not check: %v", err)
	}
	if after, _ := os.ReadFile(file); string(after) != string(data) {
		t.Errorf("a refused change was written:\n%s", after)
	}
	p.Name = "gamma"
	if _, err := SetPeer(main, p); !errors.Is(err, ErrNotFound) {
		t.Errorf("a peer that is not there: %v", err)
	}
}

func TestDeclarationsAmongOthersAreNotEdited(t *testing.T) {
	main := write(t, t.TempDir(), "ironwarp.yaml", "peers:\n  - {name: b, address: 127.0.0.1, protection: loopback}\n")
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := SetPeer(main, c.Peers[0]); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "ironwarp.yaml:2:") {
		t.Errorf("got %v", err)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(killAt) != "" {
		killed()
	}
	os.Exit(m.Run())
}

// Orders for a test binary that is killed in the middle of a change.
const (
	killAt   = "IRONWARP_TEST_KILL_AT" // the step, from 1
	killMain = "IRONWARP_TEST_MAIN"
	killDo   = "IRONWARP_TEST_DO"
)

// changes are orders to a configuration of peers beta and gamma, of which exports
// one and two allow beta and gamma.
var changes = map[string]struct {
	do      func(c *fileChange) error
	refused bool
}{
	"add a peer": {do: func(c *fileChange) error {
		c.setFile(filepath.Join(filepath.Dir(c.main), peersDir, "delta.yaml"), []byte("name: delta\naddress: 127.0.0.4\nprotection: loopback\n"))
		return nil
	}},
	"add a peer of an address that another has": {refused: true, do: func(c *fileChange) error {
		c.setFile(filepath.Join(filepath.Dir(c.main), peersDir, "delta.yaml"), []byte("name: delta\naddress: 127.0.0.2\nprotection: loopback\n"))
		return nil
	}},
	"remove a peer that exports allow": {refused: true, do: func(c *fileChange) error { return c.remove(peersDir, "peer", "beta") }},
	"remove it with force": {do: func(c *fileChange) error {
		if err := c.disallow("beta"); err != nil {
			return err
		}
		return c.remove(peersDir, "peer", "beta")
	}},
	"change a peer": {do: func(c *fileChange) error {
		p, _ := c.before.Peer("beta")
		n := p
		n.Address = netip.MustParseAddr("127.0.0.9")
		return c.edit(p.Origin, peersDir, "peer beta", fileOfPeer(p), fileOfPeer(n))
	}},
}

// killed makes a change and kills itself after a step.
func killed() {
	at, err := strconv.Atoi(os.Getenv(killAt))
	if err != nil {
		panic(err)
	}
	c, err := beginChange(os.Getenv(killMain))
	if err != nil {
		panic(err)
	}
	c.done = func(string) {
		if at--; at == 0 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if changes[os.Getenv(killDo)].do(c) != nil || c.commit() != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// TestKillAtEachStepLeavesAWholeConfiguration kills a process after each step of
// each change. What it leaves loads, and holds the peers of before or of after;
// the next change works, and no temporary file outlives the start of a daemon.
func TestKillAtEachStepLeavesAWholeConfiguration(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, ch := range changes {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			kills := 0
			for step := 1; ; step++ {
				dir := t.TempDir()
				main := write(t, dir, "ironwarp.yaml", "{}\n")
				write(t, dir, "peers.d/beta.yaml", "name: beta\naddress: 127.0.0.2\nprotection: loopback\n")
				write(t, dir, "peers.d/gamma.yaml", "name: gamma\naddress: 127.0.0.3\nprotection: loopback\n")
				write(t, dir, "exports.d/one.yaml", "name: one\npath: /dev/null\nallow: [beta, gamma]\n")
				write(t, dir, "exports.d/two.yaml", "name: two\npath: /dev/null\nallow: [beta]\n")
				cmd := exec.Command(exe)
				cmd.Env = append(os.Environ(), killAt+"="+strconv.Itoa(step), killMain+"="+main, killDo+"="+name)
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if err != nil && !errors.As(err, &exit) || strings.Contains(string(out), "panic") {
					t.Fatalf("%v %s", err, out)
				}
				dead := exit != nil && exit.Sys().(syscall.WaitStatus).Signaled()
				cfg, err := Load(main, true)
				if err != nil {
					t.Fatalf("killed at step %d: no daemon starts any more: %v", step, err)
				}
				if _, ok := cfg.Peer("gamma"); !ok || ch.refused && len(cfg.Peers) != 2 {
					t.Errorf("killed at step %d: peers are %v", step, cfg.PeerNames())
				}
				if _, err := AddPeer(main, Peer{Name: "next", Address: netip.MustParseAddr("127.0.0.7"), Protection: ProtectLoopback, CRC: true, LargeFPDU: true, Connections: 1, Transport: TransportTCP}); err != nil {
					t.Errorf("killed at step %d: the next change: %v", step, err)
				}
				if err := cfg.RemoveTemporary(); err != nil {
					t.Error(err)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, "*", wholefile.TemporaryPrefix+"*")); len(left) > 0 {
					t.Errorf("killed at step %d: left behind: %v", step, left)
				}
				if !dead {
					if refused := exit != nil; refused != ch.refused {
						t.Errorf("refused %v, want %v", refused, ch.refused)
					}
					break
				}
				kills++
			}
			if ch.refused != (kills == 0) {
				t.Errorf("killed at %d steps: a change that is refused has none, others have some", kills)
			}
		})
	}
}

// TestFullDiskChangesNothing: where there is no room for a change the configuration
// stays as it was, and nothing else is left.
func TestFullDiskChangesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	main := write(t, dir, "ironwarp.yaml", "{}\n")
	file := write(t, dir, "peers.d/beta.yaml", "name: beta\naddress: 127.0.0.2\nprotection: loopback\n")
	fill, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	p.Address = netip.MustParseAddr("127.0.0.9")
	if _, err := SetPeer(main, p); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("change: %v", err)
	}
	p.Name = "gamma"
	if _, err := AddPeer(main, p); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("add: %v", err)
	}
	if err := ReplaceSecret(filepath.Join(dir, "peers.d", "x.psk"), auth.GenerateSecret()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("secret: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "peers.d", "*"))
	hidden, herr := filepath.Glob(filepath.Join(dir, "peers.d", ".*"))
	if err := errors.Join(err, herr); err != nil || len(left) != 1 || left[0] != file || len(hidden) != 0 {
		t.Errorf("left: %v %v, %v", left, hidden, err)
	}
	if after, err := Load(main, true); err != nil || after.Peers[0].Address != netip.MustParseAddr("127.0.0.2") {
		t.Errorf("after it: %v", err)
	}
}
