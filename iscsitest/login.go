package iscsitest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
)

// login is a login that a case does step by step.
type login struct {
	*Conn
	q        iscsi.LoginRequest // of the last request; the next one begins with it
	said     keyPairs           // all that the target has said
	offered  []string           // all that was sent, KEY=VALUE
	answered int                // how many of said were looked at for what they propose
}

// replies are the answers to what the target has proposed since the last time: a target may begin a negotiation, too
// (RFC 7143 section 6.2). What it proposes is taken, and of a list None, if that is in it.
func (l *login) replies() (pairs []string) {
	for ; l.answered < len(l.said); l.answered++ {
		p := l.said[l.answered]
		id, known := iscsi.KeyNamed(p.Key)
		if !known {
			continue
		}
		if k := &iscsi.Keys[id]; k.Result == iscsi.Declared || k.Result == iscsi.Obsolete || slices.ContainsFunc(l.offered, func(o string) bool { return strings.HasPrefix(o, p.Key+"=") }) {
			continue
		}
		value := p.Value
		if all := strings.Split(value, ","); slices.Contains(all, "None") {
			value = "None"
		} else {
			value = all[0]
		}
		pairs = append(pairs, p.Key+"="+value)
	}
	return pairs
}

// finish asks for full feature phase until the target agrees, and answers what it proposes.
func (l *login) finish(pairs ...string) *answer {
	for range maxRounds {
		a := l.step(iscsi.Operational, iscsi.FullFeature, pairs...)
		if a.refused() || a.Transit && a.NSG == iscsi.FullFeature {
			return a
		}
		pairs = l.replies()
	}
	l.t.fail("the login does not come to its end: %d requests for full feature phase were answered without it", maxRounds)
	return nil
}

// maxRounds is how often full feature phase is asked for: a target may have more to say.
const maxRounds = 16

// isid is that of initiator number n: random, in the format for that (RFC 7143 section 11.12.5), and the same in
// one case.
func (t *T) isid(n int) (b [6]byte) {
	r := uint32(t.o.Seed)*0x9e3779b1 ^ uint32(n)<<8
	return [6]byte{0x80, byte(r >> 16), byte(r >> 8), byte(r), 0, byte(n + 1)}
}

// begin opens a connection for a login of initiator number n.
func (t *T) begin(n int) *login {
	return &login{Conn: t.dial(), q: iscsi.LoginRequest{ISID: t.isid(n), CID: 1, ITT: 1, CmdSN: 1}}
}

// text makes text of KEY=VALUE pairs.
func text(pairs ...string) []byte {
	var b []byte
	for _, p := range pairs {
		b = append(append(b, p...), 0)
	}
	return b
}

// names are the pairs with which every login of a normal session begins.
func (t *T) names(n int) []string {
	return []string{"InitiatorName=" + t.target.initiator(n), "SessionType=Normal", "TargetName=" + t.target.Name}
}

// request sends a Login Request with what is set in q.
func (l *login) request(data []byte) error {
	l.q.ExpStatSN = l.expStatSN
	p := &PDU{Data: data}
	l.q.Put(&p.BHS)
	return l.trySend(p)
}

// keyPairs are what a target has said. In words they have no response of CHAP.
type keyPairs []iscsi.Pair

// String returns the pairs as KEY=VALUE, in the order in which they came.
func (all keyPairs) String() string {
	words := make([]string, len(all))
	for i, p := range all {
		words[i] = string(hideSecrets([]byte(p.Key + "=" + p.Value)))
	}
	return fmt.Sprint(words)
}

// answer is what a target has answered to a Login Request.
type answer struct {
	iscsi.LoginResponse
	pairs keyPairs
	ended bool // the connection has ended without an answer
	on    *Conn
}

// errNoAnswer means that a connection has ended in the middle of a login.
var errNoAnswer = errors.New("there is no answer to a Login Request")

// accepted reports that the login goes on. A connection that has ended is not refused but lost.
func (a *answer) accepted() bool {
	if a.ended {
		a.on.t.lost(a.on, errNoAnswer)
	}
	return a.Status>>8 == 0
}

// refused reports that the login has failed, whichever way the target says so.
func (a *answer) refused() bool { return a.ended || a.Status>>8 != 0 }

// String says what the answer was.
func (a *answer) String() string {
	if a.ended {
		return "the connection has ended without an answer"
	}
	return fmt.Sprintf("status %#04x with T=%t and %v", uint16(a.Status), a.Transit, a.pairs)
}

// key is the value of a key of the answer.
func (a *answer) key(name string) (value string, ok bool) { return lookupPair(a.pairs, name) }

