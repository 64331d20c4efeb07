package rnbd

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// connectIn opens a session in another version than ours.
func connectIn(t *testing.T, srv *testServer, v rtrs.Protocol) (*Client, error) {
	t.Helper()
	_, ulp := newULP(t)
	c, err := Connect(testContext(t), ClientConfig{Logger: testLogger(), version: v, RTRS: rtrs.ClientConfig{ULP: ulp, Name: t.Name(),
		Paths: []rtrs.PathConfig{{Remote: srv.addr, Transport: loopback()}}, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}}})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// Two releases whose minor versions differ speak the lower one, whichever side has it, also
// when the server has forgotten the session.
func TestMinorVersionsAreNegotiated(t *testing.T) {
	for _, v := range []struct{ client, server, want rtrs.Protocol }{
		{Version, Version, Version}, {Version + 1, Version, Version}, {Version, Version + 1, Version}, {Version | 0xff, Version | 7, Version | 7},
	} {
		t.Run(fmt.Sprintf("%v to %v", v.client, v.server), func(t *testing.T) {
			srv := startServer(t, ramExport("r", newRAM(1<<20)))
			srv.version = v.server
			c, err := connectIn(t, srv, v.client)
			if err != nil {
				t.Fatal(err)
			}
			d := openDisk(t, c, "r")
			write(t, d, filled(1), 0)
			if got := c.Version(); got != v.want {
				t.Errorf("they speak %v, want %v", got, v.want)
			}
			c.Session().Paths()[0].Disconnect()
			eventually(t, "the session is forgotten", func() bool { return len(srv.rt.Sessions()) == 0 })
			c.version.Store(0)
			c.Session().Paths()[0].Reconnect()
			write(t, d, filled(2), 0)
			if got := c.Version(); got != v.want {
				t.Errorf("they speak %v, want %v", got, v.want)
			}
		})
	}
}

// Another major version is refused by either side, with both versions and what to do. A client
// that goes on all the same gets nothing.
func TestAnotherMajorVersionIsRefusedInWords(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)))
	for _, v := range []rtrs.Protocol{Version + 0x100, Version - 0x100, 1, 0xffff} {
		_, err := connectIn(t, srv, v)
		if !errors.Is(err, ErrVersion) {
			t.Errorf("%v: %v", v, err)
			continue
		}
		for _, word := range []string{"it speaks RNBD " + Version.String(), "this host " + v.String(), "update the host that has the lower one"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v does not say %q", err, word)
			}
		}
	}
	c := connectAs(t, "goes on", loopback(), srv.addr)
	answer := make([]byte, sessInfoLen)
	if err := c.rt.Control(testContext(t), (&sessInfo{Version: Version + 0x100}).Append(nil, msgSessInfo), answer); err != nil {
		t.Fatal(err)
	}
	var rsp sessInfo
	if err := rsp.Parse(answer, msgSessInfoRsp); err != nil || rsp.Version != Version {
		t.Errorf("the server says %v, %v", rsp.Version, err)
	}
	if _, err := c.List(testContext(t)); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("a list for a client of another version: %v", err)
	}
	if _, err := c.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("a disk for a client of another version: %v", err)
	}
}

// With a server of before, a disk has the size that it was opened with, and one writer.
func TestServerOfBeforeHasNeitherGrowthNorMigration(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	srv.version = versionGrown - 1
	c := connect(t, srv.addr)
	if _, err := c.Open(testContext(t), "r", OpenOptions{Migration: true}); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "update it first") {
		t.Error(err)
	}
	write(t, openDisk(t, c, "r"), filled(1), 0)
}
