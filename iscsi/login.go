package iscsi

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/chap"
)

// Admission is what a target has for an initiator that may try to log in.
type Admission struct {
	PortalGroup uint16
	Alias       string
	// Find returns the credentials of an initiator by CHAP_N; nil: no authentication is asked for.
	Find func(name string) *chap.Credentials
	// MayStay is asked after authentication whether the initiator may use the name that it gave.
	// nil: it may.
	MayStay func(c *chap.Credentials) bool
	// ErrorRecoveryLevel is the highest that a session over TCP may agree on, from 0 to 2.
	ErrorRecoveryLevel uint32
	// Session is what was agreed on for the session that the connection is to be added to; nil: for
	// none.
	Session *Values
	// NoRDMA has RDMAExtensions answered with No (RFC 7145 section 6.3).
	NoRDMA bool
}

// Policy decides about logins.
type Policy interface {
	// Admit is asked once the names are known. Nothing is authenticated yet. A status other than
	// LoginOK, or a redirection with an address, ends the login.
	Admit(l *Login) (a Admission, redirect string, s LoginStatus)
	// Establish makes the session when all is agreed, or adds the connection to that of Login.TSIH,
	// and returns its handle.
	Establish(l *Login) (tsih uint16, s LoginStatus)
}

// Login is the login of one connection at a target (RFC 7143 section 6.3), a state machine without
// I/O. Its exported fields are valid from Policy.Admit on, Values and CHAPName at Establish.
//
//	Security ----------> Operational ----> FullFeature
//	    |  ^ CHAP_A, CHAP_N    ^  |             ^
//	    |  +----------------   |  | no T        |
//	    +-----------------------------(T, NSG=3)+
//	any --> failed
type Login struct {
	InitiatorName, TargetName, InitiatorAlias string
	Discovery                                 bool
	ISID                                      [6]byte
	TSIH, CID                                 uint16
	CmdSN                                     uint32
	Values                                    Values // what was agreed; of MaxRecvDataSegmentLength the initiator's
	CHAPName                                  string // who was authenticated, "" if nobody

	// InRDMA says that the connection is in RDMA mode from its first byte on, as Linux' iSER starts up
	// without asking by a login over TCP (RFC 7145 section 5.1). It is set before the first Request. A
	// normal session is then one with RDMAExtensions=Yes, and a Write Base Offset that of the data
	// that are not sent unsolicited, if the keys say nothing; a discovery session is as over TCP.
	InRDMA bool

	policy    Policy
	ours      *Values
	admission Admission

	first     LoginRequest
	begun     bool // the first request has come
	named     bool // its text, too
	exchanges int
	stage     Stage
	text      textBuffer
	neg       negotiation
	declared  bool // our MaxRecvDataSegmentLength

	unexpected bool // our MaxOutstandingUnexpectedPDUs
	statSN     uint32

	method  bool // AuthMethod is agreed
	auth    chapStep
	chap    chap.Exchange
	skipped bool // nothing was asked for
	over    bool
}

type chapStep uint8

const (
	chapNone      chapStep = iota
	chapAlgorithm          // CHAP_A is awaited
	chapResponse           // CHAP_N and CHAP_R are
	chapDone
)

// NewLogin returns the login of a new connection. ours is what the target would have of each key;
// of MaxRecvDataSegmentLength what it declares, and of digests and TaskReporting all that it can.
// statSN is the connection's first.
func NewLogin(p Policy, ours *Values, statSN uint32) *Login {
	return &Login{policy: p, ours: ours, statSN: statSN}
}

// StatSN is the number that the next response has.
func (l *Login) StatSN() uint32 { return l.statSN }

// DeclaredSegment is the longest data segment that the initiator may send after login.
func (l *Login) DeclaredSegment() uint32 {
	if l.Values.Bool(KeyRDMAExtensions) {
		return l.Values[KeyTargetRecvDataSegmentLength] // RFC 7145 section 6.2
	}
	if l.declared {
		return l.ours[KeyMaxRecvDataSegmentLength]
	}
	return LoginDataSegment
}

