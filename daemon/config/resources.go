package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// Trust names a trust model of RFC 5042 appendix C: NS-NT, NS-RT, S-NT, S-LT or
// S-T. An empty one stands for the next wider setting: that of an export for its
// service's, and that of a service for the device's.
type Trust string

// Model is the model, the strictest for an empty name.
func (t Trust) Model() verbs.TrustModel {
	m, _ := verbs.ParseTrustModel(string(t))
	return m
}

// Trusts are the words for a Trust.
func Trusts() []string {
	var names []string
	for _, m := range verbs.TrustModels() {
		names = append(names, m.String())
	}
	return names
}

// Quota is how much one principal may use of the RNIC's resources; 0 is no limit of
// its own.
type Quota = verbs.Limits

// Limits bounds what the daemon spends on its peers.
type Limits struct {
	Device   Quota // over all peers and services
	PerPeer  Quota // of each peer that has no limits of its own
	Sessions int   // block sessions one peer may hold open
	// AllSessions are those of all peers. Of the second half a peer has one at most. There
	// is one at least for each peer that may attach something.
	AllSessions int
	QueueSize   int // I/O requests in flight per session
	// ISCSISessions are those of initiators, on all targets. One peer has half of them at most, and of the
	// last quarter only peers that have none get some.
	ISCSISessions int
}

// Names of services, which are consumers of the RNIC each.
const (
	ServiceExports     = "exports"     // what peers attach
	ServiceAttachments = "attachments" // what this host attaches
	ServicePing        = "ping"        // ping and bench, both sides
	ServiceTargets     = "targets"     // what initiators use over iSER
)

// ServiceFabric is what streams of the fabric's directory are charged to, while this host has a part in one. It
// has no limits of its own.
const ServiceFabric = "fabric"

// ServiceNames are those of all services.
func ServiceNames() []string {
	return []string{ServiceExports, ServiceAttachments, ServicePing, ServiceTargets}
}

// Service is how much a service trusts and what it may have.
type Service struct {
	Trust  Trust
	Limits Quota
	// Partition is that of what has none of its own, of exports, attachments and targets.
	Partition string
	Label     string // the security label of its queue pairs and listeners; "": the default one
}

// Idle is which idle streams are ended when streams run short (RFC 5042 section
// 6.4.2).
type Idle struct {
	After time.Duration // idle for so long; 0: none is ended
	Bytes int64         // a stream that has moved no more within After is idle
	Mark  int           // percent of the streams, or their queues, that are in use then
}

// Block is when a peer that keeps creating streams is blocked in the kernel (RFC 5042
// section 6.4.1).
type Block struct {
	PerSecond int           // streams, and attempts at one, that a peer may create each second; 0: none is blocked
	Burst     int           // and at once
	For       time.Duration // how long a block lasts
}

// Slow is how many of a stream's packets may take a slow path before the stream is
// ended (RFC 5042 section 6.4.4).
type Slow struct {
	PerSecond int // 0: no stream is ended
	Burst     int
}

// deviceLimits are the RNIC's own, except for what costs this host most.
func deviceLimits() Quota {
	q := verbs.DefaultLimits()
	q.Bytes, q.Streams = DefaultMemory, DefaultStreams
	return q
}

// ServiceTrust is the trust model of a service.
func (c *Config) ServiceTrust(service string) Trust {
	return cmp.Or(c.Services[service].Trust, c.Trust)
}

// ExportTrust is the trust model of the sessions of peers that may attach an
// export.
func (c *Config) ExportTrust(e Export) Trust {
	return cmp.Or(e.Trust, c.ServiceTrust(ServiceExports))
}

// PeerLimits are the limits of a peer, with the default ones where it has none.
func (c *Config) PeerLimits(p Peer) Quota {
	q, def := p.Limits, c.Limits.PerPeer
	for _, w := range quotaWords {
		*w.of(&q) = cmp.Or(*w.of(&q), *w.of(&def))
	}
	return q
}

// quotaWord is a resource that can be limited.
type quotaWord struct {
	word string
	of   func(*Quota) *int64
	peer bool // every use of it is charged to a peer
}

var quotaWords = [...]quotaWord{
	{"memory", func(q *Quota) *int64 { return &q.Bytes }, false},
	{"streams", func(q *Quota) *int64 { return &q.Streams }, true},
	{"half_open", func(q *Quota) *int64 { return &q.HalfOpen }, true},
	{"dials", func(q *Quota) *int64 { return &q.Dials }, false},
	{"protection_domains", func(q *Quota) *int64 { return &q.PDs }, false},
	{"memory_regions", func(q *Quota) *int64 { return &q.MRs }, false},
	{"memory_windows", func(q *Quota) *int64 { return &q.MWs }, false},
	{"cq_entries", func(q *Quota) *int64 { return &q.CQEntries }, false},
	{"queue_entries", func(q *Quota) *int64 { return &q.QueueEntries }, true},
	{"srq_entries", func(q *Quota) *int64 { return &q.SRQEntries }, false},
	{"inbound_reads", func(q *Quota) *int64 { return &q.IRRQEntries }, true},
}

// QuotaWords are the resources that can be limited, in order.
func QuotaWords() []string {
	var words []string
	for _, w := range quotaWords {
		words = append(words, w.word)
	}
	return words
}

// Amount is a quota of one of QuotaWords.
func Amount(q Quota, word string) int64 {
	for _, w := range quotaWords {
		if w.word == word {
			return *w.of(&q)
		}
	}
	return 0
}

