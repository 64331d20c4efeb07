package rnbd

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// A session is trusted no more than each export permits that its peer may open, and
// one of before a change can't open what permits less now.
func TestSessionsAreTrustedAsFarAsTheirExports(t *testing.T) {
	export := func(name string, m verbs.TrustModel, allow ...transport.Identity) Export {
		e := ramExport(name, newRAM(1<<16))
		e.Writers = SharedWriters // the test opens it twice
		e.Trust, e.AllowAll, e.Allow = m, len(allow) == 0, allow
		return e
	}
	var srv *testServer
	cfg := rtrs.ServerConfig{TrustOf: func(p transport.Identity) verbs.TrustModel { return srv.TrustOf(p, verbs.ST) }}
	srv = startServerAt(t, netip.MustParseAddrPort("127.0.0.1:0"), cfg,
		export("one", verbs.SLT), export("two", verbs.ST), export("another's", verbs.NSNT, "another"))
	if got := srv.TrustOf("another", verbs.ST); got != verbs.NSNT {
		t.Errorf("another peer is trusted as %v", got)
	}
	if got := srv.TrustOf("somebody", verbs.SNT); got != verbs.SNT {
		t.Errorf("somebody is trusted as %v where the service is S-NT", got)
	}
	c := connect(t, srv.addr)
	openDisk(t, c, "one")
	openDisk(t, c, "two")
	if got := srv.rt.Sessions()[0].Trust; got != verbs.SLT {
		t.Errorf("the session is %v, want S-LT", got)
	}
	if err := srv.SetTrust("two", verbs.NSNT); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(testContext(t), "two", OpenOptions{}); !errors.Is(err, ErrTrusted) {
		t.Errorf("opened in an S-LT session: %v", err)
	}
	for _, qp := range srv.dev.QPs() {
		qp.Abort(errors.New("its trust has changed"))
	}
	eventually(t, "the session comes back and trusts nobody", func() bool {
		all := srv.rt.Sessions()
		return len(all) == 1 && all[0].State == rtrs.SessionOpen && all[0].Trust == verbs.NSNT
	})
	openDisk(t, c, "two")
	openDisk(t, c, "one")
	if err := srv.SetTrust("none", verbs.ST); !errors.Is(err, ErrNotFound) {
		t.Errorf("an export that does not exist: %v", err)
	}
}