func lookupPair(pairs []iscsi.Pair, name string) (string, bool) {
	for _, p := range pairs {
		if p.Key == name {
			return p.Value, true
		}
	}
	return "", false
}

// ask sends a Login Request and returns the answer.
func (l *login) ask(data []byte) *answer {
	if l.request(data) != nil {
		return &answer{ended: true, on: l.Conn}
	}
	return l.await()
}

// await waits for the Login Response.
func (l *login) await() *answer {
	p, err := l.tryReceive(l.t.wait())
	if errors.Is(err, errTimeout) {
		l.t.unclear("a Login Request was not answered for %v", l.t.o.Timeout)
	} else if err != nil {
		return &answer{ended: true, on: l.Conn}
	}
	if p.BHS.Opcode() != iscsi.OpLoginResp {
		if p.BHS.Opcode() == iscsi.OpReject { // which some send in place of a status
			return &answer{ended: true, on: l.Conn}
		}
		l.t.fail("%v answers a Login Request", p)
	}
	a := &answer{on: l.Conn}
	if a.LoginResponse, err = iscsi.ParseLoginResponse(&p.BHS); err != nil {
		l.t.watch.breach(ruleLoginTags, "%v: %v", p, err)
	}
	if a.pairs, err = iscsi.ParsePairs(p.Data); err != nil && !a.Continue {
		l.t.fail("the text of a Login Response can't be read: %v", err)
	}
	l.said = append(l.said, a.pairs...)
	if a.Status>>8 != 0 {
		return a
	}
	switch {
	case a.ISID != l.q.ISID, a.ITT != l.q.ITT:
		l.t.watch.breach(ruleLoginTags, "%v answers a request with ISID %x and Initiator Task Tag %#x", p, l.q.ISID, l.q.ITT)
	case a.CSG != l.q.CSG, a.Transit && !l.q.Transit, a.Transit && a.NSG > l.q.NSG:
		l.t.watch.breach(ruleLoginTags, "%v answers a request with T=%t in stage %d to %d", p, l.q.Transit, l.q.CSG, l.q.NSG)
	}
	return a
}

// step asks in a stage, and for the transition to the next one if next is above the stage.
func (l *login) step(stage, next iscsi.Stage, pairs ...string) *answer {
	l.q.CSG, l.q.NSG, l.q.Transit = stage, next, next > stage
	l.offered = append(l.offered, pairs...)
	return l.ask(text(pairs...))
}

// authenticate carries the security stage out, as the target asks for it, and returns the last answer.
func (l *login) authenticate(names []string, next iscsi.Stage) *answer {
	x := l.t.target.CHAP
	if x == nil {
		return l.step(iscsi.Security, next, append(names, "AuthMethod=None")...)
	}
	a := l.step(iscsi.Security, iscsi.Security, append(names, "AuthMethod=CHAP,None")...)
	if m, _ := a.key("AuthMethod"); a.refused() || m == "None" {
		return l.step(iscsi.Security, next)
	}
	a = l.step(iscsi.Security, iscsi.Security, "CHAP_A=7,5")
	if a.refused() {
		return a
	}
	response, err := chapResponse(a, x.Secret)
	if err != nil {
		l.t.fail("the target's CHAP can't be answered: %v", err)
	}
	return l.step(iscsi.Security, next, "CHAP_N="+x.Name, "CHAP_R="+iscsi.FormatBinary(response))
}

// chapResponse is the response to the challenge of an answer.
func chapResponse(a *answer, secret []byte) ([]byte, error) {
	algorithm, _ := a.key("CHAP_A")
	id, _ := a.key("CHAP_I")
	challenge, _ := a.key("CHAP_C")
	c, err := iscsi.ParseBinary(challenge)
	if err != nil {
		return nil, err
	}
	var n uint8
	if _, err := fmt.Sscanf(id, "%d", &n); err != nil {
		return nil, fmt.Errorf("CHAP_I=%.20q", id)
	}
	switch algorithm {
	case "5":
		return chap.Response(chap.MD5, n, secret, c), nil
	case "7":
		return chap.Response(chap.SHA256, n, secret, c), nil
	}
	return nil, fmt.Errorf("CHAP_A=%.20q was not offered", algorithm)
}

// options say how a session logs in.
type options struct {
	initiator int // its number in the case
	isid      int // the number of its ISID, if that is not the initiator's
	discovery bool
	tsih      uint16 // of a session that the connection joins
	cid       uint16
	cmdSN     uint32   // of the leading login, 0: 1
	keys      []string // offers, KEY=VALUE
	limit     int      // MaxRecvDataSegmentLength in bytes that is declared, 0: 64 KiB
}

