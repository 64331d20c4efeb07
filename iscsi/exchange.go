package iscsi

// TextExchange is a target's end of a negotiation by Text Requests in full feature phase (RFC 7143
// sections 6.4, 11.10 and 11.11), without I/O. A connection has one.
type TextExchange struct {
	asked textBuffer
	rest  []byte // of the answer, not sent yet
	itt   uint32
	ttt   uint32 // what the initiator goes on with
	open  bool
}

// Request takes one Text Request with its data. Once the initiator's text is complete it passes the
// pairs to answer, which returns the text of the answer. The result is the response, complete but
// for its numbers, with the next part of the answer, at most most bytes; or, if why is not 0, why the
// request is rejected: the exchange has ended then.
func (x *TextExchange) Request(q *Text, data []byte, most int, answer func(pairs []Pair) []byte) (r Text, part []byte, why Reason) {
	if q.TTT == NoTag { // "the target MUST discard its internal information"
		*x = TextExchange{itt: q.ITT, ttt: x.ttt, open: true}
	} else if !x.open || q.TTT != x.ttt || q.ITT != x.itt {
		x.open = false
		return r, nil, RejectInvalidField
	}
	answering := len(x.rest) > 0
	switch pairs, err := x.asked.add(data, q.Continue); {
	case err != nil, answering && (len(data) > 0 || q.Continue):
		x.open = false
		return r, nil, RejectProtocolError
	case !q.Continue && !answering:
		x.rest = answer(pairs)
	}
	part = x.rest[:min(len(x.rest), most)]
	x.rest = x.rest[len(part):]
	more := len(x.rest) > 0
	r = Text{Final: q.Final && !more, Continue: more, LUN: q.LUN, ITT: q.ITT, TTT: NoTag}
	if x.open = !r.Final; x.open {
		if x.ttt++; x.ttt == NoTag {
			x.ttt = 0
		}
		r.TTT = x.ttt
	}
	return r, part, 0
}

// Renegotiate answers what may be negotiated in full feature phase: SendTargets, by sendTargets, and
// the initiator's declaration of MaxRecvDataSegmentLength, which v has afterwards. All else stays as
// it was agreed. It fails if a declaration is not admissible, and if a key comes twice (section 6.2).
func Renegotiate(v *Values, pairs []Pair, sendTargets func(which string) []byte) (text []byte, err error) {
	var said [NumKeys]bool
	for _, p := range pairs {
		id, known := KeyNamed(p.Key)
		if known && isRepeated(said[id]) {
			return nil, refuse(LoginInitiatorError, "%s is sent twice", p.Key)
		}
		said[id] = said[id] || known
		switch {
		case !known:
			text = AppendPair(text, p.Key, notUnderstood)
		case id == KeySendTargets:
			text = append(text, sendTargets(p.Value)...)
		case id == KeyMaxRecvDataSegmentLength && v.Bool(KeyRDMAExtensions), id == KeyInitiatorAlias:
			// RFC 7145 section 6.4: it has no meaning there. An alias is for people.
		case id == KeyMaxRecvDataSegmentLength:
			n, ok := Keys[id].parse(p.Value)
			if !ok {
				return nil, refuse(LoginInitiatorError, "%s=%.40s is not admissible", p.Key, p.Value)
			}
			v[id] = n
		default:
			text = AppendPair(text, p.Key, rejected)
		}
	}
	return text, nil
}
