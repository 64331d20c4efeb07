package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/rtrs"
)

// consumers counts accounts (R1).
func (v *view) consumers() string {
	return fmt.Sprintf("; there are %s and %s", count(len(config.ServiceNames()), "service"), count(len(v.c.ULPs), "ULP"))
}

// privileged are local users who may do what root may (R1, R33).
func (v *view) privileged() []api.Weakness {
	var out []api.Weakness
	for _, u := range v.c.ULPs {
		if u.Privileged {
			out = append(out, api.Weakness{Setting: "ulps: " + u.Name + ": privileged: true", Effect: "its users may do all that root may, to what others have, too",
				Fix: "remove that line, and name its peers or exports"})
		}
	}
	return out
}

// quotas reports on limits (R2).
func (v *view) quotas() string {
	own := v.peersWith(func(p config.Peer) bool { return p.Limits != config.Quota{} })
	text := "; no limits for each peer"
	if v.c.Limits.PerPeer != (config.Quota{}) {
		text = "; limits for each peer"
	}
	if len(own) > 0 {
		text += fmt.Sprintf(", and of its own for %s", manyPeers(own))
	}
	return fmt.Sprintf("%s: `ironwarp status --resources`; ping serves %d clients at a time, %d of a peer, of the second half one of each", text, probe.MaxClients, probe.MaxClientsPeer)
}

// smallShares are principals whose share is too small for what they are configured to
// use, and resources that one peer may use up although it keeps to its limits (R2).
func (v *view) smallShares() []api.Weakness {
	var out []api.Weakness
	entries := int64(rtrs.ConnEntries(v.c.Limits.QueueSize))
	for _, p := range v.Resources.Peers {
		c, ok := v.c.Peer(p.Name)
		if !ok {
			continue
		}
		for _, r := range []struct {
			word, what string
			need       int64
		}{
			{"streams", "streams", int64(c.Connections)},
			{"half_open", "connections in start-up", int64(c.Connections)},
			{"queue_entries", "work requests", int64(c.Connections) * entries},
		} {
			kept, known := share(p, r.word)
			if !known || kept >= r.need {
				continue
			}
			limit := cmp.Or(config.Amount(v.c.PeerLimits(c), r.word), config.Amount(v.c.Limits.Device, r.word))
			out = append(out, api.Weakness{Setting: fmt.Sprintf("limits: %s: %d", r.word, limit),
				Effect: fmt.Sprintf("%d %s are kept for peer %s, whose sessions have %d: others can keep it out", kept, r.what, p.Name, r.need),
				Fix:    fmt.Sprintf("raise limits: %s (%d for the device, half of which %s and a newcomer share), or lower connections: of the peer", r.word, config.Amount(v.c.Limits.Device, r.word), count(len(v.c.Peers), "peer"))})
		}
	}
	session := int64(v.c.Limits.QueueSize) * rtrs.DefaultMaxIO
	for _, p := range v.Resources.ULPs {
		if kept, _ := share(p, "memory"); kept > 0 && kept < session && p.Name != config.ServicePing {
			out = append(out, api.Weakness{Setting: "limits: memory: " + config.FormatSize(v.c.Limits.Device.Bytes),
				Effect: fmt.Sprintf("%s of memory are kept for %s, and a session takes %s", config.FormatSize(kept), p.Name, config.FormatSize(session)),
				Fix:    "raise limits: memory, or lower limits: queue_size"})
		}
	}
	for word, need := range map[string]int64{"protection_domains": v.c.Limits.Device.Streams, "cq_entries": v.c.Limits.Device.Streams * entries} {
		if have := v.c.AvailableForExports(word); have < need && len(v.c.Exports) > 0 {
			out = append(out, api.Weakness{Setting: fmt.Sprintf("limits: %s: %d", word, config.Amount(v.c.Limits.Device, word)),
				Effect: fmt.Sprintf("exports can count on %d, and all streams take %d: they are not counted for each peer, and one with many streams can keep others out", have, need),
				Fix:    fmt.Sprintf("remove that line, raise it to %d, or lower limits: streams", 2*need)})
		}
	}
	slices.SortStableFunc(out, func(a, b api.Weakness) int { return strings.Compare(a.Setting, b.Setting) })
	return out
}

