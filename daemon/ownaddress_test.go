package daemon

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// ownAddress puts the test into a network namespace that has only this address and what
// else is on the loopback device, and a route to others.
func ownAddress(t *testing.T, own netip.Prefix) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace of its own takes root: run the test as root")
	}
	runtime.LockOSThread() // and the thread ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("a network namespace cannot be made here (%v): run the test as root outside of containers that forbid it", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(own.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, addr)); err != nil {
		t.Fatal(err)
	}
}

// A peer that ESP is to protect is another host: one under an address of this host is
// refused before anything of it is written.
func TestPeerUnderThisHostsOwnAddressIsRefused(t *testing.T) {
	dir := t.TempDir()
	main, secret := filepath.Join(dir, "ironwarp.yaml"), filepath.Join(dir, "beta.psk")
	for path, text := range map[string]string{main: "{}\n", secret: strings.Repeat("0123456789", 4)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ownAddress(t, netip.MustParsePrefix("203.0.113.7/24"))
	spec := func(addr string) api.PeerSpec { return api.PeerSpec{Name: "beta", Address: addr, PSKFile: secret} }
	paths := spec("203.0.113.8")
	paths.LocalAddress, paths.Transport, paths.Multihoming = "203.0.113.7", "sctp", []api.Pair{{Address: "203.0.113.7", LocalAddress: "203.0.113.9"}}
	refused := func(what string, err error) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeInvalid || !strings.Contains(e.Message, "203.0.113.7, which is this host's own") || e.Fix == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, s := range map[string]api.PeerSpec{"an address": spec("203.0.113.7"), "that of a path": paths} {
		_, err := AddPeer(main, s)
		refused(what, err)
		if _, err := os.Stat(filepath.Join(dir, "peers.d")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: peers.d is there: %v", what, err)
		}
	}
	file, err := AddPeer(main, spec("203.0.113.8"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = SetPeer(main, api.PeerChange{PeerSpec: spec("203.0.113.7"), Set: []string{"address"}})
	refused("a change", err)
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed: %s, %v", after, err)
	}
	if _, err := AddPeer(main, api.PeerSpec{Name: "twin", Address: "127.0.0.1", Protection: "loopback"}); err != nil {
		t.Errorf("another daemon on this host: %v", err)
	}
}
