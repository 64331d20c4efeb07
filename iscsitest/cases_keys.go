package iscsitest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/iscsi"
)

// offered is a case in which one key is offered in LoginOperationalNegotiation, and its answer judged: value is ""
// and ok false if there was none.
func offered(id, source, says string, offer string, judge func(value string, ok bool) bool) Case {
	name, _, _ := strings.Cut(offer, "=")
	return Case{ID: "keys." + id, Source: source, Says: says, Over: onTCP, run: func(t *T) {
		a := t.offer(offer)
		t.require(a.accepted(), "%s ends the login: %v", offer, a)
		value, ok := a.key(name)
		t.require(judge(value, ok), "%s is answered by %v", offer, a.pairs)
	}}
}

// offer offers keys in LoginOperationalNegotiation, and returns the answer.
func (t *T) offer(offers ...string) *answer {
	l := t.begin(0)
	t.authenticated(l.authenticate(t.names(0), iscsi.Operational))
	return l.step(iscsi.Operational, iscsi.Operational, offers...)
}

// within reports whether a value is a number in a range.
func within(value string, low, high uint32) bool {
	var n uint64
	_, err := fmt.Sscanf(value, "%v", &n)
	return err == nil && n >= uint64(low) && n <= uint64(high)
}

func keyCases() []Case {
	const simple, boolean, list = "RFC 7143 6.2.2", "RFC 7143 6.2.2", "RFC 7143 6.2.1"
	sections := map[iscsi.KeyID]string{
		iscsi.KeyMaxConnections: "13.2", iscsi.KeyInitialR2T: "13.10", iscsi.KeyImmediateData: "13.11", iscsi.KeyMaxBurstLength: "13.13",
		iscsi.KeyFirstBurstLength: "13.14", iscsi.KeyDefaultTime2Wait: "13.15", iscsi.KeyDefaultTime2Retain: "13.16", iscsi.KeyMaxOutstandingR2T: "13.17",
		iscsi.KeyDataPDUInOrder: "13.18", iscsi.KeyDataSequenceInOrder: "13.19", iscsi.KeyErrorRecoveryLevel: "13.20",
	}
	var all []Case
	for id := range iscsi.NumKeys {
		section, ok := sections[id]
		if !ok {
			continue
		}
		k := &iscsi.Keys[id]
		switch k.Result {
		case iscsi.Minimum, iscsi.Maximum:
			values := []uint32{k.Min, k.Default, k.Max}
			slices.Sort(values)
			for _, v := range slices.Compact(values) {
				low, high, function := k.Min, v, "minimum"
				if k.Result == iscsi.Maximum {
					low, high, function = v, k.Max, "maximum"
				}
				all = append(all, offered(fmt.Sprintf("%s.%d", k.Name, v), simple+", "+section, fmt.Sprintf("the accepting party MUST answer with the same key; the result function of %s is %s", k.Name, function),
					fmt.Sprintf("%s=%d", k.Name, v), func(value string, ok bool) bool { return ok && within(value, low, high) }))
			}
			bad := []string{"many", fmt.Sprint(uint64(k.Max) + 1)}
			if k.Min > 0 {
				bad = append(bad, fmt.Sprint(k.Min-1))
			}
			for _, v := range bad {
				all = append(all, Case{ID: fmt.Sprintf("keys.%s.%s", k.Name, v), Source: simple, Over: onTCP,
					Says: "Proposing a value not admissible MAY be answered with Reject; otherwise, the acceptor MUST select an admissible value", run: func(t *T) {
						a := t.offer(k.Name + "=" + v)
						value, ok := a.key(k.Name)
						t.require(a.refused() || value == "Reject" || ok && within(value, k.Min, k.Max), "%s=%s is answered by %v", k.Name, v, a)
					}})
			}
			if k.Max >= 512 {
				all = append(all, offered(k.Name+".hexadecimal", "RFC 7143 6.1", "a numerical-value is a decimal-constant or a hex-constant", k.Name+"=0x200",
					func(value string, ok bool) bool { return ok && within(value, k.Min, k.Max) }))
			}
		case iscsi.And, iscsi.Or:
			determines, other := "No", "Yes"
			if k.Result == iscsi.Or {
				determines, other = "Yes", "No"
			}
			all = append(all,
				offered(k.Name+"."+determines, boolean+", "+section, fmt.Sprintf("%s=%s determines the result, and the answer may be left out", k.Name, determines), k.Name+"="+determines,
					func(value string, ok bool) bool { return !ok || value == determines }),
				offered(k.Name+"."+other, boolean+", "+section, "the accepting party MUST answer with the same key and the result of the negotiation when the received value does not determine that", k.Name+"="+other,
					func(value string, ok bool) bool { return value == "Yes" || value == "No" }),
				Case{ID: "keys." + k.Name + ".lower-case", Source: "RFC 7143 6.1, 6.2.2", Says: "booleans are Yes and No: any other value is not admissible", Over: onTCP, run: func(t *T) {
					a := t.offer(k.Name + "=" + strings.ToLower(other))
					value, ok := a.key(k.Name)
					t.require(a.refused() || ok && (value == "Reject" || value == "Yes" || value == "No"), "%s=%s is answered by %v", k.Name, strings.ToLower(other), a)
				}})
		}
	}
	for _, d := range []string{"HeaderDigest", "DataDigest"} {
		all = append(all,
			offered(d+".none", list+", 13.1", "The responder selects the first value that it supports", d+"=None", func(value string, _ bool) bool { return value == "None" }),
			offered(d+".crc32c", "RFC 7143 13.1", "CRC32C MUST be implemented by every iSCSI initiator and target", d+"=CRC32C", func(value string, _ bool) bool { return value == "CRC32C" }),
			offered(d+".first", list+", 13.1", "The responder selects the first value that it supports and may use", d+"=CRC32C,None", func(value string, _ bool) bool { return value == "CRC32C" || value == "None" }),
			offered(d+".unknown", list, "If an acceptor does not understand any particular value in a list, it MUST ignore it", d+"=Y-org.example.sum,None", func(value string, _ bool) bool { return value == "None" }))
	}
	for _, k := range []string{"IFMarker=Yes", "IFMarker=No", "OFMarker=Yes", "OFMarker=No"} {
		all = append(all, offered(strings.Replace(k, "=", ".", 1), "RFC 7143 13.25", "an implementation SHOULD respond with Reject, MAY with No, and MUST NOT with NotUnderstood", k,
			func(value string, ok bool) bool { return value == "Reject" || value == "No" }))
	}
	for _, k := range []string{"IFMarkInt=2048~8192", "OFMarkInt=2048~8192"} {
		name, _, _ := strings.Cut(k, "=")
		all = append(all, offered(name, "RFC 7143 13.25", "When an IFMarkInt or OFMarkInt key is received, a compliant iSCSI implementation MUST respond with the constant Reject value", k,
			func(value string, ok bool) bool { return value == "Reject" }))
	}
	return append(all,
		Case{ID: "keys.MaxRecvDataSegmentLength", Source: "RFC 7143 13.12, 6.2", Says: "MaxRecvDataSegmentLength is declared by each side for itself: it is no answer, and between 512 and 2**24-1", Over: onTCP, run: func(t *T) {
			l := t.begin(0)
			t.authenticated(l.authenticate(t.names(0), iscsi.Operational))
			a := l.step(iscsi.Operational, iscsi.FullFeature, "MaxRecvDataSegmentLength=512")
			t.require(a.accepted(), "%v", a)
			v, ok := lookupPair(l.said, "MaxRecvDataSegmentLength")
			t.require(!ok || within(v, 512, 1<<24-1), "MaxRecvDataSegmentLength=%s", v)
		}},
		Case{ID: "keys.first-burst-above", Source: "RFC 7143 13.14", Says: "FirstBurstLength MUST NOT exceed MaxBurstLength", Over: onTCP, run: func(t *T) {
			a := t.offer("MaxBurstLength=8192", "FirstBurstLength=65536")
			if a.refused() {
				return
			}
			most, _ := number(a.pairs, iscsi.KeyMaxBurstLength)
			first, _ := number(a.pairs, iscsi.KeyFirstBurstLength)
			t.require(first <= most, "%v", a.pairs)
		}},
		Case{ID: "keys.no-answer-to-declarations", Level: Should, Source: "RFC 7143 6.2", Says: "declarations are not answered", Over: onTCP, run: func(t *T) {
			a := t.offer("InitiatorAlias=tester")
			_, ok := a.key("InitiatorAlias")
			t.require(a.accepted() && !ok, "InitiatorAlias=tester is answered by %v", a)
		}},
		Case{ID: "keys.protocol-level", Source: "RFC 7144 7, RFC 7143 13.24", Says: "the result of iSCSIProtocolLevel is the lesser of both, and who has only RFC 7143 answers 1", Level: Should, Over: onTCP, run: func(t *T) {
			a := t.offer("iSCSIProtocolLevel=2")
			v, ok := a.key("iSCSIProtocolLevel")
			t.require(a.accepted() && ok && (v == "NotUnderstood" || within(v, 0, 2)), "iSCSIProtocolLevel=2 is answered by %v", a)
		}},
		Case{ID: "keys.task-reporting", Source: "RFC 7143 13.23", Says: "the responder selects one of the values of TaskReporting", Level: Should, Over: onTCP, run: func(t *T) {
			a := t.offer("TaskReporting=FastAbort,ResponseFence,RFC3720")
			v, ok := a.key("TaskReporting")
			t.require(a.accepted() && ok && slices.Contains([]string{"FastAbort", "ResponseFence", "RFC3720", "NotUnderstood"}, v), "it is answered by %v", a)
		}},
		Case{ID: "keys.irrelevant-in-discovery", Source: "RFC 7143 13, 6.2", Says: "a key that is irrelevant in a Discovery session is answered with Irrelevant, or as in any other", Over: onTCP, run: func(t *T) {
			l := t.begin(0)
			t.authenticated(l.authenticate([]string{t.names(0)[0], "SessionType=Discovery"}, iscsi.Operational))
			a := l.step(iscsi.Operational, iscsi.Operational, "InitialR2T=Yes", "MaxBurstLength=65536")
			v, ok := a.key("MaxBurstLength")
			t.require(a.accepted() && ok && (v == "Irrelevant" || within(v, 512, 65536)), "MaxBurstLength=65536 is answered by %v", a)
		}},
		Case{ID: "keys.discovery-recovery", Source: "RFC 7143 13.20", Says: "ErrorRecoveryLevel MUST be 0 (zero) for Discovery sessions", Over: onTCP, run: func(t *T) {
			l := t.begin(0)
			t.authenticated(l.authenticate([]string{t.names(0)[0], "SessionType=Discovery"}, iscsi.Operational))
			a := l.step(iscsi.Operational, iscsi.Operational, "ErrorRecoveryLevel=2")
			v, _ := a.key("ErrorRecoveryLevel")
			t.require(a.accepted() && v == "0", "ErrorRecoveryLevel=2 is answered by %v", a)
		}},
	)
}
