package ipsectest

import (
	"net/http"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// TestPeerWhoseStatusIsLongInComingShutsNobodyOut makes strongSwan ask an OCSP
// responder that does not answer for the status of a peer's certificate: meanwhile, for
// ten seconds, it lists no SAs. That does not mean that it has ended, and other peers'
// streams neither pause nor are refused. Anybody with a peer's certificate, which is
// public, can cause it.
func TestPeerWhoseStatusIsLongInComingShutsNobodyOut(t *testing.T) {
	l := lab.Start(t, lab.Config{Canary: canary, Hosts: []string{"alpha", "beta", "gamma"}})
	p := &pair{lab: l, alpha: newHostWith(t, l.Host("alpha"), ike.CallTimeout), beta: newHost(t, l.Host("beta")), key: auth.GenerateSecret()}
	certified := &pair{lab: l, alpha: p.alpha, beta: newHost(t, l.Host("gamma"))}
	ca := newAuthority(t, "lab")
	asked, over := make(chan struct{}, 10), make(chan struct{})
	uri := ca.serve(p.alpha, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-over
	}))
	defer close(over)
	p.addPeers(t)
	certified.addWith(t, func(h *host, c *pad.Peer) {
		if ca.withCertificates(h, c); h == p.alpha {
			c.CAs[0].OCSPURIs = []string{uri}
		}
	})
	p.echo(t, p.alpha, nil)
	k := talk(p.mustOpen(t, p.beta))
	k.moves(t, 20)
	before := p.alpha.m.DaemonStatus()

	refused := make(chan error, 1)
	go func() {
		_, err := certified.beta.dial(t, p.alpha)
		refused <- err
	}()
	<-asked
	begin := time.Now()
	c := p.beta.mustDial(t, p.alpha)
	came := make(chan error, 1)
	go func() { came <- ping(c, "meanwhile") }()
	deleteChild(t, p.beta, "alpha")
	k.longest()
	k.moves(t, 50)
	t.Logf("another stream whose SA was deleted stood still for %v", k.longest().Round(time.Millisecond))
	if d := time.Since(begin); d > ike.CallTimeout {
		t.Errorf("that took %v: until strongSwan lists again", d)
	}
	if err := <-came; err != nil {
		t.Errorf("a stream that came meanwhile: %v", err)
	}
	t.Logf("one that came meanwhile was served after %v", time.Since(begin).Round(time.Millisecond))
	if err := <-refused; err == nil {
		t.Error("a certificate of unknown status was accepted")
	}
	k.end(t)
	if now := p.alpha.m.DaemonStatus(); now.Restarts != before.Restarts {
		t.Errorf("strongSwan was taken for dead %d times", now.Restarts-before.Restarts)
	}
	if st, _ := p.alpha.m.PeerStatus("beta"); st.Counters.Refused != 0 || st.Counters.LostByCharon != 0 {
		t.Errorf("beta's streams: %+v", st.Counters)
	}
}
