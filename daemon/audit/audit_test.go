package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/verbs"
)

// host is a host with two peers behind ESP, an export, and nothing that weakens
// anything.
func host() *Snapshot {
	c := config.Default("/etc/ironwarp/ironwarp.yaml")
	c.ControlSocket = "/run/ironwarp/ironwarp.sock"
	s := &Snapshot{Config: c, Files: []File{{Path: c.Path, Mode: 0o600}, {Path: "/etc/ironwarp", Mode: fs.ModeDir | 0o755}, {Path: c.ControlSocket, Mode: fs.ModeSocket | 0o600, Socket: true}}}
	for i, name := range []string{"alpha", "beta"} {
		c.Peers = append(c.Peers, config.Peer{Name: name, Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Protection: config.ProtectIPsec,
			Auth: config.AuthPSK, Connections: 2, Resolved: profile.Default()})
		s.Peers = append(s.Peers, api.Peer{PeerSpec: api.PeerSpec{Name: name}, IPsec: &api.IPsec{Guarded: true}})
		s.Resources.Peers = append(s.Resources.Peers, principal(name, "streams", 170))
	}
	s.Resources.ULPs = []api.Principal{principal(config.ServiceExports, "memory", 128<<20), principal(config.ServicePing, "memory", 1<<20)}
	c.Exports = []config.Export{{Name: "docs", Allow: []string{"alpha", "beta"}}}
	return s
}

func principal(name, resource string, share int64) api.Principal {
	return api.Principal{Name: name, Uses: []api.Resource{{Name: resource, Share: share}}}
}

func TestAllIsMetAsInstalled(t *testing.T) {
	for name, s := range map[string]*Snapshot{"two peers": host(), "nobody": {Config: config.Default("/etc/ironwarp/ironwarp.yaml")}} {
		a := Run(s)
		if a.State != api.AuditMet || len(a.Requirements) != 34 {
			t.Errorf("%s: %s, %d requirements", name, a.State, len(a.Requirements))
		}
		for i, r := range a.Requirements {
			if r.ID != fmt.Sprintf("R%d", i+1) || r.Section == "" || r.Text == "" || r.How == "" || strings.HasPrefix(r.How, ";") {
				t.Errorf("%s: %+v", name, r)
			}
			if r.State != api.AuditMet || len(r.Weak) > 0 {
				t.Errorf("%s: %s is %s: %+v", name, r.ID, r.State, r.Weak)
			}
		}
	}
}

// The audit speaks of the requirements that docs/security.md lists.
func TestRequirementsAreThoseOfTheDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Run(host()).Requirements {
		if row := fmt.Sprintf("\n| %s | %s | %s |", r.ID, r.Section, r.Text); !strings.Contains(string(doc), row) {
			t.Errorf("the document has no row that begins with%s", row)
		}
	}
}

