package ipsectest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// What Debian's unit runs when strongSwan is reloaded, and what an administrator may
// run: each unloads from strongSwan what IronWarp has loaded.
func TestWhatSwanctlUnloadsIsLoadedAgain(t *testing.T) {
	all := []string{"--load-all", "--noprompt"}
	for _, tc := range []struct {
		name  string
		certs bool
		at    string
		args  []string
	}{
		{"reload where the streams come from", false, "alpha", all},
		{"reload where the streams go to", false, "beta", all},
		{"reload with certificates", true, "alpha", all},
		{"reload with certificates where the streams go to", true, "beta", all},
		{"secrets cleared", false, "alpha", []string{"--load-creds", "--clear", "--noprompt"}},
		{"secrets cleared with certificates", true, "beta", []string{"--load-creds", "--clear", "--noprompt"}},
		{"connections alone", false, "alpha", []string{"--load-conns"}},
		{"authorities alone", true, "alpha", []string{"--load-authorities"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			ca := newAuthority(t, "lab")
			p.addWith(t, func(h *host, c *pad.Peer) {
				if tc.certs {
					ca.withCertificates(h, c)
				}
			})
			p.beta.echo(t, nil)
			k := talk(p.alpha.mustDial(t, p.beta))
			k.moves(t, 10)
			at := p.alpha
			if tc.at == "beta" {
				at = p.beta
			}
			before := given(t, at)
			events, cancel := at.m.Events()
			defer cancel()
			empty := filepath.Join(at.Dir(), "swanctl.conf")
			if err := os.WriteFile(empty, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := swanctl(t, at.Host, append(tc.args, "--file", empty)...); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for reported := false; !reported; {
				select {
				case e := <-events:
					reported = e.Kind == ipsec.EventReloaded && e.Peer == p.other(at).Name() && e.Detail != ""
				case <-t.Context().Done():
					t.Fatal("nobody said that strongSwan had lost the peer")
				}
			}
			eventually(t, "strongSwan has all that it had", func() bool { return maps.Equal(given(t, at), before) })
			if st, err := at.m.PeerStatus(p.other(at).Name()); err != nil || !st.Loaded || st.Counters.Reloads == 0 {
				t.Errorf("status %+v, %v", st, err)
			}
			// New IKE SAs and children on both hosts need the connection, and the credentials of
			// both.
			for range 3 {
				if _, err := p.alpha.m.DeleteIKE(t.Context(), "beta"); err != nil {
					t.Fatal(err)
				}
				k.moves(t, 20)
			}
			k.end(t)
		})
	}
}

// given is what IronWarp has loaded into a host's strongSwan, without the certificates,
// which include peers' certificates that strongSwan remembers.
func given(t *testing.T, h *host) map[string]int {
	t.Helper()
	n := loaded(t, h)
	delete(n, "certificates")
	return n
}

// Nothing checks between the unloading and the attempt: the attempt itself has to
// notice.
func TestAttemptThatFindsItsConnectionUnloadedLoadsIt(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	c := p.alpha.mustDial(t, p.beta)
	for i := range 6 {
		if err := ping(c, fmt.Sprint("round ", i)); err != nil {
			t.Fatal(err)
		}
		if i == 5 {
			break
		}
		// An attempt may fail while strongSwan ends the IKE SA.
		p.acknowledged(t)
		charonCall(t, p.alpha, "unload-conn", "name", "beta")
		if _, err := p.alpha.m.DeleteIKE(t.Context(), "beta"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the stream is paused", func() bool { return c.Protection().Paused() })
	}
	if st, err := p.alpha.m.PeerStatus("beta"); err != nil || st.Counters.Reloads < 5 || st.Counters.Failures > 0 {
		t.Errorf("loaded again %d times, %d attempts failed (%s), want 5 or more and 0; %v", st.Counters.Reloads, st.Counters.Failures, st.LastError, err)
	}
}
