package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/nsdo/nsdotest"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// inNamespace makes the test binary run one test as a daemon of a host of its own.
const inNamespace = "IRONWARP_TEST_NAMESPACE"

// ownHost runs a test once more in a network namespace of its own, and is true in there.
func ownHost(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	if os.Getenv(inNamespace) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return false
	}
	if err := nsdotest.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	return true
}

// The guard of a peer that is removed while its link's sockets cannot be ended stays,
// and who removes the peer is told why. So it does over a restart of the daemon, and goes
// as soon as the sockets do.
func TestHeldGuardStaysOverARestart(t *testing.T) {
	if !ownHost(t) {
		return
	}
	var stuck atomic.Bool
	stuck.Store(true)
	h := &host{t: t, removeGuard: func(g guard.Spec) error {
		if stuck.Load() {
			return errors.New("the kernel still has a socket of it, which cannot be ended")
		}
		return guard.Remove(g)
	}}
	h.begin("ipsec: {vici: \"unix:///nowhere/charon.vici\"}\n")
	h.write("beta.psk", "0123456789abcdef0123456789abcdef")
	if _, err := h.api.AddPeer(t.Context(), api.PeerSpec{Name: "beta", Address: "192.0.2.77", LocalAddress: "127.0.0.1", PSKFile: filepath.Join(h.dir, "beta.psk")}); err != nil {
		t.Fatal(err)
	}
	guarded := func(when string, want bool) {
		t.Helper()
		list, err := guard.List("")
		if err != nil || (len(list) > 0) != want {
			t.Fatalf("%s: %v, %v", when, list, err)
		}
		recorded, err := os.ReadFile(filepath.Join(h.dir, "state/guards.json"))
		if err != nil || strings.Contains(string(recorded), "192.0.2.77") != want {
			t.Fatalf("%s: %s, %v", when, recorded, err)
		}
	}
	guarded("with the peer", true)
	r, err := h.api.RemovePeer(t.Context(), "beta", false)
	if err != nil || len(r.Held) == 0 || !strings.Contains(r.Held[0], "cannot be ended") {
		t.Fatalf("%+v, %v", r, err)
	}
	guarded("without it", true)
	for range 2 {
		h.stop()
		guarded("without a daemon", true)
		h.start()
		eventually(t, "the daemon says that the guard stays", func() bool { return strings.Count(h.log.String(), "stays in the kernel for now") >= 2 })
		guarded("after a restart", true)
	}
	stuck.Store(false)
	eventually(t, "the guard goes", func() bool {
		list, err := guard.List("")
		return err == nil && len(list) == 0 && strings.Contains(h.log.String(), "could be let go at last")
	})
	h.stop()
	guarded("at last", false)
}

// TestListenerIsClosedBeforeItsGuardGoes: the kernel would answer a SYN in clear.
func TestListenerIsClosedBeforeItsGuardGoes(t *testing.T) {
	if !ownHost(t) {
		return
	}
	var gone atomic.Int32
	h := &host{t: t}
	h.removeGuard = func(g guard.Spec) error {
		gone.Add(1)
		if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(h.port)))); err == nil {
			c.Close()
			t.Errorf("when %v goes, this host still listens", g)
		}
		return guard.Remove(g)
	}
	h.begin("ipsec: {vici: \"unix:///nowhere/charon.vici\"}\n")
	h.write("beta.psk", "0123456789abcdef0123456789abcdef")
	if _, err := h.api.AddPeer(t.Context(), api.PeerSpec{Name: "beta", Address: "192.0.2.77", LocalAddress: "127.0.0.1", PSKFile: filepath.Join(h.dir, "beta.psk")}); err != nil {
		t.Fatal(err)
	}
	listens := func(want bool) {
		t.Helper()
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(h.port))))
		if err == nil {
			c.Close()
		}
		if err == nil != want {
			t.Fatalf("listens: %v", err)
		}
	}
	file := filepath.Join(h.dir, "peers.d/beta.yaml")
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		how string
		do  func() error
	}{
		{"another transport", func() error { return os.WriteFile(file, append([]byte("transport: sctp-udp\n"), was...), 0o600) }},
		{"removed", func() error { return os.Remove(file) }},
	} {
		listens(true)
		if err := end.do(); err != nil {
			t.Fatal(err)
		}
		before := gone.Load()
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		listens(false)
		if gone.Load() == before {
			t.Errorf("%s: no guard went", end.how)
		}
		if err := os.WriteFile(file, was, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGuardThatAnotherPeerTakesOverStays: a peer gets another name, or its addresses
// another order. The kernel tells of each policy that goes.
func TestGuardThatAnotherPeerTakesOverStays(t *testing.T) {
	if !ownHost(t) {
		return
	}
	wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1"}
	err := netlink.LinkAdd(wire)
	for _, last := range []byte{1, 2} {
		own := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, last), Mask: net.CIDRMask(24, 32)}}
		err = errors.Join(err, netlink.AddrAdd(wire, own), netlink.LinkSetUp(wire))
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t}
	h.begin("ipsec: {vici: \"unix:///nowhere/charon.vici\"}\n")
	h.write("beta.psk", "0123456789abcdef0123456789abcdef")
	file := func(name, first, second string) {
		t.Helper()
		h.write("peers.d/beta.yaml", fmt.Sprintf("name: %s\naddress: %s\nlocal_address: 192.0.2.1\nmultihoming: [{address: %s, local_address: 192.0.2.2}]\nremote_id: beta\npsk_file: %s\ntransport: sctp\n",
			name, first, second, filepath.Join(h.dir, "beta.psk")))
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const one, other = "192.0.2.77", "192.0.2.78"
	file("beta", one, other)
	before, err := guard.List("")
	if err != nil || len(before) == 0 {
		t.Fatalf("%v, %v", before, err)
	}
	const groupPolicy, messageDeleted = 4, 20 // XFRMNLGRP_POLICY, XFRM_MSG_DELPOLICY
	told, err := nl.Subscribe(unix.NETLINK_XFRM, groupPolicy)
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	// deleted is how many policies have gone, of which the kernel tells before they have.
	deleted := func() (n int) {
		b := make([]byte, 1<<16)
		for {
			l, _, err := unix.Recvfrom(told.GetFd(), b, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			messages, err := syscall.ParseNetlinkMessage(b[:l])
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				if m.Header.Type == messageDeleted {
					n++
				}
			}
		}
	}
	file("gamma", one, other)
	if n := deleted(); n > 0 {
		t.Errorf("%d policies went as the peer got another name", n)
	}
	file("gamma", other, one)
	if n := deleted(); n > 0 {
		t.Errorf("%d policies went as its addresses got another order", n)
	}
	if after, err := guard.List(""); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("policies %v, %v, and before %v", after, err, before)
	}
	if err := os.Remove(filepath.Join(h.dir, "peers.d/beta.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := deleted(); n != len(before) {
		t.Errorf("%d policies went with the peer, which had %d", n, len(before))
	}
}
