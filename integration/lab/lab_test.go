package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerVar) != "" {
		os.Exit(owner())
	}
	goleak.VerifyTestMain(m)
}

func TestLabHostsReachEachOtherAndCaptureCountsClearTraffic(t *testing.T) {
	l := Start(t, Config{})
	a, b := l.Host("alpha"), l.Host("beta")
	if a.CharonPID() == 0 || b.CharonPID() == 0 {
		t.Fatal("charon does not run")
	}
	c, err := b.Capture(t.Context(), CaptureOptions{Unjudged: "the test wants clear packets"})
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{b.Addr(), b.Addr6()} {
		echoOnce(t, a, b, netip.AddrPortFrom(addr, 7471))
	}
	counts, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if counts.Clear(7471) < 10 || counts.Clear(7472) != 0 || counts.ESP != 0 || counts.Dropped != 0 {
		t.Errorf("after two clear connections on port 7471: %v", counts)
	}
}

// TestCaptureWaitsForATcpdumpThatStandsStill for a while in which more packets come than in a second of any test.
func TestCaptureWaitsForATcpdumpThatStandsStill(t *testing.T) {
	if captureBuffer() < maxCaptureBuffer {
		t.Skip("this machine has little memory left")
	}
	l := Start(t, Config{NoCharon: true})
	a, b := l.Host("alpha"), l.Host("beta")
	c, err := a.Capture(t.Context(), CaptureOptions{Unjudged: "the test counts clear packets"})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-c.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const packets = 80000
	sent := a.Do(func() error {
		u, err := net.Dial("udp", netip.AddrPortFrom(b.Addr(), 9000).String())
		if err != nil {
			return err
		}
		defer u.Close()
		for range packets {
			_, _ = u.Write(make([]byte, 1400)) // nobody listens, of which it hears
		}
		return nil
	})
	if err := errors.Join(sent, syscall.Kill(-c.cmd.Process.Pid, syscall.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	if counts, err := c.Stop(); err != nil || counts.Dropped != 0 || counts.Packets < packets*9/10 {
		t.Errorf("%v, %v", counts, err)
	}
}

func echoOnce(t *testing.T, from, to *Host, at netip.AddrPort) {
	t.Helper()
	ln, err := to.Listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		_, err = io.Copy(c, c)
		done <- err
	}()
	c, err := from.Dial(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
		t.Fatalf("echo: %q, %v", b, err)
	}
	c.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestHostCommandSeesItsOwnRun(t *testing.T) {
	l := Start(t, Config{NoCharon: true})
	out, err := l.Host("alpha").Run(t.Context(), "sh", "-c", "echo here > /run/mark; ip -br addr show dev wire0")
	if err != nil || !strings.Contains(out, l.Host("alpha").Addr().String()) {
		t.Fatalf("%v, output %q", err, out)
	}
	if b, err := os.ReadFile(l.Host("alpha").RunDir() + "/mark"); err != nil || string(b) != "here\n" {
		t.Errorf("the host's /run has %q, %v", b, err)
	}
	if _, err := os.Stat("/run/mark"); err == nil {
		t.Error("a file in the host's /run shows up in this machine's /run")
	}
	if _, err := l.Host("beta").Run(t.Context(), "false"); err == nil {
		t.Error("a failing command gave no error")
	}
}

func TestCharonRestartsAfterSIGKILLAndStops(t *testing.T) {
	l := Start(t, Config{})
	a := l.Host("alpha")
	first := a.CharonPID()
	if err := a.RestartCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pid := a.CharonPID(); pid == 0 || pid == first {
		t.Errorf("charon has pid %d, the killed one had %d", pid, first)
	}
	if err := a.StartCharon(t.Context()); err == nil {
		t.Error("a second charon was started")
	}
	if err := a.StopCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.CharonPID() != 0 {
		t.Error("charon still has a pid after StopCharon")
	}
}

func TestThreeHostsShareASwitch(t *testing.T) {
	l := Start(t, Config{Hosts: []string{"alpha", "beta", "mallory"}, NoCharon: true})
	echoOnce(t, l.Host("mallory"), l.Host("beta"), netip.AddrPortFrom(l.Host("beta").Addr(), 7471))
}

// Two wires are two paths: each has its own addresses and captures, and one goes
// on when the other is severed.
func TestHostsOnTwoWires(t *testing.T) {
	l := Start(t, Config{Wires: 2, NoCharon: true})
	a, b := l.Host("alpha"), l.Host("beta")
	var wires [2]*Capture
	for w := range wires {
		var err error
		if wires[w], err = b.Capture(t.Context(), CaptureOptions{Wire: w, Unjudged: "the test wants clear packets"}); err != nil {
			t.Fatal(err)
		}
	}
	echoOnce(t, a, b, netip.AddrPortFrom(b.AddrOn(1), 7471))
	if err := b.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	echoOnce(t, a, b, netip.AddrPortFrom(b.AddrOn6(1), 7471))
	if reaches(t, a, b, b.Addr()) {
		t.Error("the first wire is not severed")
	}
	echoOnce(t, a, b, netip.AddrPortFrom(b.AddrOn(1), 7471))
	if err := b.Sever(t.Context(), 0, false); err != nil {
		t.Fatal(err)
	}
	if err := b.LinkOn(t.Context(), 1, false); err != nil {
		t.Fatal(err)
	}
	echoOnce(t, a, b, netip.AddrPortFrom(b.Addr(), 7472))
	for w, want := range [2][2]bool{{false, true}, {true, false}} { // has packets of ports 7471, 7472
		c, err := wires[w].Stop()
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{c.Clear(7471) > 0, c.Clear(7472) > 0}; got != want {
			t.Errorf("wire %d: %v", w, c)
		}
	}
}

// TestDelayedWire takes its time for each packet, loses none of a stream whose segments the kernel has left to the
// network card, and is a wire like others again afterwards.
func TestDelayedWire(t *testing.T) {
	l := Start(t, Config{NoCharon: true})
	a, b := l.Host("alpha"), l.Host("beta")
	const each = 20 * time.Millisecond
	d, err := b.Delay(t.Context(), 0, each)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := b.Listen(t.Context(), netip.AddrPortFrom(b.Addr(), 7471))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	sum := make(chan [sha256.Size]byte)
	go func() {
		defer close(sum)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		h := sha256.New()
		if _, err := io.Copy(h, c); err != nil {
			t.Error(err)
		}
		sum <- [sha256.Size]byte(h.Sum(nil))
	}()
	begun := time.Now()
	c, err := a.Dial(t.Context(), netip.AddrPortFrom(b.Addr(), 7471))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 2*each {
		t.Errorf("a connection is up after %v; each way takes %v", took, each)
	}
	data := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := <-sum; got != sha256.Sum256(data) {
		t.Error("what has come is not what was sent")
	}
	if err := d.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	echoOnce(t, a, b, netip.AddrPortFrom(b.Addr(), 7472))
}

// reaches reports whether a connection comes up soon.
func reaches(t *testing.T, from, to *Host, addr netip.Addr) bool {
	t.Helper()
	ln, err := to.Listen(t.Context(), netip.AddrPortFrom(addr, 7470))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, err := from.Dial(ctx, netip.AddrPortFrom(addr, 7470))
	if err == nil {
		c.Close()
	}
	return err == nil
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	Require(t)
	l, err := New(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	pid := l.Host("alpha").CharonPID()
	if _, err := l.Host("beta").Capture(t.Context(), CaptureOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	for _, ns := range namespaces() {
		if strings.HasPrefix(ns, l.Name()) {
			t.Errorf("namespace %s is left", ns)
		}
	}
	if _, err := os.Stat(l.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory is left: %v", err)
	}
	if !zombie(pid) {
		t.Errorf("charon %d still runs", pid)
	}
}

func TestFailedNewLeavesNothingBehind(t *testing.T) {
	Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	before := namespaces()
	if _, err := New(ctx, Config{Dir: dir}); err == nil {
		t.Fatal("New with a cancelled context gave no error")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	for _, ns := range namespaces() {
		// Other processes make labs, too.
		if strings.HasPrefix(ns, fmt.Sprintf("%s%d.", namePrefix, os.Getpid())) && !slices.Contains(before, ns) {
			t.Errorf("namespace %s is left", ns)
		}
	}
}
