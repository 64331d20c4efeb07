package directory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// settings are a fabric.conf of a test, with quick elections; keys are those of files, by name.
func settings(t *testing.T, text string, keys map[conf.KeyName]mad.Key) *conf.Config {
	t.Helper()
	dir := t.TempDir()
	text += "\nsminfo_polling_timeout 100\npolling_retry_number 3\n"
	for name, key := range keys {
		path := filepath.Join(dir, string(name))
		if err := os.WriteFile(path, fmt.Appendf(nil, "%#x\n", uint64(key)), 0o600); err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("%s %s\n", name, path)
	}
	file := filepath.Join(dir, "fabric.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := conf.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// masterOf is the manager that a host asks, "" if there is none.
func (h *testHost) masterOf() string {
	for _, m := range h.dir.Managers() {
		if m.Master {
			return m.Identity
		}
	}
	return ""
}

func TestManagersElectAMasterAndHostsFollow(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma", "delta")
	priority := map[string]int{"alpha": 3, "beta": 7, "gamma": 5}
	s.start(func(host string) *conf.Config { return settings(t, fmt.Sprintf("sm_priority %d", priority[host]), nil) }, "alpha", "beta", "gamma")
	delta := s.host("delta")
	delta.announce(Service{Name: "disk", Kind: Export})
	everybody := func(master string, but ...string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(s.hosts, func(h *testHost) bool { return !slices.Contains(but, h.name) && h.masterOf() != master })
		}
	}
	until(t, everybody("beta"))
	until(t, func() bool { return len(s.host("alpha").lookup("disk")) == 1 })
	s.host("beta").dir.Close()
	until(t, everybody("gamma", "beta"))
	until(t, func() bool { return len(s.host("alpha").lookup("disk")) == 1 })
	s.host("beta").start(settings(t, "sm_priority 7", nil), "alpha", "beta", "gamma")
	until(t, everybody("beta"))
	until(t, func() bool { return len(s.host("gamma").lookup("disk")) == 1 })
}

// A manager with another sm_key is no rival: it is reported, and our key is in no line.
func TestRivalWithAnotherKeyIsIgnored(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	keys := map[string]mad.Key{"alpha": 0x1122334455667788, "beta": 0x99aabbccddeeff01}
	s.start(func(host string) *conf.Config {
		return settings(t, "", map[conf.KeyName]mad.Key{conf.SMKey: keys[host]})
	}, "alpha", "beta")
	alpha := s.host("alpha")
	until(t, func() bool {
		alpha.mu.Lock()
		defer alpha.mu.Unlock()
		return slices.ContainsFunc(alpha.syslog, func(line string) bool {
			return strings.HasPrefix(line, "Found remote SM ") && strings.HasSuffix(line, "with non-matching sm_key")
		})
	})
	if !alpha.logged("ERR 2F18: Got SM ") || !alpha.logged("that doesn't match our local sm_key. Ignoring SMInfo.") {
		t.Error("the log does not have OpenSM's line")
	}
	until(t, func() bool { return alpha.dir.manages().isMaster() && s.host("beta").dir.manages().isMaster() })
	for _, h := range s.hosts {
		if own := fmt.Sprintf("%x", uint64(keys[h.name])); h.logged(own) || h.logged(strings.ToUpper(own)) {
			t.Errorf("%s's own sm_key is in its log", h.name)
		}
	}
}

// A manager's key is given to the agents of hosts, and renewed; it opens them for what agents take.
func TestAgentsHaveTheirManagersKeys(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	s.host("beta").agent = true
	alpha, beta := s.host("alpha"), s.host("beta")
	of := settings(t, "m_key_protection 2", map[conf.KeyName]mad.Key{conf.MKey: 0x1234})
	for _, h := range s.hosts {
		if h == alpha {
			h.start(of, "alpha")
		} else {
			h.start(settings(t, "", nil), "alpha")
		}
	}
	has := func(key mad.Key) func() bool {
		return func() bool {
			g := beta.dir.manages()
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.agent != nil && g.agent.Keys().MKey.Equal(key) && g.agent.Keys().Protect == 2
		}
	}
	until(t, has(0x1234))
	if err := alpha.drain("beta", true); err != nil {
		t.Fatal(err)
	}
	if !beta.dir.Drained() || !beta.wasDrained() {
		t.Error("beta is not drained")
	}
	if err := alpha.drain("beta", false); err != nil || beta.dir.Drained() {
		t.Errorf("beta stays drained: %v", err)
	}
	var err error
	until(t, func() bool { // gamma's stream may come after beta's
		err = alpha.dir.Drain(t.Context(), GUIDOf("gamma"), true)
		return err != errNoHost
	})
	if err != ErrNoAgent {
		t.Errorf("drain a host without an agent: %v", err)
	}
	if err := s.host("gamma").dir.Drain(t.Context(), GUIDOf("beta"), true); err != ErrNotMaster {
		t.Errorf("a host that is no manager drains another: %v", err)
	}
	hosts := alpha.dir.Hosts()
	if files, err := alpha.dir.Rotate([]conf.KeyName{conf.MKey}); err != nil || len(files) != 1 {
		t.Fatalf("rotate: %v, %v", files, err)
	}
	fresh, err := conf.Load(of.File)
	if err != nil || fresh.Keys.M().Equal(0x1234) {
		t.Fatalf("the file has the old key, or %v", err)
	}
	alpha.start(fresh, "alpha")
	var done []mad.GUID
	var missed map[mad.GUID]error
	until(t, func() bool { // beta may be too busy to answer
		done, missed, err = alpha.dir.GiveKeys(t.Context(), hosts)
		return missed[GUIDOf("beta")] != ErrNoAgent
	})
	if err != nil || len(done) != 1 || done[0] != GUIDOf("beta") || missed[GUIDOf("gamma")] != ErrNoAgent {
		t.Errorf("gave keys to %v, missed %v, %v", done, missed, err)
	}
	if !has(fresh.Keys.M())() {
		t.Error("beta has not the new key")
	}
	// What a manager has set outlives the host's daemon.
	beta.start(settings(t, "", nil), "alpha")
	if !has(fresh.Keys.M())() {
		t.Error("beta has not the key that it had before it was started anew")
	}
}

// drain has a host drained, and tries again where it is too busy to answer.
func (h *testHost) drain(host string, on bool) (err error) {
	h.site.t.Helper()
	until(h.site.t, func() bool {
		err = h.dir.Drain(h.site.t.Context(), GUIDOf(host), on)
		return err != ErrNoAgent
	})
	return err
}

func (h *testHost) wasDrained() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.drained
}