// Each setting that weakens something is found, with what it weakens and nothing
// else.
func TestEachWeakness(t *testing.T) {
	peer := func(change func(*config.Peer)) func(*Snapshot) {
		return func(s *Snapshot) { change(&s.Config.Peers[1]) }
	}
	profile := func(name string) func(*Snapshot) {
		return peer(func(p *config.Peer) { p.Resolved, _ = profile.ByName(name) })
	}
	conf := func(change func(*config.Config)) func(*Snapshot) { return func(s *Snapshot) { change(s.Config) } }
	service := func(name string, trust config.Trust) func(*Snapshot) {
		return conf(func(c *config.Config) { c.Services = map[string]config.Service{name: {Trust: trust}} })
	}
	for _, c := range []struct {
		name    string
		change  func(*Snapshot)
		state   string
		rows    string // that are not met as they should be
		setting string
		effect  string
	}{
		{"a peer in clear", peer(func(p *config.Peer) { p.Protection = config.ProtectPlaintext }), api.AuditNotMet, "R4 R19", "peer beta: insecure_plaintext: true", "in clear"},
		{"a target for anybody", conf(func(c *config.Config) { c.Targets = []config.Target{{Name: "disks", Undeclared: true}} }), api.AuditNotMet, "R4", "target disks: insecure_undeclared: true", "in clear"},
		{"no guard", func(s *Snapshot) { s.Peers[0].IPsec.Guarded = false }, api.AuditNotMet, "R4 R5", "guard of peer alpha", "nothing stops clear packets"},
		{"a hole in the guard", func(s *Snapshot) {
			s.Holes = map[string][]guard.Hole{"beta": {{What: "a policy of somebody's lets it pass", Fix: "remove it"}}}
		}, api.AuditNotMet, "R4 R5", "guard of peer beta", "a policy of somebody's"},
		{"a hole that is shut", func(s *Snapshot) {
			s.Holes = map[string][]guard.Hole{"beta": {{What: "a policy leads astray", Fix: "remove it", Shut: true}}}
		}, api.AuditWeakened, "R4 R5", "guard of peer beta", "leads astray"},
		{"a peer that is not set up", func(s *Snapshot) {
			s.Peers[0].IPsec, s.Peers[0].Problem = nil, &api.Error{Message: "no strongSwan", Fix: "start it"}
		}, api.AuditNotMet, "R4 R5", "guard of peer alpha", "no strongSwan"},
		{"a gateway", peer(func(p *config.Peer) { p.Gateway = netip.MustParseAddr("198.51.100.1") }), api.AuditWeakened, "R6", "peer beta: gateway: 198.51.100.1", "between 198.51.100.1 and 192.0.2.1"},
		{"no encryption", profile("rfc7146-null"), api.AuditWeakened, "R4", "peer beta: profile: rfc7146-null", "NO CONFIDENTIALITY"},
		{"aggressive mode", profile("rfc3723-aggressive"), api.AuditWeakened, "R4", "peer beta: profile: rfc3723-aggressive", "AGGRESSIVE MODE"},
		{"relaxed revocation", peer(func(p *config.Peer) { p.Auth, p.Revocation = config.AuthCert, auth.RevocationRelaxed }), api.AuditWeakened, "R4", "peer beta: revocation: relaxed", "is believed"},
		{"exports S-LT", service(config.ServiceExports, "S-LT"), api.AuditWeakened, "R3 R18 R22 R25", "services: exports: trust: S-LT", "sessions of peers alpha, beta at the exports are S-LT: "},
		{"exports S-T", service(config.ServiceExports, "S-T"), api.AuditWeakened, "R3 R18 R20 R21 R22 R25", "services: exports: trust: S-T", "are S-T: "},
		{"exports NS-RT", service(config.ServiceExports, "NS-RT"), api.AuditWeakened, "R18 R20", "services: exports: trust: NS-RT", "are NS-RT: "},
		{"requests that stay open", func(s *Snapshot) {
			service(config.ServiceExports, "NS-RT")(s)
			s.Config.Peers[1].OpenChunks = true
		}, api.AuditWeakened, "R13 R18 R20", "peer beta: always_invalidate: false", "change what it writes"},
		{"requests that would stay open, of a strict export", func(s *Snapshot) {
			service(config.ServiceExports, "NS-RT")(s)
			s.Config.Peers[1].OpenChunks, s.Config.Exports[0].Trust = true, "NS-NT"
		}, api.AuditMet, "", "", ""},
		{"exports S-NT", service(config.ServiceExports, "S-NT"), api.AuditMet, "", "", ""},
		{"a strict export", conf(func(c *config.Config) {
			c.Trust = "S-LT"
			c.Services = map[string]config.Service{config.ServiceAttachments: {Trust: "NS-NT"}, config.ServicePing: {Trust: "NS-NT"}}
			c.Exports[0].Allow = []string{"alpha"}
			c.Exports = append(c.Exports, config.Export{Name: "secret", Allow: []string{"alpha"}, Trust: "NS-NT"}, config.Export{Name: "open", Allow: []string{"beta"}})
		}), api.AuditWeakened, "R3 R18 R22 R25", "trust: S-LT", "sessions of peer beta at the exports are S-LT: "},
		{"attachments S-LT", service(config.ServiceAttachments, "S-LT"), api.AuditWeakened, "R3 R18 R22 R25", "services: attachments: trust: S-LT", "sessions of this host are S-LT: "},
		{"ping S-T", service(config.ServicePing, "S-T"), api.AuditWeakened, "R18 R20", "services: ping: trust: S-T", "streams of ping and bench are NS-RT: "},
		{"targets NS-RT", conf(func(c *config.Config) {
			c.Targets = []config.Target{{Name: "disks"}}
			c.Services = map[string]config.Service{config.ServiceTargets: {Trust: "NS-RT"}}
		}), api.AuditWeakened, "R18 R20", "services: targets: trust: NS-RT", "sessions of initiators over RDMA are NS-RT: "},
		{"targets NS-RT, over TCP alone", conf(func(c *config.Config) {
			c.Targets = []config.Target{{Name: "disks", NoISER: true}}
			c.Services = map[string]config.Service{config.ServiceTargets: {Trust: "NS-RT"}}
		}), api.AuditMet, "", "", ""},
		{"a ULP S-LT", conf(func(c *config.Config) { c.ULPs = []config.ULP{{Name: "lab", Trust: "S-LT"}} }), api.AuditWeakened, "R3 R18 R22 R25", "ulps: lab: trust: S-LT", "sessions of ULP lab are S-LT: "},
		{"a ULP NS-RT", conf(func(c *config.Config) { c.ULPs = []config.ULP{{Name: "lab", Trust: "NS-RT"}} }), api.AuditWeakened, "R18", "ulps: lab: trust: NS-RT", "no service does that"},
		{"a privileged ULP", conf(func(c *config.Config) { c.ULPs = []config.ULP{{Name: "lab", Privileged: true}} }), api.AuditWeakened, "R1 R33", "ulps: lab: privileged: true", "all that root may"},
		{"no idle policy", conf(func(c *config.Config) { c.Idle.After = 0 }), api.AuditNotMet, "R20", "idle: off", "keep others out"},
		{"no block policy", conf(func(c *config.Config) { c.Block.PerSecond = 0 }), api.AuditWeakened, "R19", "block: off", "by hand only"},
		{"a kernel that can't block", func(s *Snapshot) { s.Block = errors.New("no such file") }, api.AuditWeakened, "R19", "nf_tables", "can't block a peer"},
		{"no slow-path policy", conf(func(c *config.Config) { c.Slow.PerSecond = 0 }), api.AuditWeakened, "R24", "slow: off", "until somebody kills it"},
		{"few streams", func(s *Snapshot) {
			s.Config.Limits.Device.Streams = 8
			s.Resources.Peers[1] = principal("beta", "streams", 1)
		}, api.AuditWeakened, "R2", "limits: streams: 8", "1 streams are kept for peer beta, whose sessions have 2"},
		{"no streams kept", func(s *Snapshot) {
			s.Config.Limits.PerPeer.Streams = 512
			s.Resources.Peers[1] = principal("beta", "streams", 0)
		}, api.AuditWeakened, "R2", "limits: streams: 512", "0 streams are kept for peer beta, whose sessions have 2"},
		{"few places in start-up", func(s *Snapshot) {
			s.Config.Limits.Device.HalfOpen = 4
			s.Resources.Peers[0] = principal("alpha", "half_open", 0)
		}, api.AuditWeakened, "R2", "limits: half_open: 4", "0 connections in start-up are kept for peer alpha"},
		{"few protection domains", conf(func(c *config.Config) { c.Limits.Device.PDs = 1024 }), api.AuditWeakened, "R2",
			"limits: protection_domains: 1024", "exports can count on 616, and all streams take 1024"},
		{"few completions", conf(func(c *config.Config) {
			c.Services[config.ServiceExports] = config.Service{Limits: config.Quota{CQEntries: 1000}}
		}),
			api.AuditWeakened, "R2", "limits: cq_entries: 16777216", "exports can count on 1000"},
		{"little memory", func(s *Snapshot) {
			s.Config.Limits.Device.Bytes = 64 << 20
			s.Resources.ULPs[0] = principal(config.ServiceExports, "memory", 8<<20)
		}, api.AuditWeakened, "R2", "limits: memory: 64MiB", "kept for exports, and a session takes"},
		{"a file that others may write to", func(s *Snapshot) { s.Files[0].Mode = 0o664 }, api.AuditWeakened, "R33", "/etc/ironwarp/ironwarp.yaml", "mode is 0664"},
		{"a file of another's", func(s *Snapshot) { s.Files[0].Owner, s.Files[0].Foreign = 1000, true }, api.AuditWeakened, "R33", "/etc/ironwarp/ironwarp.yaml", "user id 1000"},
		{"a directory that others may write to", func(s *Snapshot) { s.Files[1].Mode |= 0o002 }, api.AuditWeakened, "R33", "/etc/ironwarp", "mode is 0757"},
		{"a fabric's agent", func(s *Snapshot) {
			s.Config.Fabric = config.Fabric{Managers: []string{"alpha.example"}, Agent: true}
			s.Fabric = &api.FabricStatus{Enabled: true, Agent: true}
		}, api.AuditWeakened, "R33", "fabric: agent: true", "managers, alpha.example, change"},
		{"a fabric without an agent", func(s *Snapshot) {
			s.Config.Fabric = config.Fabric{Managers: []string{"alpha.example"}}
			s.Fabric = &api.FabricStatus{Enabled: true}
		}, api.AuditMet, "", "", ""},
		{"a key of the fabric that everybody knows", func(s *Snapshot) {
			s.Config.Fabric = config.Fabric{Managers: []string{"alpha.example"}}
			s.Fabric = &api.FabricStatus{Enabled: true, Insecure: []string{"sm_key: the key is OpenSM's default, 0x1: make a random one"}}
		}, api.AuditWeakened, "R33", "the fabric's settings", "OpenSM's default"},
		{"an open socket", func(s *Snapshot) { s.Files[2].Mode |= 0o066 }, api.AuditWeakened, "R33", "/run/ironwarp/ironwarp.sock", "mode is 0666"},
		{"an open socket for ULPs", func(s *Snapshot) {
			s.Files[2].Mode |= 0o066
			s.Config.ULPs = []config.ULP{{Name: "lab"}}
		}, api.AuditMet, "", "", ""},
		{"a peer of this host", peer(func(p *config.Peer) { p.Protection = config.ProtectLoopback }), api.AuditWeakened, "R4", "peer beta: protection: loopback", "any user of it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := host()
			c.change(s)
			a := Run(s)
			if a.State != c.state {
				t.Errorf("%s, want %s", a.State, c.state)
			}
			var rows []string
			for _, r := range a.Requirements {
				if (r.State == api.AuditMet) != (len(r.Weak) == 0) {
					t.Errorf("%s is %s with %d weaknesses", r.ID, r.State, len(r.Weak))
				}
				if r.State == api.AuditMet {
					continue
				}
				rows = append(rows, r.ID)
				for _, w := range r.Weak {
					if w.Fix == "" {
						t.Errorf("%s: nothing is to be done about %s", r.ID, w.Setting)
					}
				}
				if rows[0] == r.ID && !slices.ContainsFunc(r.Weak, func(w api.Weakness) bool { return w.Setting == c.setting && strings.Contains(w.Effect, c.effect) }) {
					t.Errorf("%s: %+v, want %q: %q", r.ID, r.Weak, c.setting, c.effect)
				}
			}
			if got := strings.Join(rows, " "); got != c.rows {
				t.Errorf("weakened or not met are %q, want %q", got, c.rows)
			}
		})
	}
}

