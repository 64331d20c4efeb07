package iscsi

import (
	"fmt"
	"slices"
)

// negotiation is one negotiation of operational keys in which this side, a target, answers.
type negotiation struct {
	ours      *Values // what this side would have; of lists all that it can
	discovery bool
	leading   bool // of a session's first connection
	values    Values
	changed   [NumKeys]bool
}

// refusal is why a negotiation ends.
type refusal struct {
	status LoginStatus
	why    string
}

func (r *refusal) Error() string { return r.why }

func refuse(status LoginStatus, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// late are the keys whose answer depends on those of others, in the order of their turn.
var late = []KeyID{KeyFirstBurstLength, KeyHeaderDigest, KeyDataDigest}

// answers takes the pairs of one request and appends the answers to text, in the order of the
// offers except for the late keys. It fails with a refusal: a key that breaks the rules ends the
// login (RFC 7143 section 6.3).
func (n *negotiation) answers(text []byte, pairs []Pair) ([]byte, error) {
	var waiting [NumKeys]*Pair
	for _, p := range pairs { // the answers of others depend on it
		if k := &Keys[KeyRDMAExtensions]; p.Key == k.Name && !n.discovery {
			n.values[KeyRDMAExtensions], _ = k.answer(p.Value, n.ours[KeyRDMAExtensions])
		}
	}
	for i := range pairs {
		p := &pairs[i]
		id, known := KeyNamed(p.Key)
		if !known {
			text = AppendPair(text, p.Key, notUnderstood) // section 6.2
			continue
		}
		if p.Value == notUnderstood || p.Value == rejected || p.Value == irrelevant {
			return nil, refuse(LoginInitiatorError, "%s=%s is no offer", p.Key, p.Value)
		}
		if err := n.take(id); err != nil {
			return nil, err
		}
		if isLate(id) {
			waiting[id] = p
			continue
		}
		var err error
		if text, err = n.answer(text, id, p.Value); err != nil {
			return nil, err
		}
	}
	for _, id := range late {
		if p := waiting[id]; p != nil {
			var err error
			if text, err = n.answer(text, id, p.Value); err != nil {
				return nil, err
			}
		}
	}
	// Section 13.14: this also holds for an offer that came before, and for the default.
	n.values[KeyFirstBurstLength] = min(n.values[KeyFirstBurstLength], n.values[KeyMaxBurstLength])
	return text, nil
}

func isLate(id KeyID) bool { return slices.Contains(late, id) }

// take notes that a key was sent, which it may be once.
func (n *negotiation) take(id KeyID) error {
	k := &Keys[id]
	switch {
	case n.changed[id]:
		return refuse(LoginInitiatorError, "%s is sent twice", k.Name)
	case k.FromTarget && !k.FromInitiator, k.Use == FullFeatureOnly:
		return refuse(LoginInitiatorError, "%s is not for an initiator's login", k.Name)
	case k.Use == LeadingOnly && !n.leading && !k.AnyStage && !k.Text:
		return refuse(LoginInitiatorError, "%s is for a session's first connection", k.Name)
	}
	n.changed[id] = true
	return nil
}

// answer appends the answer to one offer.
func (n *negotiation) answer(text []byte, id KeyID, offer string) ([]byte, error) {
	k := &Keys[id]
	rdma := n.values.Bool(KeyRDMAExtensions)
	switch {
	case k.Result == Obsolete:
		if id == KeyIFMarker || id == KeyOFMarker {
			return AppendPair(text, k.Name, "No"), nil // section 13.25
		}
		return AppendPair(text, k.Name, rejected), nil
	case k.Text:
		return text, nil // names are the login's
	case k.NotInDiscovery && n.discovery, k.OnlyRDMA && !rdma, k.NotRDMA && rdma,
		id == KeyFirstBurstLength && n.values.Bool(KeyInitialR2T) && !n.values.Bool(KeyImmediateData):
		if k.Result == Declared {
			return text, nil
		}
		return AppendPair(text, k.Name, irrelevant), nil
	case k.Result == Declared:
		v, ok := k.parse(offer)
		if !ok {
			return nil, refuse(LoginInitiatorError, "%s=%.40s is not admissible", k.Name, offer)
		}
		n.values[id] = v
		return text, nil
	}
	ours := n.ours[id]
	switch {
	case id == KeyFirstBurstLength:
		ours = min(ours, n.values[KeyMaxBurstLength])
		if rdma { // what is longer is better read than sent
			ours = min(ours, n.ours[KeyTargetRecvDataSegmentLength])
		}
	case id == KeyMaxConnections && rdma:
		ours = 1 // memory is registered with one connection
	case id == KeyErrorRecoveryLevel && n.discovery:
		ours = 0 // section 7.4.1
	}
	v, ok := k.answer(offer, ours)
	if !ok {
		if k.Result == FirstOf && id != KeyTaskReporting {
			// None of the choices is acceptable: the negotiation has failed (section 7.12).
			return nil, refuse(LoginInitiatorError, "%s=%.40s has nothing that this side may use", k.Name, offer)
		}
		return AppendPair(text, k.Name, rejected), nil
	}
	n.values[id] = v
	return AppendPair(text, k.Name, k.Format(v)), nil
}
