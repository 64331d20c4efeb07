package peers

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/browser"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/internal/loopfs"
)

// servePage runs `ironwarp web` on a host until the test ends, and returns the page's address.
func (s *scene) servePage(n *node.Node) (address string) {
	s.t.Helper()
	file := filepath.Join(n.Dir(), "page")
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	cmd := n.Command(ctx, program.Path(s.t), "web", "--url-file", file, "--interval", "200ms")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	running.Go(func() {
		out, err := cmd.CombinedOutput()
		if ctx.Err() == nil || !cmd.ProcessState.Success() {
			s.t.Errorf("ironwarp web: %v: %s", err, out)
		}
		if token := filepath.Base(strings.TrimSuffix(address, "/")); strings.Contains(string(out), token) || len(token) < 20 {
			s.t.Errorf("it has written the page's address, which is in the file: %s", out)
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			s.t.Errorf("the file of the address after the end: %v", err)
		}
	})
	s.t.Cleanup(func() { cancel(); running.Wait() })
	s.until("the page's address is in its file", func() bool {
		data, err := os.ReadFile(file)
		address = strings.TrimSpace(string(data))
		return err == nil && address != ""
	})
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		s.t.Errorf("the file of the address: %v, %v; want mode 0600", st, err)
	}
	return address
}

// says is an expression: a section of the page has a text.
func says(section, text string) string {
	return "document.getElementById('" + section + "').innerText.includes('" + text + "')"
}