// A program whose checks can be switched off meets nothing.
func TestWeakenedBuildMeetsNothing(t *testing.T) {
	s := host()
	s.Weakened = true
	a := Run(s)
	for _, r := range a.Requirements {
		if r.State != api.AuditNotMet {
			t.Errorf("%s is %s", r.ID, r.State)
		}
	}
}

func TestManyPeersAreNamedInPart(t *testing.T) {
	if got := manyPeers(strings.Fields("a b c d e f g")); got != "peers a, b, c, d, e and 2 more" {
		t.Error(got)
	}
}

// waivedBy are the rows that a model weakens where all that is configured has it.
func waivedBy(m verbs.TrustModel) []string {
	s := host()
	s.Config.Trust = config.Trust(m.String())
	var out []string
	for _, r := range Run(s).Requirements {
		if len(r.Weak) > 0 {
			out = append(out, r.ID)
		}
	}
	return out
}

// The audit says of each model that it waives what attacks have found that it waives.
// There was none that needs streams which stay idle (R20). In S-NT services share
// nothing.
func TestWaiversAreThoseThatTheAttacksFound(t *testing.T) {
	doc, err := os.ReadFile("../../docs/trust-models.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "| attack | row |")
	found := map[verbs.TrustModel][]string{}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 2+len(verbs.TrustModels()) {
			continue
		}
		for i, m := range verbs.TrustModels() {
			if strings.Contains(cells[2+i], "**waived**") && !slices.Contains(found[m], cells[1]) {
				found[m] = append(found[m], cells[1])
			}
		}
	}
	for _, m := range verbs.TrustModels() {
		if m == verbs.SNT {
			continue
		}
		says := slices.DeleteFunc(waivedBy(m), func(id string) bool { return id == "R20" })
		if !slices.Equal(says, found[m]) {
			t.Errorf("of %v the audit says that it waives %v, attacks found %v", m, says, found[m])
		}
	}
	if len(found[verbs.ST]) == 0 {
		t.Error("the document has no table of attacks")
	}
}

// What a model waives, each looser one does, and each but NS-NT and S-NT, in which
// services share nothing, waives something.
func TestLooserModelsWaiveMore(t *testing.T) {
	rows := waivedBy
	for _, m := range verbs.TrustModels() {
		loose := rows(m)
		if want := m != verbs.NSNT && m != verbs.SNT; (len(loose) > 0) != want {
			t.Errorf("%v waives %v", m, loose)
		}
		for _, n := range verbs.TrustModels() {
			if !m.Permits(n) {
				continue
			}
			for _, id := range rows(n) {
				if !slices.Contains(loose, id) {
					t.Errorf("%v waives %s, and %v, which permits it, does not", n, id, m)
				}
			}
		}
	}
}