// login logs in, and ends the case if it can't.
func (t *T) login(o options) *Session {
	s, a := t.tryLogin(o)
	if s == nil {
		switch {
		case !a.accepted() && a.Status == iscsi.LoginAuthFailure:
			t.skip("the target asks for authentication, or knows another secret (status 0x0201)")
		}
		t.unclear("the login was refused: %v", a)
	}
	return s
}

// tryLogin logs in. s is nil if the target refuses.
func (t *T) tryLogin(o options) (s *Session, a *answer) {
	l := t.begin(o.initiator)
	if o.isid != 0 {
		l.q.ISID = t.isid(o.isid)
	}
	if o.cid != 0 {
		l.q.CID = o.cid
	}
	if o.cmdSN != 0 {
		l.q.CmdSN = o.cmdSN
	}
	l.q.TSIH = o.tsih
	names := t.names(o.initiator)
	if o.discovery {
		names = []string{names[0], "SessionType=Discovery"}
	}
	if a = l.authenticate(names, iscsi.Operational); a.refused() {
		return nil, a
	}
	if !a.Transit {
		a = l.step(iscsi.Security, iscsi.Operational)
	}
	if o.limit == 0 {
		o.limit = 64 << 10
	}
	keys := append([]string{fmt.Sprintf("MaxRecvDataSegmentLength=%d", o.limit)}, o.keys...)
	if t.target.Over != TCP {
		keys = append([]string{"RDMAExtensions=Yes", fmt.Sprintf("InitiatorRecvDataSegmentLength=%d", segment)}, o.keys...)
	}
	if a.refused() {
		return nil, a
	}
	if a = l.finish(keys...); a.refused() {
		return nil, a
	}
	return l.session(a, o), a
}

// session returns the session of a login that has come to its end.
func (l *login) session(a *answer, o options) *Session {
	s := &Session{Conn: l.Conn, isid: l.q.ISID, cid: l.q.CID, tsih: a.TSIH, cmdSN: l.q.CmdSN, expCmdSN: l.q.CmdSN, maxCmdSN: l.q.CmdSN - 1, tasks: map[uint32]*Task{}, itt: 1, discovery: o.discovery}
	l.v = agreed(l.said, l.offered)
	s.targetLimit = iscsi.LoginDataSegment
	if v, ok := number(l.said, iscsi.KeyMaxRecvDataSegmentLength); ok {
		s.targetLimit = v
	}
	switch {
	case l.t.target.Over == TCP:
		l.limit = o.limit
		l.link.(*tcp).limit = o.limit
	case l.v.Bool(iscsi.KeyRDMAExtensions):
		s.targetLimit = l.v[iscsi.KeyTargetRecvDataSegmentLength]
	case !o.discovery:
		l.t.unclear("the target does not use RDMA: %v", l.said)
	}
	if err := l.link.negotiated(&l.v); err != nil {
		l.t.lost(l.Conn, err)
	}
	l.full = true
	s.numbers(a.Numbers)
	return s
}

// number is the value of a key that is a number.
func number(pairs []iscsi.Pair, id iscsi.KeyID) (uint32, bool) {
	v, ok := lookupPair(pairs, iscsi.Keys[id].Name)
	if !ok {
		return 0, false
	}
	var n uint32
	_, err := fmt.Sscanf(v, "%v", &n) // decimal, or hexadecimal with 0x
	return n, err == nil
}

// agreed are the values that hold after a login: the answers to what was offered, whoever did that.
func agreed(said []iscsi.Pair, offered []string) iscsi.Values {
	v := iscsi.DefaultValues()
	for _, s := range offered {
		name, ours, _ := strings.Cut(s, "=")
		id, ok := iscsi.KeyNamed(name)
		if !ok || iscsi.Keys[id].Result == iscsi.Declared && !iscsi.Keys[id].FromInitiator {
			continue
		}
		value, ok := lookupPair(said, name)
		if !ok || strings.Contains(value, ",") {
			value = ours // which answers a proposal, or determines the result
		}
		k := &iscsi.Keys[id]
		switch n, err := strconv.ParseUint(value, 0, 32); {
		case value == "Yes", value == "No":
			v[id] = 0
			if value == "Yes" {
				v[id] = 1
			}
		case len(k.Values) > 0:
			for i, known := range k.Values {
				if value == known {
					v[id] = 1 << i
				}
			}
		case err == nil:
			v[id] = uint32(n)
		}
	}
	v[iscsi.KeyFirstBurstLength] = min(v[iscsi.KeyFirstBurstLength], v[iscsi.KeyMaxBurstLength]) // section 13.14
	return v
}
