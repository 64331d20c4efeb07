package attack

import (
	"errors"
	"reflect"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// party is a local consumer with what streams need, and their peer.
type party struct {
	v   *target
	ulp *verbs.ULP
	pd  *verbs.PD
	cq  *verbs.CQ
	id  transport.Identity
}

func (v *target) party(ulp *verbs.ULP, id transport.Identity) *party {
	v.Helper()
	return &party{v: v, ulp: ulp, pd: must(ulp.AllocPD())(v.T), cq: must(ulp.CreateCQ(1, nil))(v.T), id: id}
}

// stream makes a stream of the party's.
func (p *party) stream(cfg verbs.QPConfig) error {
	cfg.SendCQ, cfg.RecvCQ = p.cq, p.cq
	_, err := p.v.streamAs(p.pd, cfg, iwarptest.Options{}, p.id)
	return err
}

// kind is a kind of resource that a device divides.
type kind struct {
	name  string
	peers bool                              // it is divided among peers, too
	of    func(l *verbs.Limits) *int64      // its limit
	unit  int64                             // what take takes
	take  func(p *party) error              // one unit
	bulk  func(p *party, units int64) error // many at once; nil: it takes one call each
}

var kinds = []kind{
	{name: "streams", peers: true, unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.Streams },
		take: func(p *party) error { return p.stream(verbs.QPConfig{MaxSend: 1, MaxRecv: 1}) }},
	{name: "streams being dialled", unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.Dials },
		take: (*party).dial},
	{name: "protection domains", unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.PDs },
		take: func(p *party) error { _, err := p.ulp.AllocPD(); return err }},
	{name: "memory regions", unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.MRs },
		take: func(p *party) error { _, err := p.pd.RegisterMR(make([]byte, 1), verbs.RemoteRead); return err }},
	{name: "memory windows", unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.MWs },
		take: func(p *party) error { _, err := p.pd.AllocMW(); return err }},
	{name: "registered bytes", unit: 100,
		of:   func(l *verbs.Limits) *int64 { return &l.Bytes },
		take: func(p *party) error { _, err := p.pd.RegisterMR(make([]byte, 100), verbs.RemoteRead); return err },
		bulk: func(p *party, n int64) error {
			_, err := p.pd.RegisterMR(make([]byte, n*100), verbs.RemoteRead)
			return err
		}},
	{name: "completion queue entries", unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.CQEntries },
		take: func(p *party) error { _, err := p.ulp.CreateCQ(1, nil); return err },
		bulk: func(p *party, n int64) error { _, err := p.ulp.CreateCQ(int(n), nil); return err }},
	{name: "work queue entries", peers: true, unit: 2,
		of:   func(l *verbs.Limits) *int64 { return &l.QueueEntries },
		take: func(p *party) error { return p.stream(verbs.QPConfig{MaxSend: 1, MaxRecv: 1}) },
		bulk: func(p *party, n int64) error { return p.stream(verbs.QPConfig{MaxSend: int(n), MaxRecv: int(n)}) }},
	{name: "shared receive queue entries", unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.SRQEntries },
		take: func(p *party) error { _, err := p.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 1}); return err },
		bulk: func(p *party, n int64) error { _, err := p.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: int(n)}); return err }},
	{name: "inbound read queue entries", peers: true, unit: 1,
		of:   func(l *verbs.Limits) *int64 { return &l.IRRQEntries },
		take: func(p *party) error { return p.stream(verbs.QPConfig{MaxSend: 1, MaxRecv: 1, IRD: 1}) },
		bulk: func(p *party, n int64) error { return p.stream(verbs.QPConfig{MaxSend: 1, MaxRecv: 1, IRD: int(n)}) }},
}

// many takes n units, at once if that can be.
func (k kind) many(p *party, n int64) (err error) {
	if k.bulk != nil {
		return k.bulk(p, n)
	}
	for range n {
		err = k.take(p)
	}
	return err
}

// units is how many units of the kind under test there are: a sixth is reserved for each
// of two principals and for a third one that may come; half goes to whoever asks first.
const units = 48

// scarce is a device with units of k and two consumers or, for peers, one consumer
// with two peers: one that takes all it gets, and one that asks later.
func scarce(v *target, k kind, peers bool, quota int64) (greedy, late *party) {
	v.dev.Close()
	cfg := verbs.Config{}
	*k.of(&cfg.Limits) = units * k.unit
	ulp := verbs.ULPConfig{Trust: verbs.ST}
	if quota > 0 && peers {
		*k.of(&cfg.Peer) = quota * k.unit
	} else if quota > 0 {
		*k.of(&ulp.Quota) = quota * k.unit
	}
	v.dev = must(verbs.Open(cfg))(v.T)
	v.Cleanup(func() { v.dev.Close() })
	mallory := must(v.dev.NewULP("mallory", ulp))(v.T)
	if peers {
		greedy = v.party(mallory, "mallory")
		other := *greedy
		other.id = "alice"
		return greedy, &other
	}
	return v.party(mallory, "mallory"), v.party(v.consumer("alice", verbs.ST), "alice")
}