// Request takes one Login Request and its data segment, and returns the response, complete but for
// MaxCmdSN. done means that the connection is in full feature phase after it. With an error the
// response is to be sent, too, unless its ITT is NoTag, and then the connection ends.
func (l *Login) Request(h *BHS, data []byte) (r LoginResponse, text []byte, done bool, err error) {
	r.ITT = NoTag
	if l.over {
		return r, nil, false, errors.New("iscsi: the login is over")
	}
	q, err := ParseLoginRequest(h)
	if h.Opcode() != OpLogin {
		err = refuse(LoginInvalid, "%v during login", h.Opcode())
	}
	r = LoginResponse{CSG: q.CSG, ISID: q.ISID, TSIH: q.TSIH, ITT: h.ITT()}
	if err == nil {
		text, done, err = l.request(&q, data, &r)
	}
	if err != nil {
		l.over = true
		r.Transit, r.Continue, r.CSG, r.NSG, r.TSIH = false, false, 0, 0, q.TSIH
		r.Status = LoginInitiatorError
		var refused *refusal
		if errors.As(err, &refused) {
			r.Status = refused.status
		}
		return r, text, false, err
	}
	l.over = done
	r.Numbers = Numbers{StatSN: l.statSN, ExpCmdSN: l.CmdSN}
	l.statSN++
	return r, text, done, nil
}

func (l *Login) request(q *LoginRequest, data []byte, r *LoginResponse) (text []byte, done bool, err error) {
	if err := l.header(q); err != nil {
		return nil, false, err
	}
	pairs, err := l.text.add(data, q.Continue)
	if err != nil {
		return nil, false, refuse(LoginInitiatorError, "%v", err)
	}
	if q.Continue {
		return nil, false, nil // "with no data segment" (section 6.2)
	}
	if !l.named {
		if text, err = l.names(pairs); err != nil {
			return text, false, err
		}
		l.named = true
	}
	transit := q.Transit
	if l.stage == Security {
		text, err = l.security(text, pairs)
		transit = transit && l.authenticated()
	} else {
		text, err = l.operational(text, pairs)
	}
	if err == nil && len(text) > LoginDataSegment {
		text, err = nil, refuse(LoginInitiatorError, "the answers to its keys take %d bytes, and it takes %d", len(text), LoginDataSegment)
	}
	if err != nil || !transit {
		return text, false, err
	}
	// The target may choose the next stage up to the one asked for; it takes that.
	r.Transit, r.NSG = true, q.NSG
	l.stage = q.NSG
	if q.NSG != FullFeature {
		return text, false, nil
	}
	l.Values = l.neg.values
	if err := l.requireDigests(); err != nil {
		return nil, false, err
	}
	tsih, status := l.policy.Establish(l)
	if status != LoginOK {
		return nil, false, refuse(status, "the connection could not be established")
	}
	l.TSIH, r.TSIH = tsih, tsih
	return text, true, nil
}

// requireDigests refuses an initiator that has left out the key of a digest which this side demands.
func (l *Login) requireDigests() error {
	for _, id := range []KeyID{KeyHeaderDigest, KeyDataDigest} {
		if !l.Values.Bool(KeyRDMAExtensions) && l.ours[id]&l.Values[id] == 0 {
			return refuse(LoginInitiatorError, "%s has not been agreed on", Keys[id].Name)
		}
	}
	return nil
}

// header checks what all requests of a login have to agree on (sections 11.12.4 to 11.12.8).
func (l *Login) header(q *LoginRequest) error {
	l.exchanges++
	if !l.begun {
		l.begun = true
		l.first, l.stage = *q, q.CSG
		l.ISID, l.TSIH, l.CID, l.CmdSN = q.ISID, q.TSIH, q.CID, q.CmdSN
		if q.VersionMin > 0 {
			return refuse(LoginVersion, "it knows versions from %d on", q.VersionMin)
		}
		return nil
	}
	f := &l.first
	switch {
	case q.VersionMax != f.VersionMax || q.VersionMin != f.VersionMin || q.ISID != f.ISID || q.TSIH != f.TSIH || q.CID != f.CID || q.ITT != f.ITT:
		return refuse(LoginInitiatorError, "the requests of a login differ")
	case q.CSG != l.stage:
		return refuse(LoginInitiatorError, "a request of stage %d in stage %d", q.CSG, l.stage)
	case l.exchanges > MaxLoginExchanges:
		return refuse(LoginInitiatorError, "the login takes more than %d requests", MaxLoginExchanges)
	}
	return nil
}

