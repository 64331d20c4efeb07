package ipsectest

import (
	"context"
	"encoding/base64"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// viciCall makes a VICI call on a host, as an administrator's swanctl does.
func viciCall(t *testing.T, h *host, cmd string, m *vici.Message) error {
	t.Helper()
	s, err := vici.NewSession(vici.WithSocketPath(h.ViciSocket()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err = s.Call(ctx, cmd, m)
	return err
}

func message(t *testing.T, kv ...any) *vici.Message {
	t.Helper()
	m := vici.NewMessage()
	for i := 0; i < len(kv); i += 2 {
		if err := m.Set(kv[i].(string), kv[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// loadImpostor loads, by hand and on both hosts, a connection between the same
// addresses in which beta calls itself mallory, and whose child covers the link.
func (p *pair) loadImpostor(t *testing.T) {
	t.Helper()
	key := make([]byte, 32)
	encap := "no"
	if p.lab.DataPlane() == esp.Userland {
		encap = "yes"
	}
	for _, h := range []*host{p.alpha, p.beta} {
		ids := [2]string{"alpha", "mallory"}
		if h == p.beta {
			ids = [2]string{"mallory", "alpha"}
		}
		if err := viciCall(t, h, "load-shared", message(t, "id", "by-hand", "type", "IKE", "data", "0s"+base64.StdEncoding.EncodeToString(key), "owners", []string{"mallory", "alpha"})); err != nil {
			t.Fatal(err)
		}
		what := "/32[" + p.kind.Protocol().String() + "]"
		child := message(t, "local_ts", []string{h.Addr().String() + what}, "remote_ts", []string{p.other(h).Addr().String() + what}, "esp_proposals", []string{"aes128gcm16"})
		conn := message(t, "version", "2", "local_addrs", []string{h.Addr().String()}, "remote_addrs", []string{p.other(h).Addr().String()},
			"proposals", []string{"aes128-sha256-modp2048"}, "encap", encap,
			"local-1", message(t, "auth", "psk", "id", ids[0]), "remote-1", message(t, "auth", "psk", "id", ids[1]),
			"children", message(t, "evil", child))
		if err := viciCall(t, h, "load-conn", message(t, "evil", conn)); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *pair) becomeMallory(t *testing.T) {
	t.Helper()
	if err := viciCall(t, p.beta, "initiate", message(t, "ike", "evil", "child", "evil", "timeout", "60000")); err != nil {
		t.Fatal(err)
	}
}

func TestFlowOfRightAddressesUnderAnotherIdentityIsRefused(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	refused := make(chan error, 10)
	p.alpha.echo(t, func(err error) { refused <- err })
	p.loadImpostor(t)
	p.becomeMallory(t)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := p.alpha.m.Prepare(ctx, transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.AddrPortFrom(p.beta.Addr(), port)})
	if !errors.Is(err, pad.ErrWrongIdentity) || !strings.Contains(err.Error(), "mallory") {
		t.Errorf("dialling under mallory's SA: %v", err)
	}
	// On beta nothing but this connection carries the link, and no Protector asks.
	c, err := p.beta.Dial(t.Context(), netip.AddrPortFrom(p.alpha.Addr(), port))
	if esp.ProbeKernel() == nil {
		// The guard comes before the policies of any SA but the peer's own.
		if !errors.Is(err, syscall.EPERM) {
			t.Errorf("a connection through mallory's SA met no guard: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatalf("the test's own connection through mallory's SA: %v", err)
	}
	defer c.Close()
	select {
	case err := <-refused:
		if !errors.Is(err, pad.ErrWrongIdentity) || !errors.Is(err, transport.ErrNotProtected) {
			t.Errorf("refused with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("a flow under mallory's SA was not refused")
	}
	if st, _ := p.alpha.m.PeerStatus("beta"); st.Counters.Refusals.WrongIdentity != 1 || st.Flows != 0 {
		t.Errorf("status %+v", st)
	}
}

// TestStreamDoesNotGoOnUnderAnotherIdentity makes the peer authenticate as somebody
// else while a stream lives: the stream pauses, and goes on when the peer is itself
// again.
func TestStreamDoesNotGoOnUnderAnotherIdentity(t *testing.T) {
	stayWithPeer(t, newPair(t, lab.Config{}))
}

func stayWithPeer(t *testing.T, p *pair) {
	p.addPeers(t)
	p.echo(t, p.beta, nil)
	c := p.mustOpen(t, p.alpha)
	if err := ping(c, "before"); err != nil {
		t.Fatal(err)
	}
	p.loadImpostor(t)
	p.beta.stop() // it has the stream as well, and might end mallory's SA before alpha sees it
	events, cancel := p.alpha.m.Events()
	defer cancel()
	for range 3 {
		deleteIKE(t, p.alpha, "beta")
		p.becomeMallory(t)
		seen := map[ipsec.EventKind]ipsec.Event{}
		timeout := time.After(2 * time.Minute)
		for len(seen) < 1 {
			select {
			case e := <-events:
				if e.Kind == ipsec.EventImpostor {
					seen[e.Kind] = e
				}
			case <-timeout:
				t.Fatal("nobody noticed mallory")
			}
		}
		if e := seen[ipsec.EventImpostor]; e.Peer != "beta" || !strings.Contains(e.Detail, "mallory") || e.Reason != ipsec.ReasonIdentity {
			t.Errorf("event %+v", e)
		}
		eventually(t, "mallory's SA is gone", func() bool { return len(handChildren(t, p.alpha)) == 0 })
		if err := ping(c, "beta again"); err != nil {
			t.Fatal(err)
		}
		if id := c.Protection().Peer(); id != "beta" {
			t.Errorf("the stream's peer is %q", id)
		}
		// The SA carries the ping before the manager has read whose SA it is.
		eventually(t, "the status names beta", func() bool {
			st, err := p.alpha.m.PeerStatus("beta")
			return err == nil && st.Live != nil && st.Live.RemoteID == "beta" && st.State == ipsec.StateUp
		})
	}
	st, _ := p.alpha.m.PeerStatus("beta")
	if ended := st.Counters.Impostors; ended < 3 {
		t.Errorf("%d children of mallory's were ended, 3 there were", ended)
	}
}

// handChildren are the children of the connection loaded by hand.
func handChildren(t *testing.T, h *host) (names []string) {
	t.Helper()
	s, err := vici.NewSession(vici.WithSocketPath(h.ViciSocket()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for m, err := range s.CallStreaming(ctx, "list-sas", "list-sa", message(t, "ike", "evil")) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, m.Keys()...)
	}
	return names
}
