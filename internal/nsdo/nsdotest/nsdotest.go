// Package nsdotest makes network namespaces for tests.
package nsdotest

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// LoopbackUp brings the loopback device of the caller's namespace up. It fails with the
// kernel's error.
func LoopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Connected runs f in a network namespace of its own with both ends of a connection. The
// listener, at the address that was dialled, still listens. Without root the test is
// skipped.
func Connected(t testing.TB, at string, f func(dialled, accepted *net.TCPConn) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	err := nsdo.Fresh(func() error {
		if err := LoopbackUp(); err != nil {
			return err
		}
		ln, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		defer ln.Close()
		c, err := net.Dial("tcp", at)
		if err != nil {
			return err
		}
		defer c.Close()
		taken, err := ln.Accept()
		if err != nil {
			return err
		}
		defer taken.Close()
		return f(c.(*net.TCPConn), taken.(*net.TCPConn))
	})
	if err != nil {
		t.Fatal(err)
	}
}