// names handles what the first request has to say (section 6.3.1).
func (l *Login) names(pairs []Pair) (text []byte, err error) {
	for _, p := range pairs {
		id, _ := KeyNamed(p.Key)
		switch {
		case p.Key == Keys[KeyInitiatorName].Name:
			l.InitiatorName = p.Value
		case p.Key == Keys[KeyTargetName].Name:
			l.TargetName = p.Value
		case id == KeyInitiatorAlias && p.Key == Keys[id].Name:
			l.InitiatorAlias = p.Value
		case id == KeySessionType && p.Key == Keys[id].Name:
			l.Discovery = p.Value == "Discovery"
			if !l.Discovery && p.Value != "Normal" {
				return nil, refuse(LoginSessionType, "SessionType=%.20s", p.Value)
			}
		}
	}
	switch {
	case l.InitiatorName == "":
		return nil, refuse(LoginMissing, "InitiatorName is missing")
	case !IsName(l.InitiatorName) || l.TargetName != "" && !IsName(l.TargetName):
		return nil, refuse(LoginInitiatorError, "%q or %q is no iSCSI name", l.InitiatorName, l.TargetName)
	case l.TargetName == "" && !l.Discovery:
		return nil, refuse(LoginMissing, "TargetName is missing")
	}
	a, redirect, status := l.policy.Admit(l)
	if status != LoginOK {
		if redirect != "" {
			text = AppendPair(nil, Keys[KeyTargetAddress].Name, redirect)
		}
		return text, refuse(status, "initiator %s is not admitted to target %q", l.InitiatorName, l.TargetName)
	}
	l.admission = a
	if a.Find != nil && l.stage != Security {
		return nil, refuse(LoginAuthFailure, "the initiator does not want to authenticate itself")
	}
	l.skipped = a.Find == nil
	l.chap.Find = a.Find
	if a.NoRDMA {
		ours := *l.ours
		ours[KeyRDMAExtensions] = 0
		l.ours = &ours
	}
	l.neg = negotiation{ours: l.ours, discovery: l.Discovery, leading: l.TSIH == 0, recovery: a.ErrorRecoveryLevel, values: DefaultValues()}
	l.neg.values[KeyMaxOutstandingUnexpectedPDUs] = unexpectedUnsaid
	if l.InRDMA && !l.Discovery {
		l.neg.values[KeyRDMAExtensions], l.neg.values[KeyTaggedBufferForSolicitedDataOnly] = 1, 1
	}
	if a.Session != nil {
		for id := range Keys {
			if Keys[id].Scope == SessionWide {
				l.neg.values[id] = a.Session[id]
			}
		}
	}
	if l.TargetName != "" {
		text = AppendPair(text, Keys[KeyTargetPortalGroupTag].Name, strconv.Itoa(int(a.PortalGroup)))
		if a.Alias != "" && !l.Discovery {
			text = AppendPair(text, Keys[KeyTargetAlias].Name, a.Alias)
		}
	}
	return text, nil
}

// operational handles a request of the stage LoginOperationalNegotiation.
func (l *Login) operational(text []byte, pairs []Pair) ([]byte, error) {
	for _, p := range pairs {
		if isSecurityKey(p.Key) {
			return nil, refuse(LoginInitiatorError, "%s after the security stage", p.Key)
		}
	}
	text, err := l.neg.answers(text, pairs)
	if err != nil {
		return nil, err
	}
	declare := func(id KeyID) {
		text = AppendPair(text, Keys[id].Name, Keys[id].Format(l.ours[id]))
	}
	rdma := l.neg.values.Bool(KeyRDMAExtensions)
	if l.InRDMA && !l.Discovery && !rdma {
		return nil, refuse(LoginInitiatorError, "RDMAExtensions=No on a connection in RDMA mode")
	}
	if !l.declared && !rdma {
		l.declared = true
		declare(KeyMaxRecvDataSegmentLength)
	}
	if rdma && !l.unexpected && l.neg.changed[KeyMaxOutstandingUnexpectedPDUs] {
		l.unexpected = true // to an initiator that knows the key
		declare(KeyMaxOutstandingUnexpectedPDUs)
	}
	return text, nil
}

func isSecurityKey(key string) bool {
	return key == "AuthMethod" || strings.HasPrefix(key, "CHAP_") || strings.HasPrefix(key, "SRP_") || strings.HasPrefix(key, "KRB_")
}