// TestPageShowsTheHostLive opens the page of `ironwarp web` in a browser, beside a disk that is attached from another host in
// ESP: it shows what there is, what happens while it happens, the daemon's end and its return, to those without JavaScript too.
func TestPageShowsTheHostLive(t *testing.T) {
	browser.Need(t)
	pool := loopfs.Mount(t, "xfs", 0)
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	address := s.servePage(s.alpha)
	b := browser.Start(t, s.alpha.Command)
	b.Look(1280, false)
	b.Open(address)
	b.Until("the page is live", "document.getElementById('link').textContent === 'live'")
	b.Until("the peer is there", says("peers", "beta"))
	s.attach()
	b.Until("the disk appears without a reload", says("disks", "beta/disk")+" && "+says("disks", "ready"))
	b.Until("its attachment is an event", says("events", "disk beta/disk: ready"))
	b.Until("the SAs have a time to new keys", "/new keys in[\\s\\S]*min/.test(document.getElementById('sas').innerText)")
	b.Until("there is its path", says("paths", "connected"))

	s.addPool(s.alpha, pool)
	b.Until("a pool appears with its room, and is an event", "/fast\\s+ok[\\s\\S]*[KMGT]iB[\\s\\S]*0 of 5/.test(document.getElementById('pools').innerText) && "+says("events", "pool fast: ok"))
	s.must(s.alpha, "volume", "create", "fast", "limited", "1MiB")
	s.must(s.alpha, "volume", "qos", "limited", "--iops", "2000")
	fillTo(t, pool, 93)
	b.Until("a pool that becomes full is told", says("troubles", "pool fast: it is over 90 % full")+" && "+says("events", "pool fast: over 90 % full, was ok"))
	b.Until("a volume is an export, with its limits", says("pools", "1 of 5")+" && "+says("exports", "limited")+" && "+says("exports", "at most 2000 IOPS"))

	atts, err := s.alpha.Client().Attachments(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.until("reads show as a rate", func() (is bool) {
		s.readDisk(atts[0].Socket)
		b.Evaluate(says("disks", "iB/s"), &is)
		return is
	})
	b.Until("what reads take is there", `/read [\d.]+ (µs|ms)/.test(document.getElementById("disks").innerText)`)

	if _, err := s.alpha.Ironwarp(t.Context(), nil, "sa", "delete", "beta"); err != nil {
		t.Fatal(err)
	}
	b.Until("a deleted SA is an event", says("events", "SA: child-down"))

	for width, name := range map[int]string{1280: "a desk", 390: "a phone"} {
		b.Look(width, false)
		var wide int
		if b.Evaluate("document.documentElement.scrollWidth", &wide); wide > width {
			t.Errorf("on %s the page is %d pixels wide, want %d", name, wide, width)
		}
	}
	var ground [2]string
	for i, dark := range []bool{false, true} {
		b.Look(1280, dark)
		b.Evaluate("getComputedStyle(document.body).backgroundColor", &ground[i])
	}
	if ground[0] == ground[1] {
		t.Errorf("light and dark are both %s", ground[0])
	}
	var faults []string
	b.Evaluate(`[...document.querySelectorAll("table")].flatMap((t) => [
		...[...t.querySelectorAll("thead th")].filter((h) => h.scope !== "col").map((h) => "a head without scope: " + h.outerHTML),
		...[...t.querySelectorAll("tbody tr")].filter((r) => !r.querySelector("th[scope=row]")).map((r) => "a row without a name: " + r.innerText)])`, &faults)
	if len(faults) > 0 {
		t.Errorf("tables that a screen reader cannot tell: %q", faults)
	}
	if to := os.Getenv("IRONWARP_SCREENSHOTS"); to != "" {
		s.screenshots(b, to)
	}

	if err := s.alpha.Stop(); err != nil {
		t.Fatal(err)
	}
	b.Until("the page says that the daemon has ended", says("state", "The daemon does not answer.")+" && "+says("state", "ironwarp daemon"))
	b.Until("and goes on showing what there was", says("disks", "beta/disk"))
	if err := s.alpha.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Until("the page goes on when it is back", "!"+says("state", "does not answer")+" && "+says("events", "the daemon answers"))
	if log := b.Log(); len(log) > 0 {
		t.Errorf("the browser complains of the page: %s", log)
	}

	b.Scripts(false)
	b.Open(address)
	b.Until("the page without JavaScript has the disk", says("disks", "beta/disk")+" && document.body.innerText.includes('reload it')")
}

// addPool gives a host a pool of files in a directory, of at most 5 volumes.
func (s *scene) addPool(n *node.Node, dir string) {
	s.t.Helper()
	text, err := os.ReadFile(n.Config)
	if err == nil {
		err = os.WriteFile(n.Config, append(text, "\npools: [{name: fast, driver: file, path: "+dir+", max_volumes: 5}]\n"...), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.must(n, "reload")
}

// fillTo takes room of a file system until so many percent of it are used.
func fillTo(t *testing.T, dir string, percent uint64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail-st.Blocks*(100-percent)/100)*int64(st.Frsize)); err != nil {
		t.Fatal(err)
	}
}

// screenshots keeps how the page looks while there is I/O, for docs/web.md.
func (s *scene) screenshots(b *browser.Browser, to string) {
	s.t.Helper()
	uri := "nbd+unix:///disk?socket=" + filepath.Join(s.alpha.RunDir(), "ironwarp", "attach", "beta", "disk.sock")
	if atts, err := s.alpha.Client().Attachments(s.t.Context()); err == nil && len(atts) == 1 {
		uri = strings.Replace(atts[0].URI, "socket=/run/", "socket="+s.alpha.RunDir()+"/", 1)
	}
	image := filepath.Join(s.alpha.Dir(), "archive.img")
	if err := os.WriteFile(image, s.alpha.Canary().Bytes(diskSize), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.must(s.alpha, "export", "add", "--allow", "id:"+s.beta.Addr().String(), "archive", image)
	s.must(s.beta, "attach", "alpha/archive")
	back := strings.Replace(uri, "beta-disk.sock", "alpha-archive.sock", 1)
	back = strings.Replace(strings.Replace(back, s.alpha.RunDir(), s.beta.RunDir(), 1), "///disk", "///archive", 1)
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		_, err := node.Load{URI: uri, Size: diskSize, Timeout: 2 * time.Minute, Pause: 3 * time.Millisecond, PauseEvery: 4}.Run(s.t.Context(), s.alpha, stop)
		if err != nil {
			s.t.Errorf("the load: %v", err)
		}
	})
	load.Go(func() {
		_, err := node.Load{URI: back, Size: diskSize, Timeout: 2 * time.Minute, Pause: 20 * time.Millisecond, PauseEvery: 6}.Run(s.t.Context(), s.beta, stop)
		if err != nil {
			s.t.Errorf("the load of the other host: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(s.t.Context(), 45*time.Second)
	defer cancel()
	<-ctx.Done()
	for name, look := range map[string]struct {
		width int
		dark  bool
	}{"web.png": {1280, false}, "web-dark.png": {1280, true}, "web-phone.png": {390, false}} {
		b.Look(look.width, look.dark)
		if err := os.WriteFile(filepath.Join(to, name), bytes.Clone(b.Screenshot()), 0o644); err != nil {
			s.t.Error(err)
		}
	}
	close(stop)
	load.Wait()
}
