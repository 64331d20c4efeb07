package rtrs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

// Two releases whose minor versions differ speak the lower one, whichever side has it, on each
// connection of a path and when the path comes up again.
func TestMinorVersionsAreNegotiated(t *testing.T) {
	for _, c := range []struct{ client, server, want Protocol }{
		{Version, Version, Version},
		{Version + 1, Version, Version},
		{Version, Version + 1, Version},
		{Version &^ 0xff, Version | 0xff, Version &^ 0xff},
		{Version | 0xff, Version &^ 0xff, Version &^ 0xff},
	} {
		t.Run(fmt.Sprintf("%v to %v", c.client, c.server), func(t *testing.T) {
			j := newJournal()
			srv := startServer(t, ServerConfig{NewSession: j.session, version: c.server})
			rs, cfg := roads(t, srv, 2)
			cfg.version = c.client
			cl := connect(t, cfg)
			for n := range uint64(2) {
				allUp(t, cl)
				if e := j.put(t, cl, n, 4096); e != 0 {
					t.Fatal(e)
				}
				for _, p := range cl.Info().Paths {
					if p.Version != c.want {
						t.Errorf("path %s speaks %v, want %v", p.Name, p.Version, c.want)
					}
				}
				for _, s := range srv.Sessions() {
					if i := slices.IndexFunc(s.Paths, func(p ServerPathInfo) bool { return p.Version != c.want }); i >= 0 {
						t.Errorf("the server speaks %v, want %v", s.Paths[i].Version, c.want)
					}
				}
				before := cl.Info().Reconnects
				rs[0].cut()
				eventually(t, "the path is up again", func() bool { return cl.Info().Reconnects > before })
			}
		})
	}
}

// A server of before minor versions were negotiated refuses all but its own, and names it.
func TestClientStepsDownToAServerThatDoesNotNegotiate(t *testing.T) {
	older := Version - 1
	addr := startRawServerBy(t, func(req *ConReq) *ConRsp {
		if req.Version != older {
			return &ConRsp{Version: older, Errno: syscall.EPROTONOSUPPORT}
		}
		return &ConRsp{Version: older}
	}, func(*rawPeer, uint64) {})
	cfg := clientConfig(newHost(t), addr, "a")
	cfg.Setup, cfg.Conns = verbs.Setup{}, 2
	cl := connect(t, cfg)
	if v := cl.Info().Paths[0].Version; v != older {
		t.Errorf("the path speaks %v, want %v", v, older)
	}
}

// Another major number is refused by either side, with both versions and what to do.
func TestAnotherMajorVersionIsRefusedInWords(t *testing.T) {
	m := newMemory(4096)
	for _, v := range []Protocol{Version + 0x100, Version - 0x100, 0x0200, 1} {
		srv := startServer(t, ServerConfig{NewSession: m.session, version: v})
		_, err := Connect(testContext(t), clientConfig(newHost(t), srv.addr, "a"))
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Errno != syscall.EPROTONOSUPPORT || refused.Theirs != v || refused.Ours != Version {
			t.Errorf("%v: %v", v, err)
			continue
		}
		for _, word := range []string{"it speaks RTRS " + v.String(), "this host " + Version.String(), "update the host that has the lower one"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v does not say %q", err, word)
			}
		}
	}
}

// A server that answers in a version that it was not asked for is left, and so is one whose
// connections disagree.
func TestServerThatAnswersInAnotherVersion(t *testing.T) {
	for name, answer := range map[string]func(req *ConReq) *ConRsp{
		"a newer minor version": func(*ConReq) *ConRsp { return &ConRsp{Version: Version + 1} },
		"another major version": func(*ConReq) *ConRsp { return &ConRsp{Version: Version + 0x100} },
		"none":                  func(*ConReq) *ConRsp { return &ConRsp{} },
		"another on the second connection": func(req *ConReq) *ConRsp {
			return &ConRsp{Version: Version - Protocol(req.CID)}
		},
		"a refusal that names a newer one": func(*ConReq) *ConRsp { return &ConRsp{Version: Version + 1, Errno: syscall.EPROTONOSUPPORT} },
		"refusals without end": func(req *ConReq) *ConRsp {
			return &ConRsp{Version: req.Version - 1, Errno: syscall.EPROTONOSUPPORT}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := clientConfig(newHost(t), startRawServerBy(t, answer, func(*rawPeer, uint64) {}), "a")
			cfg.Setup, cfg.Conns = verbs.Setup{}, 2
			_, err := Connect(testContext(t), cfg)
			if err == nil {
				t.Fatal("the session is open")
			}
			var refused *RefusedError
			if !errors.Is(err, ErrProtocol) && !(errors.As(err, &refused) && refused.Errno == syscall.EPROTONOSUPPORT) {
				t.Error(err)
			}
		})
	}
}

// A client whose later connections name another version than the first is refused.
func TestConnectionsOfAPathSpeakOneVersion(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	h := newHost(t)
	first := pathReq(1)
	first.CIDNum = 2
	if _, err := rawDial(t, h, srv.addr, first); err != nil {
		t.Fatal(err)
	}
	second := first
	second.CID, second.Version = 1, Version-1
	_, err := rawDial(t, h, srv.addr, second)
	var rej *verbs.RejectedError
	var rsp ConRsp
	if !errors.As(err, &rej) || rsp.Parse(rej.PrivateData) != nil || rsp.Errno != syscall.ESTALE {
		t.Errorf("%v, %+v", err, rsp)
	}
}