// security handles a request of the stage SecurityNegotiation.
func (l *Login) security(text []byte, pairs []Pair) ([]byte, error) {
	said := map[string]string{}
	for _, p := range pairs {
		id, known := KeyNamed(p.Key)
		switch {
		case isSecurityKey(p.Key):
			if _, twice := said[p.Key]; twice {
				return nil, refuse(LoginInitiatorError, "%s is sent twice", p.Key)
			}
			said[p.Key] = p.Value
		case !known:
			text = AppendPair(text, p.Key, notUnderstood)
		case !Keys[id].AnyStage:
			return nil, refuse(LoginInitiatorError, "%s in the security stage", p.Key)
		default:
			if err := l.neg.take(id); err != nil {
				return nil, err
			}
		}
	}
	text, err := l.chooseMethod(text, said)
	if err != nil {
		return nil, err
	}
	return l.chapStep(text, said)
}

func (l *Login) chooseMethod(text []byte, said map[string]string) ([]byte, error) {
	offer, offered := said["AuthMethod"]
	if !offered {
		return text, nil
	}
	if l.method {
		return nil, refuse(LoginInitiatorError, "AuthMethod is sent twice")
	}
	l.method = true
	methods := strings.Split(offer, ",")
	if l.skipped {
		if slices.Contains(methods, "None") {
			return AppendPair(text, "AuthMethod", "None"), nil
		}
		return nil, refuse(LoginAuthFailure, "the initiator offers only AuthMethod=%.40s, and nobody here has a secret", offer)
	}
	if !slices.Contains(methods, "CHAP") {
		return nil, refuse(LoginAuthFailure, "the initiator does not offer CHAP")
	}
	l.auth = chapAlgorithm
	return AppendPair(text, "AuthMethod", "CHAP"), nil
}

// chapStep handles the keys of CHAP (section 12.1.3).
func (l *Login) chapStep(text []byte, said map[string]string) ([]byte, error) {
	algorithms, begins := said["CHAP_A"]
	name, named := said["CHAP_N"]
	response, responds := said["CHAP_R"]
	id, hasID := said["CHAP_I"]
	challenge, asks := said["CHAP_C"]
	switch {
	case !begins && !named && !responds && !hasID && !asks:
		return text, nil
	case l.auth == chapAlgorithm && begins && !named && !responds && !hasID && !asks:
		var offered []chap.Algorithm
		for s := range strings.SplitSeq(algorithms, ",") {
			if n, err := parseNumber(s); err == nil && n < 256 {
				offered = append(offered, chap.Algorithm(n))
			}
		}
		a, id, c, err := l.chap.Challenge(offered)
		if err != nil {
			return nil, refuse(LoginAuthFailure, "%v", err)
		}
		l.auth = chapResponse
		text = AppendPair(text, "CHAP_A", strconv.Itoa(int(a)))
		text = AppendPair(text, "CHAP_I", strconv.Itoa(int(id)))
		return AppendPair(text, "CHAP_C", FormatBinary(c)), nil
	case l.auth == chapResponse && !begins && named && responds && hasID == asks:
		got, err := ParseBinary(response)
		if err != nil {
			return nil, refuse(LoginInitiatorError, "CHAP_R: %v", err)
		}
		var peer *chap.Peer
		if asks {
			n, nerr := parseNumber(id)
			c, cerr := ParseBinary(challenge)
			if nerr != nil || cerr != nil || n > 255 {
				return nil, refuse(LoginInitiatorError, "CHAP_I or CHAP_C is not what it should be")
			}
			peer = &chap.Peer{ID: uint8(n), Challenge: c}
		}
		c, ownName, own, err := l.chap.Verify(name, got, peer)
		if err == nil && l.admission.MayStay != nil && !l.admission.MayStay(c) {
			return nil, refuse(LoginForbidden, "%s may not log in as %s", name, l.InitiatorName)
		}
		if err != nil {
			return nil, refuse(LoginAuthFailure, "%s: %v", l.InitiatorName, err)
		}
		l.auth, l.CHAPName = chapDone, name
		if peer != nil {
			text = AppendPair(AppendPair(text, "CHAP_N", ownName), "CHAP_R", FormatBinary(own))
		}
		return text, nil
	}
	return nil, refuse(LoginAuthFailure, "the keys of CHAP come out of turn")
}
