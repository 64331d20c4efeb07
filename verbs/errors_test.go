package verbs

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

// Each error begins with the package that found what is wrong, once.
func TestErrorsBeginWithTheirPackage(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	llps[0].pair(t, a, b)
	other, err := a.dev.NewULP("other", ULPConfig{Trust: SNT, Quota: Quota{MRs: 1}})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := other.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	mem := a.mr(8, LocalWrite)
	closed, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	of := func(_ any, err error) error { return err }
	dial := func(ctx context.Context, cfg QPConfig, tc *transport.Config) error {
		_, err := a.pd.Dial(ctx, DialConfig{QP: cfg, Remote: netip.MustParseAddrPort("127.0.0.1:1"), Transport: tc})
		return err
	}
	impossible := a.cfg
	impossible.IRD = -1
	form := regexp.MustCompile(`^(verbs|transport|mpa|sctpadapt|sctp|rdmap): `)
	found := map[string]error{
		"a device with impossible limits": of(Open(Config{Limits: Limits{MRs: -1}})),
		"a ULP with an impossible quota":  of(a.dev.NewULP("x", ULPConfig{Quota: Quota{MRs: -1}})),
		"a ULP of a closed device":        of(closed.NewULP("x", ULPConfig{})),
		"impossible limits":               a.dev.SetLimits(Limits{MRs: -1}),
		"an impossible policy":            a.dev.SetSlowPolicy(SlowPolicy{PerSecond: -1}),
		"a trust model":                   of(ParseTrustModel("any")),
		"too much trust":                  of(other.AllocPDAs(ST)),
		"a completion queue":              of(a.ulp.CreateCQ(0, nil)),
		"a shared receive queue":          of(a.pd.CreateSRQ(SRQConfig{})),
		"no memory":                       of(a.pd.RegisterMR(nil, 0)),
		"another ULP's memory":            of(pd.RegisterMR(mem.Bytes(), 0)),
		"a protection domain in use":      a.pd.Dealloc(),
		"a completion queue in use":       a.cq.Destroy(),
		"a ULP in use":                    a.ulp.Close(),
		"a window outside":                of(mem.Reregister(1, 8, 0)),
		"no such operation":               a.qp.PostSend(&SendWR{Op: 99}),
		"memory outside":                  a.qp.PostSend(&SendWR{Op: OpSend, SGL: whole(mem, 9)}),
		"a receive without memory":        a.qp.PostRecv(RecvWR{SGL: []SGE{{Len: 1}}}),
		"no stream":                       a.dev.Kill(1, "why"),
		"adopting nothing":                of(a.pd.Adopt(AdoptConfig{QP: a.cfg})),
		"dialling with impossible depths": dial(testContext(t), impossible, tcp),
		"dialling without queues":         dial(testContext(t), QPConfig{}, tcp),
		"dialling without a Protector":    dial(testContext(t), a.cfg, nil),
		"dialling nobody":                 dial(testContext(t), a.cfg, tcp),
		"dialling too late":               dial(over, a.cfg, tcp),
		"dialling nobody over SCTP":       dial(testContext(t), a.cfg, &transport.Config{Kind: transport.SCTP}),
	}
	b.qp.Abort(nil)
	b.wantEnd()
	found["a send after the end"] = b.qp.PostSend(&SendWR{Op: OpSend})
	found["a receive after the end"] = b.qp.PostRecv(RecvWR{})
	for name, err := range found {
		switch {
		case err == nil:
			t.Errorf("%s: no error", name)
		case !form.MatchString(err.Error()) && !errors.Is(err, context.Canceled):
			t.Errorf("%s: which package says %q?", name, err)
		case strings.Count(err.Error(), "verbs: ") > 1 || strings.Count(err.Error(), "transport: ") > 1:
			t.Errorf("%s: a package names itself twice: %q", name, err)
		}
	}
}