// used is how much of k the principal has.
func (k kind) used(p *party, peers bool) int64 {
	r := p.v.dev.Resources()
	list, name := r.ULPs, p.ulp.Name()
	if peers {
		list, name = r.Peers, string(p.id)
	}
	for _, u := range list {
		if u.Name == name {
			return *k.of(&u.Used)
		}
	}
	return 0
}

// device is how much of k is in use.
func (v *target) device(k kind) int64 {
	u := v.dev.Usage()
	return *k.of(&u)
}

// eachKind makes an attack on each kind of scarce thing, by a consumer and, where a
// peer can, by a peer.
func eachKind(c checks.Check, try func(v *target, k kind, peers bool) bool) (attacks []attack) {
	for _, k := range kinds {
		attacks = append(attacks, attack{k.name + "/by a consumer", c, func(v *target) bool { return try(v, k, false) }})
		if k.peers {
			attacks = append(attacks, attack{k.name + "/by a peer", c, func(v *target) bool { return try(v, k, true) }})
		}
	}
	return attacks
}

// wantQuotaError checks that an allocation was refused for want of something.
func (v *target) wantQuotaError(err error) {
	v.Helper()
	var q *verbs.QuotaError
	if !errors.As(err, &q) {
		v.Errorf("refused with %v, want a QuotaError", err)
	}
}

// One principal takes all that it gets of a kind. Another, which comes later, still
// gets its share (R2, R28; RFC 5042 sections 3 and 7.2).
func TestGreedyPrincipalLeavesOthersTheirShare(t *testing.T) {
	run(t, eachKind(checks.FairShare, func(v *target, k kind, peers bool) bool {
		greedy, late := scarce(v, k, peers, 0)
		for n := 0; ; n++ {
			if err := k.take(greedy); err != nil {
				v.wantQuotaError(err)
				break
			}
			if n > units {
				v.Fatal("it may have more than there is")
			}
		}
		for k.used(late, peers) < units/6*k.unit {
			if err := k.take(late); err != nil {
				v.Log(err)
				return true
			}
		}
		return false
	})...)
}

// The same in one request for everything.
func TestGreedyPrincipalAsksForAllAtOnce(t *testing.T) {
	run(t, eachKind(checks.FairShare, func(v *target, k kind, peers bool) bool {
		greedy, late := scarce(v, k, peers, 0)
		left := units - v.device(k)/k.unit
		if err := k.many(greedy, left); err != nil {
			v.wantQuotaError(err)
		}
		return k.take(late) != nil
	})...)
}

// A principal whose administrator has given it 3 takes a fourth, where there is
// enough for everybody (R2).
func TestPrincipalBeyondItsQuota(t *testing.T) {
	run(t, eachKind(checks.PeerQuota, func(v *target, k kind, peers bool) bool {
		const quota = 3
		greedy, _ := scarce(v, k, peers, quota)
		for k.used(greedy, peers) < quota*k.unit {
			if err := k.take(greedy); err != nil {
				v.Fatalf("within the quota: %v", err)
			}
		}
		err := k.take(greedy)
		if err != nil {
			v.wantQuotaError(err)
		}
		return err == nil
	})...)
}

// The same in one request, made while nothing is in use (R2).
func TestPrincipalAsksForMoreThanItsQuota(t *testing.T) {
	run(t, eachKind(checks.PeerQuota, func(v *target, k kind, peers bool) bool {
		const quota = 3
		greedy, _ := scarce(v, k, peers, quota)
		used := k.used(greedy, peers) / k.unit
		err := k.many(greedy, quota+1-used)
		if err != nil {
			v.wantQuotaError(err)
		}
		return err == nil
	})...)
}

// The attacks above are on every kind of resource, except half-open streams, whose
// consumer is not known yet: those of section 6.4.1 attack them.
func TestEveryScarceThingIsAttacked(t *testing.T) {
	for f := range reflect.TypeFor[verbs.Limits]().Fields() {
		attacked := f.Name == "HalfOpen"
		for _, k := range kinds {
			var l verbs.Limits
			*k.of(&l) = 1
			attacked = attacked || reflect.ValueOf(l).FieldByIndex(f.Index).Int() == 1
		}
		if !attacked {
			t.Errorf("nothing attacks the limit of %s", f.Name)
		}
	}
}
