package iscsi

import (
	"fmt"
	"slices"
)

// negotiation is one negotiation of operational keys in which this side, a target, answers.
type negotiation struct {
	ours      *Values // what this side would have; of lists all that it can
	discovery bool
	leading   bool   // of a session's first connection
	recovery  uint32 // the highest ErrorRecoveryLevel
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
var late = []KeyID{KeyErrorRecoveryLevel, KeyFirstBurstLength, KeyHeaderDigest, KeyDataDigest, KeyMaxOutstandingR2T, KeyDefaultTime2Retain}

// answers takes the pairs of one request and appends the answers to text, in the order of the
// offers except for the late keys. It fails with a refusal: a key that breaks the rules ends the
// login (RFC 7143 section 6.3).
func (n *negotiation) answers(text []byte, pairs []Pair) ([]byte, error) {
	var waiting [NumKeys]*Pair
	for _, p := range pairs { // the answers of others depend on it
		if k := &Keys[KeyRDMAExtensions]; p.Key == k.Name && !n.discovery {
			n.values[KeyRDMAExtensions], _ = k.answer(p.Value, n.oursOf(KeyRDMAExtensions))
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
	v, ok := k.answer(offer, n.oursOf(id))
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

// oursOf is what this side would have of a key, after what has been agreed on before.
func (n *negotiation) oursOf(id KeyID) uint32 {
	ours, rdma := n.ours[id], n.values.Bool(KeyRDMAExtensions)
	switch id {
	case KeyFirstBurstLength:
		ours = min(ours, n.values[KeyMaxBurstLength])
		if rdma { // what is longer is better read than sent
			ours = min(ours, n.ours[KeyTargetRecvDataSegmentLength])
		}
	case KeyMaxConnections:
		if rdma {
			return 1 // memory is registered with one connection
		}
	case KeyErrorRecoveryLevel:
		// Section 7.4.1; digest and sequence errors do not occur over iSER (RFC 7145 section 10.2.1), and
		// a session has one connection there; more than one R2T at a time excludes it (section 13.19).
		if n.discovery || rdma || n.values[KeyMaxOutstandingR2T] > 1 {
			return 0
		}
		return n.recovery
	case KeyRDMAExtensions:
		if n.values[KeyErrorRecoveryLevel] > 0 {
			return 0
		}
	case KeyMaxOutstandingR2T:
		if n.values[KeyErrorRecoveryLevel] > 0 {
			return 1 // section 13.19, since DataSequenceInOrder is Yes
		}
	case KeyDefaultTime2Retain:
		if n.values[KeyErrorRecoveryLevel] < 2 || n.values[KeyDefaultTime2Wait] > MaxTime2Wait {
			return 0 // nothing is retained
		}
	}
	return ours
}
