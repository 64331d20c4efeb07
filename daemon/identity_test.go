package daemon

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// authenticatedAs makes a host's protection say that whoever comes from a peer's
// address is id, as IKE does for an SA of another identity.
func (h *host) authenticatedAs(peer string, id transport.Identity) {
	h.t.Helper()
	p, err := h.d.findPeer(peer)
	if err != nil {
		h.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.protector = namedProtector{transport.LoopbackOnly(), id, &p.cfg}
}

// TestRightAddressWithAnotherIdentityGetsNothing: the identity that was
// authenticated decides, not the address. The first case is the control.
func TestRightAddressWithAnotherIdentityGetsNothing(t *testing.T) {
	for _, tc := range []struct {
		name string
		id   transport.Identity
		gets bool
	}{
		{"its own", "loopback:127.0.0.1", true},
		{"a stranger's", "mallory.example", false},
		{"another peer's", "loopback:127.0.0.3", false},
		{"its address without authentication", "127.0.0.1", false},
		{"its name", "alpha", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			alpha, beta, _ := pair(t, 1<<20)
			// gamma may attach the disk, too, from its own address.
			if _, err := beta.api.AddPeer(t.Context(), api.PeerSpec{Name: "gamma", Address: "127.0.0.3", Protection: "loopback"}); err != nil {
				t.Fatal(err)
			}
			if err := beta.d.exports.Server().SetAllow("disk", beta.d.allowedIdentities(config.Export{Allow: []string{"alpha", "gamma"}}), false); err != nil {
				t.Fatal(err)
			}
			beta.authenticatedAs("alpha", tc.id)
			before := beta.status().Refused
			within := 1.0 // it is tried for as long as that
			if tc.gets {
				within = waitTime.Seconds()
			}
			_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk", TimeoutSeconds: within}, nil)
			if _, perr := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1, TimeoutSeconds: within}, nil); (perr == nil) != tc.gets {
				t.Errorf("ping: %v", perr)
			}
			st := beta.status()
			if tc.gets {
				if err != nil || st.Refused != before {
					t.Errorf("%v, %d refused", err, st.Refused-before)
				}
				return
			}
			if err == nil {
				t.Error("it has the disk")
			}
			// Beta may get to it only after alpha has given up.
			eventually(t, "it is refused, and why", func() bool {
				_, _ = alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1, TimeoutSeconds: 1}, nil)
				st = beta.status()
				return st.Refused != before && strings.Contains(st.LastRefused, string(tc.id)+" at 127.0.0.1 is not a configured peer")
			})
			if len(st.Streams) > 0 || len(st.Sessions) > 0 || st.Exports[0].Opens > 0 {
				t.Errorf("it got something: %+v %+v %+v", st.Streams, st.Sessions, st.Exports)
			}
		})
	}
}

// TestExportOfAnIdentityIsForThatIdentityAlone: who else comes by the name of the
// peer is not who was meant.
func TestExportOfAnIdentityIsForThatIdentityAlone(t *testing.T) {
	h := newHost(t, "")
	set := func(peers ...config.Peer) {
		c := *h.d.config()
		c.Peers = peers
		h.d.cfg.Store(&c)
	}
	ipsecPeer := func(name, id string) config.Peer {
		return config.Peer{Name: name, Protection: config.ProtectIPsec, RemoteID: id}
	}
	allow := []string{"id:beta.example"}
	set(ipsecPeer("beta", "beta.example"))
	if ids := h.d.allowedIdentities(config.Export{Allow: allow}); len(ids) != 1 || ids[0] != "beta.example" {
		t.Errorf("allowed: %v", ids)
	}
	set(ipsecPeer("beta", "mallory.example"))
	if ids := h.d.allowedIdentities(config.Export{Allow: allow}); len(ids) > 0 {
		t.Errorf("the name's new identity is allowed: %v", ids)
	}
	if ids := h.d.allowedIdentities(config.Export{Allow: []string{"beta"}}); len(ids) != 1 || ids[0] != "mallory.example" {
		t.Errorf("by name: %v", ids)
	}
	// Without IKE nobody has authenticated the identity.
	p := ipsecPeer("beta", "beta.example")
	p.Protection = config.ProtectPlaintext
	set(p)
	if ids := h.d.allowedIdentities(config.Export{Allow: allow}); len(ids) > 0 {
		t.Errorf("an identity without IKE is allowed: %v", ids)
	}
}
