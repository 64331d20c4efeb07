package directory

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// streams are those that a host has with managers; who has another one later has lost one.
func (h *testHost) streams() (all []*port) {
	m, _ := h.dir.roles()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.managers {
		all = append(all, one.port)
	}
	return all
}

// dropped reports whether the host's directory has dropped a request of another for a reason.
func (h *testHost) dropped(of string, why sa.Reason) bool {
	v, _ := h.dir.View()
	return slices.ContainsFunc(v.Drops, func(c sa.DropCount) bool { return c.From.GUID == GUIDOf(of) && c.ByReason[why] > 0 })
}

// seesSecurity reports whether a host has subscribed to violations of M_Keys, and whether it may see them.
func (h *testHost) seesSecurity(of string) (subscribed, trusted bool) {
	v, _ := h.dir.View()
	for _, s := range v.Subscriptions {
		if s.Owner.GUID == GUIDOf(of) && s.Filter.Generic == 1 && s.Filter.TrapNumber == mad.TrapMKey {
			return true, s.Trusted
		}
	}
	return false, false
}

// Each option of fabric.conf holds from a reload on, and no stream ends by it: at no time is there no directory.
func TestSettingsThatChangeEndNoStream(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma", "delta")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	saKey := map[conf.KeyName]mad.Key{conf.SAKey: 0x5a5a}
	for _, h := range s.hosts[:3] {
		h.start(settings(t, "", saKey), "alpha")
	}
	for _, h := range s.hosts[:3] {
		h.awaitMaster()
		until(t, func() bool { _, trusted := alpha.seesSecurity(h.name); return trusted })
	}
	beta.announce(Service{Name: "one", Kind: Export}, Service{Name: "two", Kind: Export})
	until(t, func() bool { found := gamma.lookup("two"); return len(found) == 1 })
	before := map[*testHost][]*port{}
	for _, h := range s.hosts[:3] {
		before[h] = h.streams()
	}
	apply := func(h *testHost, text string, keys map[conf.KeyName]mad.Key) {
		t.Helper()
		h.start(settings(t, text, keys), "alpha")
		if _, _, err := h.dir.asMember(); err != nil {
			t.Errorf("%s, after %q: %v", h.name, text, err)
		}
	}
	apply(alpha, "sa_enhanced_trust_model TRUE\nsa_etm_max_num_srvcs 3\nsm_priority 9", saKey)
	if found, err := gamma.dir.Lookup(t.Context(), "two", 0); err != nil || len(found) != 1 {
		t.Errorf("gamma finds %+v, %v", found, err)
	}
	until(t, func() bool { return beta.dir.Managers()[0].Info.Priority == 9 })

	// The limit holds for a host without the SA_Key, and its tables are dropped.
	delta := s.host("delta").speak("alpha", deaf{})
	ask := func(method mad.Method, n uint64) {
		t.Helper()
		if err := delta.send(request(method, mad.AttrServiceRecord, serviceAll, n, mad.ServiceRecord{ID: n, GID: gid(GUIDOf("delta")), Lease: 60})); err != nil {
			t.Fatal(err)
		}
	}
	for n := range uint64(4) {
		ask(mad.MethodSet, n)
	}
	ask(mad.MethodGetTable, 9)
	until(t, func() bool {
		return alpha.dropped("delta", sa.TooManyServices) && alpha.dropped("delta", sa.NotAllowed)
	})

	// Another SA_Key: who had the old one is trusted no more, in what it has subscribed to, too, until it has the new one.
	saKey = map[conf.KeyName]mad.Key{conf.SAKey: 0xa5a5}
	apply(alpha, "sa_enhanced_trust_model TRUE", saKey)
	for _, h := range []*testHost{beta, gamma} {
		if subscribed, trusted := alpha.seesSecurity(h.name); !subscribed || trusted {
			t.Errorf("%s has subscribed to security traps: %v, and sees them: %v", h.name, subscribed, trusted)
		}
	}
	until(t, func() bool { _, trusted := alpha.seesSecurity("alpha"); return trusted })
	apply(beta, "", saKey)
	until(t, func() bool { _, trusted := alpha.seesSecurity("beta"); return trusted })
	if _, trusted := alpha.seesSecurity("gamma"); trusted {
		t.Error("gamma is trusted by the old SA_Key")
	}
	if _, err := beta.dir.Services(t.Context()); err != nil {
		t.Errorf("beta has the new SA_Key, and its GetTable: %v", err)
	}
	apply(gamma, "", nil)
	apply(alpha, "", saKey)
	if _, err := gamma.dir.Services(t.Context()); err != nil {
		t.Errorf("the model is off, and gamma's GetTable: %v", err)
	}
	for _, h := range s.hosts[:3] {
		if now := h.streams(); !slices.Equal(now, before[h]) {
			t.Errorf("%s has lost a stream: %v, before %v", h.name, now, before[h])
		}
	}
}

// The priority of a manager rises: the other one hands over to it, and hosts find the directory where it is then, by the streams that they have.
func TestPriorityThatChanges(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	beta, gamma := s.hosts[1], s.hosts[2]
	for _, h := range s.hosts {
		h.start(settings(t, "sm_priority 5", nil), "alpha", "beta")
	}
	first, other := s.hosts[0], beta
	if GUIDOf("beta") < GUIDOf("alpha") {
		first, other = beta, first
	}
	until(t, func() bool { return gamma.masterOf() == first.name && other.masterOf() == first.name })
	before := gamma.streams()
	other.start(settings(t, "sm_priority 6", nil), "alpha", "beta")
	until(t, func() bool { return gamma.masterOf() == other.name && !first.dir.manages().isMaster() })
	if now := gamma.streams(); !slices.Equal(now, before) {
		t.Errorf("gamma has lost a stream: %v, before %v", now, before)
	}
}

// The key of ports changes with the settings: all hosts have it, what was set stays over that, and no stream ends.
func TestMKeyThatChanges(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	alpha, beta := s.hosts[0], s.hosts[1]
	beta.agent = true
	beta.start(settings(t, "", nil), "alpha")
	alpha.start(settings(t, "m_key_protection 2", map[conf.KeyName]mad.Key{conf.MKey: 0x1111}), "alpha")
	until(t, func() bool { return beta.keyOfPort() == 0x1111 })
	if err := alpha.drain("beta", true); err != nil {
		t.Fatal(err)
	}
	before := beta.streams()
	alpha.start(settings(t, "m_key_protection 2", map[conf.KeyName]mad.Key{conf.MKey: 0x2222}), "alpha")
	until(t, func() bool { return beta.keyOfPort() == 0x2222 })
	if now := beta.streams(); !slices.Equal(now, before) || !beta.dir.Drained() {
		t.Errorf("beta's stream: %v, before %v; drained: %v", now, before, beta.dir.Drained())
	}
	// Its own administrator has another one: that wins, and the host stays drained.
	beta.start(settings(t, "m_key_protection 1", map[conf.KeyName]mad.Key{conf.MKey: 0x3333}), "alpha")
	if key := beta.keyOfPort(); key != 0x3333 {
		t.Errorf("beta's key is %#x", uint64(key))
	}
	if now := beta.streams(); !slices.Equal(now, before) || !beta.dir.Drained() {
		t.Errorf("beta's stream: %v, before %v; drained: %v", now, before, beta.dir.Drained())
	}
}
