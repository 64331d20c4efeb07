package iscsitest

import (
	"strings"

	"github.com/ironwarp/ironwarp/iscsi"
)

// say sends a Text Request and returns the response. set changes the request before.
func (s *Session) say(data []byte, set func(q *iscsi.Text)) (*PDU, iscsi.Text) {
	p := s.sendText(data, set)
	r := s.awaitPDU(iscsi.OpTextResp)
	a, _ := iscsi.ParseTextResponse(&r.BHS)
	if a.ITT != p {
		s.t.fail("a Text Request with tag %#x is answered by %v", p, r)
	}
	return r, a
}

func (s *Session) sendText(data []byte, set func(q *iscsi.Text)) (itt uint32) {
	s.opens(1)
	q := iscsi.Text{Final: true, ITT: s.nextTag(), TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
	s.cmdSN++
	if set != nil {
		set(&q)
	}
	p := &PDU{Data: data}
	q.PutRequest(&p.BHS)
	s.send(p)
	return q.ITT
}

// sayAll sends a Text Request and returns the whole answer, however many responses it takes.
func (s *Session) sayAll(pair string) []iscsi.Pair {
	r, a := s.say(text(pair), nil)
	all := append([]byte(nil), r.Data...)
	for range 1000 {
		if a.Final {
			pairs, err := iscsi.ParsePairs(all)
			s.t.require(err == nil, "the text that answers %s can't be read: %v", pair, err)
			return pairs
		}
		before := a
		r, a = s.say(nil, func(q *iscsi.Text) { q.ITT, q.TTT, q.LUN = before.ITT, before.TTT, before.LUN })
		all = append(all, r.Data...)
	}
	s.t.fail("the answer to %s does not come to its end", pair)
	return nil
}

// targets are the names in the answer to SendTargets, and checks what else is there.
func (s *Session) targets(value string) (names []string, addresses int) {
	for _, p := range s.sayAll("SendTargets=" + value) {
		switch {
		case p.Key == "TargetName":
			names = append(names, p.Value)
		case p.Key == "TargetAddress" && len(names) > 0:
			addresses++
			comma := strings.LastIndexByte(p.Value, ',')
			s.t.require(comma > 0 && within(p.Value[comma+1:], 1, 65535), "TargetAddress=%s has no portal group tag", p.Value)
		default:
			s.t.fail("a SendTargets response has %s=%s there", p.Key, p.Value)
		}
	}
	return names, addresses
}

func only(names []string, name string) bool { return len(names) == 1 && names[0] == name }

func textCases() []Case {
	return []Case{
		{ID: "text.discovery", Source: "RFC 7143 C", Says: "A system that contains targets MUST support Discovery sessions on each of its portals and MUST support the SendTargets command on them", run: func(t *T) {
			names, _ := t.login(options{discovery: true}).targets("All")
			for _, n := range names {
				if n == t.target.Name {
					return
				}
			}
			t.fail("%s is not among the targets %v", t.target.Name, names)
		}},
		{ID: "text.discovery-name", Source: "RFC 7143 C", Says: "If an iSCSI Target Name is specified, the session responds with addresses for only the named target", run: func(t *T) {
			names, _ := t.login(options{discovery: true}).targets(t.target.Name)
			t.require(only(names, t.target.Name), "SendTargets=%s is answered with %v", t.target.Name, names)
		}},
		{ID: "text.discovery-other", Source: "RFC 7143 C", Says: "a name of no target is answered with none", run: func(t *T) {
			names, _ := t.login(options{discovery: true}).targets("iqn.2026-01.org.example:no-such-target")
			t.require(len(names) == 0, "it is answered with %v", names)
		}},
		{ID: "text.normal-own", Source: "RFC 7143 C", Says: "SendTargets without a value MUST be supported on operational sessions and MUST NOT return other targets", run: func(t *T) {
			names, _ := t.login(options{}).targets("")
			t.require(only(names, t.target.Name), "it is answered with %v", names)
		}},
		{ID: "text.normal-all", Source: "RFC 7143 C", Says: "SendTargets=All MUST NOT be supported on an operational session", run: func(t *T) {
			s := t.login(options{})
			s.sendText(text("SendTargets=All"), nil)
			for {
				p := s.nextPDU("an answer to SendTargets=All")
				if p == nil {
					continue
				}
				if p.BHS.Opcode() == iscsi.OpReject {
					return
				}
				pairs, _ := iscsi.ParsePairs(p.Data)
				_, told := lookupPair(pairs, "TargetName")
				t.require(!told, "it is answered by %v", p)
				return
			}
		}},
		{ID: "text.discovery-no-commands", Source: "RFC 7143 4.3", Says: "in a Discovery session only Text and Logout are accepted: a SCSI command is rejected", run: func(t *T) {
			s := t.login(options{discovery: true})
			s.start([]byte{0}, nil, nil, how{})
			s.rejects("a SCSI command in a Discovery session")
		}},
		{ID: "text.unknown-key", Source: "RFC 7143 6.2", Says: "the answer for a key that is not understood MUST be key=NotUnderstood", run: func(t *T) {
			pairs := t.login(options{}).sayAll("X-org.example.unknown=1")
			v, _ := lookupPair(pairs, "X-org.example.unknown")
			t.require(v == "NotUnderstood", "it is answered by %v", pairs)
		}},
		{ID: "text.split", Source: "RFC 7143 6.2", Says: "A target receiving a Text Request with the C bit set to 1 MUST answer with a Text Response with no data segment", run: func(t *T) {
			s := t.login(options{})
			r, a := s.say([]byte("X-org.exam"), func(q *iscsi.Text) { q.Final, q.Continue = false, true })
			t.require(len(r.Data) == 0 && !a.Final && a.TTT != iscsi.NoTag, "it is answered by %v", r)
			r, _ = s.say([]byte("ple.unknown=1\x00"), func(q *iscsi.Text) { q.ITT, q.TTT, q.LUN = a.ITT, a.TTT, a.LUN })
			pairs, err := iscsi.ParsePairs(r.Data)
			v, _ := lookupPair(pairs, "X-org.example.unknown")
			t.require(err == nil && v == "NotUnderstood", "the whole text is answered by %v", r)
		}},
		{ID: "text.not-final", Source: "RFC 7143 6.4, 11.11.1", Says: "Whenever the target responds with the F bit set to 0, it MUST set the Target Transfer Tag to a value other than the default 0xffffffff", run: func(t *T) {
			s := t.login(options{})
			r, a := s.say(text("X-org.example.unknown=1"), func(q *iscsi.Text) { q.Final = false })
			t.require(!a.Final && a.TTT != iscsi.NoTag, "a request without F is answered by %v", r)
		}},
		{ID: "text.bogus-tag", Source: "RFC 7143 11.10.4, 11.17.1", Says: "a Text Request with a Target Transfer Tag that the target has not given is rejected", run: func(t *T) {
			s := t.login(options{})
			s.sendText(nil, func(q *iscsi.Text) { q.TTT = 0x7fffff12 })
			s.rejects("a Text Request with a transfer tag that was not given")
		}},
		{ID: "text.renegotiation", Source: "RFC 7143 6.4", Says: "what may only be negotiated in a login is not changed by Text", run: func(t *T) {
			s := t.login(options{})
			s.sendText(text("MaxBurstLength=512"), nil)
			for {
				p := s.nextPDU("an answer to MaxBurstLength=512")
				if p == nil {
					continue
				}
				pairs, _ := iscsi.ParsePairs(p.Data)
				v, ok := lookupPair(pairs, "MaxBurstLength")
				t.require(p.BHS.Opcode() == iscsi.OpReject || !ok || v == "Reject" || v == "Irrelevant" || v == "NotUnderstood", "it is answered by %v", p)
				return
			}
		}},
		{ID: "text.segment", Source: "RFC 7143 13.12", Says: "MaxRecvDataSegmentLength may be declared in full feature phase, and holds from then on", Over: onTCP, run: func(t *T) {
			s := t.login(options{}).ready()
			s.sayAll("MaxRecvDataSegmentLength=512")
			s.limit = 512
			s.good(s.do(read10(0, 8), nil, make([]byte, 8*s.blockLen())), "READ")
		}},
	}
}
