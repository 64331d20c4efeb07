package attack

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// attack is one thing that a hostile party tries.
type attack struct {
	name  string
	check checks.Check
	// try makes the attack and reports whether it got what it wanted. Where it did not,
	// try itself reports what should have happened and did not.
	try func(v *target) (succeeded bool)
}

// run makes attacks, each on a target of its own.
func run(t *testing.T, attacks ...attack) {
	t.Helper()
	runOn(t, newTarget, attacks...)
}

// runOn is run with targets of another kind.
func runOn(t *testing.T, newTarget func(*testing.T) *target, attacks ...attack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			v := newTarget(t)
			switch succeeded := a.try(v); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// target is a device with a service on it.
type target struct {
	*testing.T
	dev *verbs.Device
	ulp *verbs.ULP
	pd  *verbs.PD
	cq  *verbs.CQ

	// reroute, if not nil, puts the peer's segments on another LLP and returns the
	// target's end of that.
	reroute func(t *testing.T, attacker ddp.LLP) ddp.LLP

	mayBeRefused bool // an attack ends by a refusal if the trust model does not permit it
}

func newTarget(t *testing.T) *target {
	t.Helper()
	return newTargetAs(t, verbs.Config{}, verbs.ST)
}

func newTargetAs(t *testing.T, cfg verbs.Config, m verbs.TrustModel) *target {
	t.Helper()
	v := &target{T: t}
	var err error
	if v.dev, err = verbs.Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.dev.Close() })
	v.ulp = v.consumer("service", m)
	v.pd = must(v.ulp.AllocPD())(t)
	v.cq = must(v.ulp.CreateCQ(1<<12, nil))(t)
	return v
}

func (v *target) consumer(name string, m verbs.TrustModel) *verbs.ULP {
	return must(v.dev.NewULP(name, verbs.ULPConfig{Trust: m}))(v.T)
}

func must[T any](x T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

const patience = 20 * time.Second
