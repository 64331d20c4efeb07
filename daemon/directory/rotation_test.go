package directory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// A rotation of the m_key ends with the manager's process at each of its steps. When the manager comes back it opens each agent, and
// gives it the key of its file.
func TestRotationThatEndsAtAnyStep(t *testing.T) {
	const old mad.Key = 0x1234
	for name, rotate := range map[string]func(s *site, of *conf.Config){
		"before the new key is written": func(s *site, of *conf.Config) {
			k := s.host("alpha").dir.keeping()
			if err := k.portKeys.Set(map[mad.GUID]mad.Key{GUIDOf("beta"): old}); err != nil {
				s.t.Fatal(err)
			}
		},
		"before a host has it": func(s *site, of *conf.Config) { s.rotate() },
		"before it is recorded that a host has it": func(s *site, of *conf.Config) {
			s.rotate()
			alpha := s.host("alpha")
			file := filepath.Join(alpha.state, "fabric-ports.key")
			before, err := os.ReadFile(file)
			if err != nil {
				s.t.Fatal(err)
			}
			fresh := s.load(of)
			alpha.start(fresh, "alpha")
			until(s.t, func() bool { return s.host("beta").keyOfPort().Equal(fresh.Keys.M()) })
			alpha.dir.Close()
			if err := os.WriteFile(file, before, 0o600); err != nil {
				s.t.Fatal(err)
			}
		},
		"and the host has been away for two": func(s *site, of *conf.Config) {
			s.host("beta").dir.Close()
			for range 2 {
				s.rotate()
				s.host("alpha").start(s.load(of), "alpha")
				until(s.t, func() bool { return s.host("alpha").dir.manages().isMaster() })
			}
			s.host("beta").start(settings(s.t, "", nil), "alpha")
		},
		"before it is recorded that a host has it, and the host is away for the next one": func(s *site, of *conf.Config) {
			s.rotate()
			alpha, beta := s.host("alpha"), s.host("beta")
			file := filepath.Join(alpha.state, "fabric-ports.key")
			before, err := os.ReadFile(file)
			if err != nil {
				s.t.Fatal(err)
			}
			fresh := s.load(of)
			alpha.start(fresh, "alpha")
			until(s.t, func() bool { return beta.keyOfPort().Equal(fresh.Keys.M()) })
			beta.dir.Close()
			alpha.dir.Close()
			if err := os.WriteFile(file, before, 0o600); err != nil {
				s.t.Fatal(err)
			}
			alpha.start(fresh, "alpha")
			s.rotate()
			beta.start(settings(s.t, "", nil), "alpha")
		},
		"and the host's ends, too": func(s *site, of *conf.Config) {
			s.rotate()
			s.host("beta").start(settings(s.t, "", nil), "alpha")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			s := newSite(t, "alpha", "beta")
			alpha, beta := s.hosts[0], s.hosts[1]
			beta.agent = true
			of := settings(t, "m_key_protection 2", map[conf.KeyName]mad.Key{conf.MKey: old})
			alpha.start(of, "alpha")
			beta.start(settings(t, "", nil), "alpha")
			until(t, func() bool {
				_, recorded := alpha.dir.keeping().portKey(GUIDOf("beta"))
				return recorded && beta.keyOfPort() == old
			})
			rotate(s, of)
			alpha.dir.Close()
			fresh := s.load(of)
			alpha.start(fresh, "alpha")
			until(t, func() bool { return beta.keyOfPort().Equal(fresh.Keys.M()) })
			until(t, func() bool { return alpha.dir.Drain(t.Context(), GUIDOf("beta"), true) == nil })
			if !beta.dir.Drained() {
				t.Error("the agent is not open")
			}
		})
	}
}

// rotate writes a new m_key, as far as the first step goes.
func (s *site) rotate() {
	s.t.Helper()
	until(s.t, func() bool { return s.host("alpha").dir.manages().isMaster() })
	if _, err := s.host("alpha").dir.Rotate([]conf.KeyName{conf.MKey}); err != nil {
		s.t.Fatal(err)
	}
}

// load reads settings again.
func (s *site) load(of *conf.Config) *conf.Config {
	s.t.Helper()
	c, err := conf.Load(of.File)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// keyOfPort is the M_Key that a host's agent has.
func (h *testHost) keyOfPort() mad.Key {
	g := h.dir.manages()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent == nil {
		return 0
	}
	return g.agent.Keys().MKey
}