// Who is no manager sets nothing, whatever key it has, and gets no answer.
func TestNoManagerSetsNothing(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	s.host("alpha").agent = true
	s.start(func(string) *conf.Config {
		return settings(t, "m_key_protection 1", map[conf.KeyName]mad.Key{conf.MKey: 0x4321})
	}, "alpha")
	alpha, beta := s.host("alpha"), s.host("beta")
	beta.awaitMaster()
	m, at, err := beta.dir.asMember()
	if err != nil {
		t.Fatal(err)
	}
	smp := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodGet, Attribute: mad.AttrPortInfo, Modifier: 1}, MKey: 0x4321}
	if _, err := m.call.askTimes(t.Context(), at, m.packet(at, 0, smp.MAD()), 1); err != ErrSilence {
		t.Errorf("an agent answers who is no manager: %v", err)
	}
	if alpha.dir.Drained() || !beta.connected() {
		t.Error("alpha is drained, or has ended the stream")
	}
}

func (h *testHost) connected() bool { return h.dir.Managers()[0].Connected }

// Managers whose ports are protected know who the master is, themselves and each other, and violate no key by asking.
func TestManagersWithProtectedPorts(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	s.start(func(string) *conf.Config {
		return settings(t, "m_key_protection 2\nm_key_lease_period 1", map[conf.KeyName]mad.Key{conf.MKey: 0x1234})
	}, "alpha", "beta")
	for _, h := range s.hosts {
		h.awaitMaster()
		if h.logged("a manager has a wrong M_Key") {
			t.Errorf("%s violates a key by asking", h.name)
		}
	}
}

// A manager that becomes the master gives their keys at once to the hosts that have come before, and does not wait until it looks at all again.
func TestHostsThatCameBeforeTheMasterHaveTheirKeys(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	beta.agent = true
	managers := []string{"alpha", "gamma"}
	gamma.start(settings(t, "sm_priority 15", nil), managers...)
	gamma.awaitMaster()
	alpha.start(settings(t, "sm_priority 1", map[conf.KeyName]mad.Key{conf.MKey: 0x1234}), managers...)
	beta.start(settings(t, "", nil), managers...)
	until(t, func() bool {
		return alpha.masterOf() == "gamma" && beta.masterOf() == "gamma" && slices.Contains(alpha.dir.Hosts(), GUIDOf("beta"))
	})
	if key := beta.keyOfPort(); key != 0 {
		t.Fatalf("beta has the key %v of nobody", key)
	}
	gamma.dir.Close()
	until(t, func() bool { return beta.keyOfPort() == 0x1234 })
}