// blocking reports on blocks (R19).
func (v *view) blocking() string {
	b := v.c.Block
	if b.PerSecond == 0 {
		return "; `ironwarp block add PEER` blocks one"
	}
	return fmt.Sprintf("; who makes more than %d a second, %d at once, is blocked for %s", b.PerSecond, b.Burst, config.FormatDuration(b.For))
}

// blockingWeaknesses is what prevents blocks (R19).
func (v *view) blockingWeaknesses() []api.Weakness {
	var out []api.Weakness
	if v.c.Block.PerSecond == 0 {
		out = append(out, api.Weakness{Setting: "block: off", Effect: "a peer that keeps making streams is refused, and blocked by hand only",
			Fix: "remove that line, or say a rate: `block: {per_second: 20}`"})
	}
	if names := v.peersWith(func(p config.Peer) bool { return p.Protection == config.ProtectIPsec }); v.Block != nil && len(names) > 0 {
		out = append(out, api.Weakness{Setting: "nf_tables", Effect: "the kernel can't block a peer, whose streams the daemon refuses then: " + v.Block.Error(), Fix: "modprobe nf_tables"})
	}
	if names := v.peersWith(func(p config.Peer) bool { return p.Protection == config.ProtectPlaintext }); len(names) > 0 {
		out = append(out, api.Weakness{Setting: manyPeers(names) + ": insecure_plaintext: true", Effect: "a block is the daemon's, which refuses streams: there is no ESP by which the kernel could tell the peer",
			Fix: "let ESP protect the peer"})
	}
	return out
}

// reaping reports on the idle policy (R20).
func (v *view) reaping() string {
	i := v.c.Idle
	if i.After == 0 {
		return "no stream is ended since it is idle"
	}
	return fmt.Sprintf("from %d %% of the streams on, or of their queues, those go that moved no more than %s within %s", i.Mark, config.FormatSize(i.Bytes), config.FormatDuration(i.After))
}

func (v *view) reapingWeaknesses() []api.Weakness {
	if v.c.Idle.After != 0 {
		return nil
	}
	return []api.Weakness{{Setting: "idle: off", Unmet: true, Effect: "idle streams of a peer keep others out when streams run short, up to the others' shares",
		Fix: "remove that line, or say a time: `idle: {after: 5m}`"}}
}

// slowPolicy reports on the policy for slow paths (R24).
func (v *view) slowPolicy() string {
	if s := v.c.Slow; s.PerSecond > 0 {
		return fmt.Sprintf("; one beyond %d a second, %d at once, is ended", s.PerSecond, s.Burst)
	}
	return ""
}

func (v *view) slowPolicyWeaknesses() []api.Weakness {
	if v.c.Slow.PerSecond > 0 {
		return nil
	}
	return []api.Weakness{{Setting: "slow: off", Effect: "a stream may take slow paths without limit, until somebody kills it", Fix: "remove that line, or say a rate: `slow: {per_second: 10000}`"}}
}

// events reports on those that were dropped (R30).
func (v *view) events() string {
	if n := v.Resources.EventsDropped; n > 0 {
		return fmt.Sprintf("; %d found no room since the daemon was started", n)
	}
	return ""
}

// models reports who trusts whom (R3).
func (v *view) models() string {
	if len(v.trusted) == 0 {
		return "; nobody trusts anybody here"
	}
	var texts []string
	for _, t := range v.trusted {
		texts = append(texts, fmt.Sprintf("%s %v", t.who, t.model))
	}
	return "; declared are: " + strings.Join(texts, ", ")
}

// domains reports what has a protection domain (R8).
func (v *view) domains() string {
	for _, t := range v.trusted {
		if t.model.Trust().ShareStreams {
			return "; sessions of models that share have a domain each, other connections one of their own"
		}
	}
	return "; each connection has a domain of its own"
}

// settings reports what is set (R34).
func (v *view) settings() string {
	if v.c.Trust == "" && len(v.trusted) == 0 {
		return "; none is set, so all is NS-NT"
	}
	return ""
}
