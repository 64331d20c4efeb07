package config

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLoadReadsTrustLimitsAndPolicies(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", `
trust: S-LT
limits:
  memory: 2GiB
  streams: 100
  half_open: 64
  dials: 65
  protection_domains: 101
  memory_regions: 102
  memory_windows: 103
  cq_entries: 104
  queue_entries: 105000
  srq_entries: 106
  inbound_reads: 107
  per_peer: {streams: 50, half_open: 8, queue_entries: 9000, inbound_reads: 70}
services:
  exports: {trust: S-NT, limits: {memory: 1GiB, streams: 60}}
  attachments: {}
  ping: {trust: NS-NT}
idle: {after: 90s, bytes: 1KiB, mark: 75}
block: {per_second: 5, burst: 100, for: 2h}
slow: {per_second: 11, burst: 12}
exports:
  - {name: a, path: /dev/sda, trust: NS-NT}
  - {name: b, path: /dev/sdb}
peers:
  - {name: beta, address: 127.0.0.2, protection: loopback, limits: {streams: 7}}
`)
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Limits{
		Device:   Quota{Bytes: 2 << 30, Streams: 100, HalfOpen: 64, Dials: 65, PDs: 101, MRs: 102, MWs: 103, CQEntries: 104, QueueEntries: 105000, SRQEntries: 106, IRRQEntries: 107},
		PerPeer:  Quota{Streams: 50, HalfOpen: 8, QueueEntries: 9000, IRRQEntries: 70},
		Sessions: DefaultSessions, AllSessions: DefaultAllSessions, ISCSISessions: DefaultISCSISessions, QueueSize: DefaultQueueSize,
	}); c.Limits != want {
		t.Errorf("limits\n got %+v\nwant %+v", c.Limits, want)
	}
	beta, _ := c.Peer("beta")
	if got, want := c.PeerLimits(beta), (Quota{Streams: 7, HalfOpen: 8, QueueEntries: 9000, IRRQEntries: 70}); got != want {
		t.Errorf("limits of beta %+v, want its own and the default ones %+v", got, want)
	}
	if got, want := c.Services[ServiceExports].Limits, (Quota{Bytes: 1 << 30, Streams: 60}); got != want {
		t.Errorf("limits of the exports %+v, want %+v", got, want)
	}
	a, _ := c.Export("a")
	b, _ := c.Export("b")
	for what, got := range map[string][2]Trust{
		"the device's default, for attachments": {c.ServiceTrust(ServiceAttachments), "S-LT"},
		"ping's own":                            {c.ServiceTrust(ServicePing), "NS-NT"},
		"that of export a":                      {c.ExportTrust(a), "NS-NT"},
		"the service's, for export b":           {c.ExportTrust(b), "S-NT"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: trust %s, want %s", what, got[0], got[1])
		}
	}
	if c.Idle != (Idle{90 * time.Second, 1024, 75}) || c.Block != (Block{5, 100, 2 * time.Hour}) || c.Slow != (Slow{11, 12}) {
		t.Errorf("policies %+v, %+v, %+v", c.Idle, c.Block, c.Slow)
	}
}

// Who says nothing is protected: each policy is on, and a service is as strict as
// it can be.
func TestPoliciesAreOnUnlessTheyAreSwitchedOff(t *testing.T) {
	dir := t.TempDir()
	c, err := Load(filepath.Join(dir, "none.yaml"), false)
	if err != nil {
		t.Fatal(err)
	}
	if c.Idle.After == 0 || c.Block.PerSecond == 0 || c.Block.For == 0 || c.Slow.PerSecond == 0 {
		t.Errorf("a policy is off by default: %+v, %+v, %+v", c.Idle, c.Block, c.Slow)
	}
	if m := c.ServiceTrust(ServiceExports).Model(); m.String() != "NS-NT" {
		t.Errorf("exports trust as %v by default", m)
	}
	c, err = Load(write(t, dir, "off.yaml", "idle: off\nblock: off\nslow: off\n"), true)
	if err != nil {
		t.Fatal(err)
	}
	if c.Idle != (Idle{}) || c.Block != (Block{}) || c.Slow != (Slow{}) {
		t.Errorf("switched off: %+v, %+v, %+v", c.Idle, c.Block, c.Slow)
	}
	c, err = Load(write(t, dir, "part.yaml", "idle: {mark: 50}\n"), true)
	if err != nil {
		t.Fatal(err)
	}
	if c.Idle != (Idle{DefaultIdle, DefaultIdleBytes, 50}) {
		t.Errorf("what was not said is not the default: %+v", c.Idle)
	}
}

func TestFaultsOfTrustLimitsAndPoliciesNameTheirPlace(t *testing.T) {
	const loop = "peers: [{name: beta, address: 127.0.0.2, protection: loopback"
	for _, tc := range []struct{ name, main, want string }{
		{"unknown model", "trust: S-TT\n", `ironwarp.yaml:1:8: trust is "S-TT"; allowed: NS-NT, NS-RT, S-NT, S-LT, S-T`},
		{"model in small letters", "services:\n  exports: {trust: ns-nt}\n", `:2:20: trust is "ns-nt"; allowed:`},
		{"unknown service", "services: {export: {}}\n", `:1:12: unknown key "export" in services; did you mean "exports"?`},
		{"unknown key of a service", "services: {ping: {truth: NS-NT}}\n", `unknown key "truth" in service ping; did you mean "trust"?`},
		{"unknown limit", "limits: {streems: 7}\n", `:1:10: unknown key "streems" in limits; did you mean "streams"?`},
		{"limit of nothing", "limits: {half_open: 0}\n", `:1:21: half_open is 0; allowed: 1 to`},
		{"negative limit", "limits: {inbound_reads: -4}\n", `inbound_reads is -4; allowed`},
		{"limit beyond sense", "limits: {cq_entries: 99999999999}\n", `cq_entries is 99999999999; allowed`},
		{"memory of a peer", "limits:\n  per_peer: {memory: 1GiB}\n", `:2:22: memory is not counted for each peer; limit it for a service`},
		{"memory of one peer", loop + ", limits: {memory_regions: 3}}]\n", `memory_regions is not counted for each peer`},
		{"one peer above all", loop + ", limits: {streams: 2000}}]\n", `:1:9: peer beta may have 2000 streams, and all together 1024; one cannot have more than all`},
		{"each peer above all", "limits:\n  streams: 10\n  per_peer: {streams: 11}\n", `:3:13: a peer may have 11 streams, and all together 10`},
		{"service above all", "services:\n  ping:\n    limits: {memory: 3GiB}\n", `:3:5: service ping may have 3GiB of memory, and all together 1GiB`},
		{"models without order", "trust: S-LT\nexports: [{name: a, path: /x, trust: NS-RT}]\n", `export a has trust NS-RT, which permits more than S-LT, that of all exports`},
		{"export laxer than its service", "exports:\n  - {name: a, path: /x, trust: S-T}\n", `:2:5: export a has trust S-T, which permits more than NS-NT, that of all exports`},
		{"policy that is neither", "idle: on\n", `:1:7: idle is "on"; write off, or a mapping of after, bytes, mark`},
		{"policy that is a number", "block: 7\n", `:1:8: block is a number; write it as a mapping of burst, for, per_second`},
		{"idle for too short", "idle: {after: 10ms}\n", `after is "10ms"; allowed: 1s to 168h`},
		{"mark above all", "idle: {mark: 101}\n", `mark is 101; allowed: 1 to 100`},
		{"burst that locks out", "block: {burst: 1}\n", `burst is 1; allowed: 16 to`},
		{"block without end", "block: {for: 9000h}\n", `for is "9000h"; allowed: 1s to 720h`},
		{"slow without a rate", "slow: {per_second: 0}\n", `per_second is 0; allowed: 1 to`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(write(t, t.TempDir(), "ironwarp.yaml", tc.main), true)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}