// CountedForPeers reports whether every use of one of QuotaWords is charged to a
// peer.
func CountedForPeers(word string) bool {
	return slices.ContainsFunc(quotaWords[:], func(w quotaWord) bool { return w.word == word && w.peer })
}

// trust reads the name of a trust model.
func (d *decoder) trust(dst *Trust) func(ast.Node) {
	return d.enum("trust", func(s string) { *dst = Trust(s) }, Trusts()...)
}

// quotaFields are the keys that limit a principal's resources.
func (d *decoder) quotaFields(q *Quota, leastMemory int64) fields {
	f := fields{}
	for _, w := range quotaWords {
		set := w.of(q)
		switch w.word {
		case "memory":
			f[w.word] = d.size(w.word, leastMemory, func(v int64) { *set = v })
		case "streams":
			f[w.word] = d.integer(w.word, 1, MaxStreams, func(v uint64) { *set = int64(v) })
		default:
			f[w.word] = d.integer(w.word, 1, MaxResource, func(v uint64) { *set = int64(v) })
		}
	}
	return f
}

// quota reads how much one consumer of the RNIC may use.
func (d *decoder) quota(q *Quota) func(ast.Node) {
	return func(n ast.Node) { d.mapping(n, "limits", d.quotaFields(q, MinServiceMemory)) }
}

// peerQuota reads how much one peer may use of the resources that are charged to peers.
func (d *decoder) peerQuota(what string, q *Quota) func(ast.Node) {
	return func(n ast.Node) {
		f := d.quotaFields(q, MinServiceMemory)
		for _, w := range quotaWords {
			if !w.peer {
				f[w.word] = func(n ast.Node) {
					d.fail(n, w.word+" is not counted for each peer", "limit it for a service: services: {exports: {limits: {"+w.word+": ...}}}")
				}
			}
		}
		d.mapping(n, what, f)
	}
}

// limits reads the limits of the device.
func (d *decoder) limits(c *Config) func(ast.Node) {
	return func(n ast.Node) {
		l := &c.Limits
		f := d.quotaFields(&l.Device, MinMemory)
		for _, w := range quotaWords {
			f[w.word] = d.notePosition(c, w.word, f[w.word])
		}
		maps.Copy(f, fields{
			"per_peer":       d.notePosition(c, "per_peer", d.peerQuota("per_peer", &l.PerPeer)),
			"sessions":       d.integer("sessions", 1, 1024, func(v uint64) { l.Sessions = int(v) }),
			"all_sessions":   d.integer("all_sessions", 2, MaxStreams, func(v uint64) { l.AllSessions = int(v) }),
			"iscsi_sessions": d.integer("iscsi_sessions", 4, MaxISCSISessions, func(v uint64) { l.ISCSISessions = int(v) }),
			"queue_size":     d.integer("queue_size", 1, rtrs.MaxQueueDepth, func(v uint64) { l.QueueSize = int(v) }),
		})
		d.mapping(n, "limits", f)
	}
}

// services reads services, a mapping of their names.
func (d *decoder) services(c *Config) func(ast.Node) {
	return func(n ast.Node) {
		f := fields{}
		for _, name := range ServiceNames() {
			f[name] = d.notePosition(c, name, func(n ast.Node) {
				s := c.Services[name]
				f := fields{"trust": d.trust(&s.Trust), "limits": d.quota(&s.Limits), "label": d.str("label", &s.Label, CheckLabel)}
				if name != ServicePing { // it asks about the link itself
					f["partition"] = d.str("partition", &s.Partition, CheckPartitionName)
				}
				d.mapping(n, "service "+name, f)
				c.Services[name] = s
			})
		}
		d.mapping(n, "services", f)
	}
}

// mappingOrOff reads a mapping, or the word off, for which it calls turnOff.
func (d *decoder) mappingOrOff(what string, turnOff func(), f fields) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := n.(*ast.StringNode)
		switch {
		case !ok:
			d.mapping(n, what, f)
		case s.Value == "off":
			turnOff()
		default:
			d.fail(n, fmt.Sprintf("%s is %s", what, nodeText(n)), "write off, or a mapping of "+joinWords(slices.Sorted(maps.Keys(f))))
		}
	}
}

func (d *decoder) idle(i *Idle) func(ast.Node) {
	return d.mappingOrOff("idle", func() { *i = Idle{} }, fields{
		"after": d.duration("after", MinIdle, MaxIdle, func(v time.Duration) { i.After = v }),
		"bytes": d.size("bytes", 1, func(v int64) { i.Bytes = v }),
		"mark":  d.integer("mark", 1, 100, func(v uint64) { i.Mark = int(v) }),
	})
}

func (d *decoder) block(b *Block) func(ast.Node) {
	return d.mappingOrOff("block", func() { *b = Block{} }, fields{
		"per_second": d.integer("per_second", 1, 1<<20, func(v uint64) { b.PerSecond = int(v) }),
		"burst":      d.integer("burst", MinBlockBurst, 1<<20, func(v uint64) { b.Burst = int(v) }),
		"for":        d.duration("for", guard.MinBlock, guard.MaxBlock, func(v time.Duration) { b.For = v }),
	})
}

func (d *decoder) slow(s *Slow) func(ast.Node) {
	return d.mappingOrOff("slow", func() { *s = Slow{} }, fields{
		"per_second": d.integer("per_second", 1, 1<<30, func(v uint64) { s.PerSecond = int(v) }),
		"burst":      d.integer("burst", 1, 1<<30, func(v uint64) { s.Burst = int(v) }),
	})
}
