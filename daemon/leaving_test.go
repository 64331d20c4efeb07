package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	iscsihost "github.com/ironwarp/ironwarp/iscsi/initiator"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// A stream that is between its request and its queue pair when its peer is removed or blocked, where nobody finds it to end it, ends
// all the same.
func TestStreamThatIsAcceptedWhileItsPeerGoesEnds(t *testing.T) {
	localhost := netip.MustParseAddr("127.0.0.1")
	comes := func(t *testing.T, port uint16) {
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _, _ = dialRaw(t, port, nil) // it may see the stream come up, or its end alone
		}()
		t.Cleanup(func() { <-over })
	}
	// Each takes the first request that comes to a port.
	ways := map[string]func(t *testing.T, d *Daemon, port uint16) *verbs.ConnRequest{
		"a peer's": func(t *testing.T, d *Daemon, port uint16) *verbs.ConnRequest {
			ln, err := d.listenAt(t.Context(), netip.AddrPortFrom(localhost, port), "", new(transport.Config))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			comes(t, port)
			cr, err := ln.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return cr
		},
		"at a portal": func(t *testing.T, d *Daemon, port uint16) *verbs.ConnRequest {
			came := make(chan *verbs.ConnRequest, 1)
			cfg := d.portalsConfig()
			cfg.Serve = func(ctx context.Context, l *listen.Portal) {
				if cr, err := l.Accept(ctx); err == nil {
					came <- cr
				}
			}
			p := listen.NewPortals(cfg)
			t.Cleanup(func() {
				p.CloseBut(nil, nil)
				p.Close()
			})
			p.Listen(t.Context(), []listen.Offered{{Port: port, Addresses: []netip.Addr{localhost}, Allows: func(config.Peer) bool { return true }}}, nil)
			comes(t, port)
			return <-came
		},
	}
	for what, goes := range map[string]func(*host) error{
		"removed": func(h *host) error { _, err := h.api.RemovePeer(t.Context(), "alpha", true); return err },
		"blocked": func(h *host) error {
			_, err := h.api.Block(t.Context(), api.BlockRequest{Peer: "alpha"})
			return err
		},
	} {
		for whose, take := range ways {
			t.Run(whose+", "+what, func(t *testing.T) {
				beta := newHost(t, "")
				if _, err := beta.api.AddPeer(t.Context(), api.PeerSpec{Name: "alpha", Address: "127.0.0.1", Port: iwarptest.FreePort(t), Protection: "loopback"}); err != nil {
					t.Fatal(err)
				}
				cr := take(t, beta.d, iwarptest.FreePort(t))
				u := beta.d.ulps[config.ServiceTargets]
				pd, err := u.AllocPD()
				if err != nil {
					t.Fatal(err)
				}
				cq, err := u.CreateCQ(64, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := goes(beta); err != nil {
					t.Fatal(err)
				}
				qp, err := cr.Accept(t.Context(), pd, verbs.AcceptConfig{QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8, IRD: 4}})
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "the stream ends", func() bool {
					select {
					case <-qp.Done():
						return true
					default:
						return false
					}
				})
				if err := errors.Join(pd.Dealloc(), cq.Destroy()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// hooked calls a function before it writes for the n-th time.
type hooked struct {
	net.Conn
	n    int
	call func()
}

func (h *hooked) Write(b []byte) (int, error) {
	if h.n--; h.n == 0 {
		h.call()
	}
	return h.Conn.Write(b)
}

// An initiator whose peer is blocked during its login, when there is no session yet to end, gets none.
func TestLoginDuringWhichThePeerIsBlockedFails(t *testing.T) {
	_, beta, _ := pair(t, 1<<20)
	port := beta.disks(api.LUNSpec{Export: "disk"})
	mustLogin(t, port, "iqn.x:i").nc.Close()
	nc, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	h := &hooked{nc, 2, func() {
		if _, err := beta.api.Block(t.Context(), api.BlockRequest{Peer: "alpha"}); err != nil {
			t.Error(err)
		}
	}}
	s, err := iscsihost.Login(t.Context(), h, iscsihost.Config{Initiator: "iqn.x:j", Target: diskIQN})
	if err == nil {
		s.Close()
		t.Fatal("a blocked initiator is logged in")
	}
	if !errors.Is(err, iscsihost.ErrRefused) || h.n > 0 {
		t.Errorf("%v, with %d requests left to the block", err, h.n)
	}
}
