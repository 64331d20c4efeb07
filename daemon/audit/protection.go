package audit

import (
	"cmp"
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// protection is what protects the peers (R4).
func (v *view) protection() string {
	n := map[config.Protection]int{}
	for _, p := range v.c.Peers {
		n[p.Protection]++
	}
	text := fmt.Sprintf("; %s with ESP", count(n[config.ProtectIPsec], "peer"))
	if k := n[config.ProtectLoopback]; k > 0 {
		text += fmt.Sprintf(", %d on this host alone", k)
	}
	if len(v.c.Peers) == 0 {
		text = "; no peer is configured"
	}
	return text
}

// captured are streams that are copied in clear while ESP protects them on the wire (R4).
func (v *view) captured() []api.Weakness {
	var out []api.Weakness
	for _, c := range v.Captures {
		who, what := "peer "+c.Peer, "the headers of messages"
		if c.Peer == "" {
			who = "all peers"
		}
		if c.Payload {
			what = "all that streams carry"
		}
		out = append(out, api.Weakness{Setting: fmt.Sprintf("capture %d, read by process %d", c.ID, c.PID), Effect: fmt.Sprintf("%s, with %s, is copied in clear to that process", what, who),
			Fix: fmt.Sprintf("it ends with the process: `kill %d`", c.PID)})
	}
	return out
}

// unprotectedPeers are the peers whose streams ESP does not protect, or not as it
// could (R4).
func (v *view) unprotectedPeers() []api.Weakness {
	out := v.captured()
	for _, t := range v.c.Targets {
		if t.Undeclared {
			out = append(out, api.Weakness{Setting: "target " + t.Name + ": insecure_undeclared: true", Unmet: true,
				Effect: "initiators on hosts that are no peers log in in clear, whoever they are", Fix: "make their hosts peers, with `ironwarp peer add --iscsi-port`, and remove that line: docs/iscsi.md"})
		}
	}
	for _, s := range v.c.Subsystems {
		if s.Undeclared {
			out = append(out, api.Weakness{Setting: "subsystem " + s.Name + ": insecure_undeclared: true", Unmet: true,
				Effect: "hosts that are no peers connect to it in clear, whoever they are", Fix: "make them peers, with `ironwarp peer add --nvme-port`, and remove that line: docs/nvme.md"})
		}
	}
	for _, p := range v.c.Peers {
		at := "peer " + p.Name + ": "
		if p.Protection == config.ProtectPlaintext {
			out = append(out, api.Weakness{Setting: at + "insecure_plaintext: true", Unmet: true,
				Effect: "its streams travel in clear, and whoever has its address is taken for it",
				Fix:    "give both hosts a secret or certificates, and remove that line: docs/operations.md, IPsec"})
		}
		if p.Protection == config.ProtectLoopback {
			out = append(out, api.Weakness{Setting: at + "protection: loopback", Effect: "nothing leaves this host, but any user of it is taken for the peer",
				Fix: "it is for labs: remove the peer where there are users who are not trusted"})
		}
		if p.Protection != config.ProtectIPsec {
			continue
		}
		out = append(out, v.guardWeaknesses(p)...)
		if p.Resolved != nil {
			for _, w := range p.Resolved.Warnings() {
				out = append(out, api.Weakness{Setting: at + "profile: " + p.Resolved.Name, Effect: w, Fix: "take a profile without that: `ironwarp profile ls`"})
			}
		}
		if p.Auth == config.AuthCert && p.Revocation == auth.RevocationRelaxed {
			out = append(out, api.Weakness{Setting: at + "revocation: " + string(p.Revocation), Effect: "a certificate whose status can't be learned is believed",
				Fix: "say revocation: strict, or ifuri where the authority publishes no status"})
		}
	}
	return out
}

// guardWeaknesses reports a kernel's guard of a peer that is missing, or has holes.
func (v *view) guardWeaknesses(p config.Peer) []api.Weakness {
	st, ok := v.state(p.Name)
	if ok && st.IPsec != nil && st.IPsec.Guarded {
		var out []api.Weakness
		for _, h := range v.Holes[p.Name] {
			out = append(out, api.Weakness{Setting: "guard of peer " + p.Name, Effect: h.What, Fix: h.Fix, Unmet: !h.Shut})
		}
		return out
	}
	w := api.Weakness{Setting: "guard of peer " + p.Name, Effect: "the kernel's guard is not in place, so nothing stops clear packets of the peer's port", Fix: "`sudo ironwarp doctor` says what is missing", Unmet: true}
	if st.Problem != nil {
		w.Effect += ": " + st.Problem.Message
		w.Fix = cmp.Or(st.Problem.Fix, w.Fix)
	}
	return []api.Weakness{w}
}

// unguardedPeers are the peers to whom clear packets may leave while an SA is away (R5).
func (v *view) unguardedPeers() []api.Weakness {
	var out []api.Weakness
	for _, p := range v.c.Peers {
		if p.Protection == config.ProtectIPsec {
			out = append(out, v.guardWeaknesses(p)...)
		}
	}
	return out
}

// gateways are the peers whose ESP may end before them (R6).
func (v *view) gateways() []api.Weakness {
	var out []api.Weakness
	for _, p := range v.c.Peers {
		if p.Protection == config.ProtectIPsec && p.Gateway.IsValid() {
			out = append(out, api.Weakness{Setting: fmt.Sprintf("peer %s: gateway: %s", p.Name, p.Gateway),
				Effect: fmt.Sprintf("nothing protects its streams between %s and %s", p.Gateway, p.Address),
				Fix:    "let the peer itself do ESP, and remove that line"})
		}
	}
	return out
}
