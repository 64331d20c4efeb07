package iscsi

import (
	"strings"
	"testing"
)

// TestTextExchange: texts that span requests, answers that span responses, and what breaks the rules.
func TestTextExchange(t *testing.T) {
	const answerText = "TargetName=iqn.x:1\x00TargetAddress=10.0.0.1:3260,1\x00"
	var x TextExchange
	asked := ""
	answer := func(pairs []Pair) []byte {
		for _, p := range pairs {
			asked += p.Key + "=" + p.Value + ";"
		}
		return []byte(answerText)
	}
	request := func(q Text, data string) (Text, string) {
		t.Helper()
		r, part, why := x.Request(&q, []byte(data), 20, answer)
		if why != 0 {
			t.Fatalf("rejected: %d", why)
		}
		return r, string(part)
	}
	r, part := request(Text{Continue: true, ITT: 7, TTT: NoTag}, "SendTa")
	if r.Final || r.Continue || r.TTT == NoTag || part != "" {
		t.Fatalf("%+v %q", r, part)
	}
	got := ""
	for q, data := (Text{Final: true, ITT: 7, TTT: r.TTT}), "rgets=All\x00"; ; data = "" {
		r, part := request(q, data)
		got += part
		if r.Final != (got == answerText) || r.Continue == r.Final || r.Final != (r.TTT == NoTag) || r.ITT != 7 {
			t.Fatalf("%+v after %q", r, got)
		}
		if r.Final {
			break
		}
		if r.TTT == q.TTT {
			t.Error("a tag is given twice")
		}
		q.TTT = r.TTT
	}
	if asked != "SendTargets=All;" {
		t.Errorf("asked for %q", asked)
	}
	if r, _ := request(Text{ITT: 8, TTT: NoTag}, ""); r.Final {
		t.Error("the target ends a negotiation that the initiator goes on with")
	}

	for name, f := range map[string]func() Reason{
		"a tag of nobody": func() Reason {
			_, _, why := x.Request(&Text{Final: true, ITT: 8, TTT: x.ttt + 1}, nil, 20, answer)
			return why
		},
		"another task's tag": func() Reason {
			r, _ := request(Text{ITT: 8, TTT: NoTag}, "")
			_, _, why := x.Request(&Text{Final: true, ITT: 9, TTT: r.TTT}, nil, 20, answer)
			return why
		},
		"data while the answer is sent": func() Reason {
			r, _ := request(Text{Final: true, ITT: 8, TTT: NoTag}, "")
			_, _, why := x.Request(&Text{Final: true, ITT: 8, TTT: r.TTT}, []byte("A=1\x00"), 20, answer)
			return why
		},
		"endless text": func() (why Reason) {
			for q := (Text{Continue: true, ITT: 8, TTT: NoTag}); why == 0; {
				var r Text
				r, _, why = x.Request(&q, []byte(strings.Repeat("A", 4096)), 20, answer)
				q.TTT = r.TTT
			}
			return why
		},
	} {
		if f() == 0 {
			t.Errorf("%s is not rejected", name)
		}
		if x.open || len(x.asked.b) > MaxText {
			t.Errorf("%s: the exchange goes on", name)
		}
	}
}

// TestWhatMayBeRenegotiated: in full feature phase an initiator changes what it declares, and nothing
// that was agreed (RFC 7143 section 13).
func TestWhatMayBeRenegotiated(t *testing.T) {
	v := DefaultValues()
	before := v
	pairs, _ := ParsePairs([]byte("MaxRecvDataSegmentLength=4096\x00MaxBurstLength=1024\x00X-new=1\x00InitiatorAlias=me\x00ErrorRecoveryLevel=2\x00"))
	text, err := Renegotiate(&v, pairs, nil)
	if want := "MaxBurstLength=Reject\x00X-new=NotUnderstood\x00ErrorRecoveryLevel=Reject\x00"; err != nil || string(text) != want {
		t.Errorf("%q, %v", text, err)
	}
	before[KeyMaxRecvDataSegmentLength] = 4096
	if v != before {
		t.Errorf("%v", v)
	}
	if _, err := Renegotiate(&v, []Pair{{"MaxRecvDataSegmentLength", "511"}}, nil); err == nil || v != before {
		t.Error("a length that is not admissible is taken")
	}
	asked := 0
	if _, err := Renegotiate(&v, []Pair{{"SendTargets", "All"}, {"SendTargets", "All"}}, func(string) []byte { asked++; return nil }); err == nil || asked != 1 {
		t.Errorf("a key that comes twice: asked %d times, %v", asked, err)
	}
}
