package iscsi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/chap"
)

// policy admits to one target.
type policy struct {
	credentials *chap.Credentials
	status      LoginStatus
	recovery    uint32
	redirect    string
	established int
}

func (p *policy) Admit(l *Login) (Admission, string, LoginStatus) {
	a := Admission{PortalGroup: 3, Alias: "disk", ErrorRecoveryLevel: p.recovery}
	if p.credentials != nil {
		a.Find = func(name string) *chap.Credentials {
			if name == p.credentials.Name {
				return p.credentials
			}
			return nil
		}
		a.MayStay = func(c *chap.Credentials) bool { return l.InitiatorName != "iqn.x:other" }
	}
	return a, p.redirect, p.status
}

func (p *policy) Establish(*Login) (uint16, LoginStatus) {
	p.established++
	return 77, LoginOK
}

func targetValues() Values {
	v := DefaultValues()
	v[KeyHeaderDigest], v[KeyDataDigest] = DigestNone|DigestCRC32C, DigestNone|DigestCRC32C
	v[KeyInitialR2T] = 0
	v[KeyMaxBurstLength], v[KeyFirstBurstLength] = 1<<20, 64<<10
	v[KeyMaxRecvDataSegmentLength] = 256 << 10
	v[KeyMaxOutstandingR2T] = 4
	v[KeyTaskReporting] = ReportRFC3720 | ReportResponseFence
	return v
}

// side is an initiator's side of a login.
type side struct {
	*testing.T
	*Login
	q LoginRequest
}

func newSide(t *testing.T, p *policy) *side {
	v := targetValues()
	return &side{t, NewLogin(p, &v, 100), LoginRequest{CSG: Operational, NSG: FullFeature, Transit: true, ITT: 5, CmdSN: 9, ISID: [6]byte{0x80}}}
}

// say sends text, whose pairs are separated by spaces, and returns the answer likewise.
func (s *side) say(text string) (answer string, r LoginResponse, done bool) {
	s.Helper()
	var h BHS
	s.q.Put(&h)
	var data []byte
	for p := range strings.FieldsSeq(text) {
		k, v, _ := strings.Cut(p, "=")
		data = AppendPair(data, k, v)
	}
	r, b, done, err := s.Request(&h, data)
	if r.ITT != NoTag && (err != nil) != (r.Status != LoginOK) {
		s.Fatalf("status %#x, error %v", r.Status, err)
	}
	if err != nil {
		s.Logf("%s: %v", text, err)
	}
	return strings.TrimRight(strings.ReplaceAll(string(b), "\x00", " "), " "), r, done
}

const names = "InitiatorName=iqn.x:i TargetName=iqn.x:t "

func TestLoginInOneRequest(t *testing.T) {
	p := &policy{}
	s := newSide(t, p)
	answer, r, done := s.say(names + "SessionType=Normal HeaderDigest=CRC32C,None DataDigest=None InitialR2T=No ImmediateData=Yes MaxBurstLength=16776192 FirstBurstLength=262144 " +
		"MaxRecvDataSegmentLength=262144 DefaultTime2Wait=5 DefaultTime2Retain=0 MaxOutstandingR2T=16 IFMarker=No OFMarkInt=1~2 ErrorRecoveryLevel=2 " +
		"TaskReporting=FastAbort,ResponseFence,RFC3720 iSCSIProtocolLevel=2 RDMAExtensions=Yes X-com.x=1")
	want := "TargetPortalGroupTag=3 TargetAlias=disk InitialR2T=No ImmediateData=Yes MaxBurstLength=1048576 DefaultTime2Wait=5 " +
		"IFMarker=No OFMarkInt=Reject TaskReporting=ResponseFence iSCSIProtocolLevel=1 RDMAExtensions=No X-com.x=NotUnderstood ErrorRecoveryLevel=0 " +
		"FirstBurstLength=65536 HeaderDigest=CRC32C DataDigest=None MaxOutstandingR2T=4 DefaultTime2Retain=0 MaxRecvDataSegmentLength=262144"
	if answer != want || !done || !r.Transit || r.NSG != FullFeature || r.TSIH != 77 || r.StatSN != 100 || r.ExpCmdSN != 9 || s.StatSN() != 101 {
		t.Errorf("%s, want\n%s\n%+v %v", answer, want, r, done)
	}
	v := s.Values
	if v[KeyHeaderDigest] != DigestCRC32C || v[KeyDataDigest] != DigestNone || v.Bool(KeyInitialR2T) || v[KeyMaxRecvDataSegmentLength] != 262144 || s.DeclaredSegment() != 256<<10 || v[KeyFirstBurstLength] != 65536 {
		t.Errorf("%+v", v)
	}
	if _, r, _ := s.say(names); r.ITT != NoTag || p.established != 1 {
		t.Error("the login goes on after its end")
	}
}

// TestAnswers proves the result functions and the rules between keys.
func TestAnswers(t *testing.T) {
	for offer, want := range map[string]string{
		"InitialR2T=Yes":                            "InitialR2T=Yes",
		"ImmediateData=No":                          "ImmediateData=No",
		"ImmediateData=yes":                         "ImmediateData=Reject",
		"MaxBurstLength=511":                        "MaxBurstLength=Reject",
		"MaxBurstLength=0x200":                      "MaxBurstLength=512",
		"DefaultTime2Wait=1":                        "DefaultTime2Wait=2",
		"MaxOutstandingR2T=0":                       "MaxOutstandingR2T=Reject",
		"MaxConnections=8":                          "MaxConnections=1",
		"DataPDUInOrder=No":                         "DataPDUInOrder=Yes",
		"FirstBurstLength=9000 MaxBurstLength=1024": "MaxBurstLength=1024 FirstBurstLength=1024",
		"FirstBurstLength=9000 InitialR2T=Yes ImmediateData=No":           "InitialR2T=Yes ImmediateData=No FirstBurstLength=Irrelevant",
		"TaskReporting=FastAbort":                                         "TaskReporting=Reject",
		"HeaderDigest=Y-x,None":                                           "HeaderDigest=None",
		"MaxOutstandingUnexpectedPDUs=4 TargetRecvDataSegmentLength=8192": "TargetRecvDataSegmentLength=Irrelevant",
		"X#NodeArchitecture=a,b":                                          "",
		"InitiatorAlias=me":                                               "",
	} {
		answer, r, done := newSide(t, &policy{}).say(names + offer)
		answer = strings.TrimPrefix(strings.TrimSuffix(answer, "MaxRecvDataSegmentLength=262144"), "TargetPortalGroupTag=3 TargetAlias=disk ")
		if strings.TrimSpace(answer) != want || !done || r.Status != LoginOK {
			t.Errorf("%s: %q, want %q", offer, answer, want)
		}
	}
	for offer, want := range map[string]LoginStatus{
		"HeaderDigest=SHA1":                   LoginInitiatorError,
		"HeaderDigest=None HeaderDigest=None": LoginInitiatorError,
		"InitialR2T=Irrelevant":               LoginInitiatorError,
		"TargetAlias=x":                       LoginInitiatorError,
		"SendTargets=All":                     LoginInitiatorError,
		"MaxRecvDataSegmentLength=1":          LoginInitiatorError,
		"CHAP_A=5":                            LoginInitiatorError,
		"InitiatorName=iqn.x:again":           LoginInitiatorError,
		"SessionType=Strange":                 LoginSessionType,
	} {
		p := &policy{}
		if answer, r, done := newSide(t, p).say(names + offer); r.Status != want || done || p.established != 0 || answer != "" {
			t.Errorf("%s: %#x, %q", offer, r.Status, answer)
		}
	}
}

// TestAnswersFitOnePDU: an initiator that has more answered than one PDU takes is refused.
func TestAnswersFitOnePDU(t *testing.T) {
	keys := func(n int) (s string) {
		for i := range n {
			s += fmt.Sprintf(" X-%059d=", i)
		}
		return s
	}
	if answer, r, done := newSide(t, &policy{}).say(names + keys(100)); !done || len(answer) < 7000 {
		t.Errorf("%d bytes: %+v", len(answer), r)
	}
	p := &policy{}
	if answer, r, done := newSide(t, p).say(names + keys(110)); r.Status != LoginInitiatorError || done || answer != "" || p.established != 0 {
		t.Errorf("%d bytes: %+v", len(answer), r)
	}
}

// TestDigestsThatAreDemanded are not got around by leaving their keys out, or the stage.
func TestDigestsThatAreDemanded(t *testing.T) {
	for text, want := range map[string]LoginStatus{
		"HeaderDigest=CRC32C DataDigest=CRC32C": LoginOK,
		"HeaderDigest=CRC32C":                   LoginInitiatorError,
		"DataDigest=CRC32C":                     LoginInitiatorError,
		"":                                      LoginInitiatorError,
	} {
		for _, stage := range []Stage{Operational, Security} {
			v := targetValues()
			v[KeyHeaderDigest], v[KeyDataDigest] = DigestCRC32C, DigestCRC32C
			s := newSide(t, &policy{})
			s.Login, s.q.CSG = NewLogin(&policy{}, &v, 1), stage
			if stage == Security && want == LoginOK {
				continue // they are not negotiated there
			}
			said := names + text
			if stage == Security {
				said = names
			}
			if _, r, _ := s.say(said); r.Status != want {
				t.Errorf("stage %d, %q: %#x", stage, text, r.Status)
			}
		}
	}
}

// TestErrorRecoveryLevel: the lower of both levels (RFC 7143 section 13.20), and what it excludes: more than
// one R2T at a time (13.19), and over iSER all of it. What is not retained is not promised (13.16).
func TestErrorRecoveryLevel(t *testing.T) {
	const keys = "MaxOutstandingR2T=4 DefaultTime2Retain=30 ErrorRecoveryLevel=2"
	for _, c := range []struct {
		ours   uint32
		offers []string
		want   string
	}{
		{0, []string{keys}, "ErrorRecoveryLevel=0 MaxOutstandingR2T=4 DefaultTime2Retain=0"},
		{1, []string{keys}, "ErrorRecoveryLevel=1 MaxOutstandingR2T=1 DefaultTime2Retain=0"},
		{2, []string{keys}, "ErrorRecoveryLevel=2 MaxOutstandingR2T=1 DefaultTime2Retain=20"},
		{2, []string{"ErrorRecoveryLevel=1"}, "ErrorRecoveryLevel=1"},
		{2, []string{"ErrorRecoveryLevel=3"}, "ErrorRecoveryLevel=Reject"},
		{2, []string{"DefaultTime2Wait=20 " + keys}, "DefaultTime2Wait=20 ErrorRecoveryLevel=2 MaxOutstandingR2T=1 DefaultTime2Retain=20"},
		{2, []string{"DefaultTime2Wait=21 " + keys}, "DefaultTime2Wait=21 ErrorRecoveryLevel=2 MaxOutstandingR2T=1 DefaultTime2Retain=0"},
		{2, []string{"MaxOutstandingR2T=4", "ErrorRecoveryLevel=2"}, "MaxOutstandingR2T=4 ErrorRecoveryLevel=0"},
		{2, []string{"ErrorRecoveryLevel=2", "MaxOutstandingR2T=4"}, "ErrorRecoveryLevel=2 MaxOutstandingR2T=1"},
		{2, []string{"RDMAExtensions=Yes ErrorRecoveryLevel=2"}, "RDMAExtensions=Yes ErrorRecoveryLevel=0"},
		{2, []string{"ErrorRecoveryLevel=1", "RDMAExtensions=Yes"}, "ErrorRecoveryLevel=1 RDMAExtensions=No"},
	} {
		s := newSide(t, &policy{recovery: c.ours})
		s.ours[KeyRDMAExtensions] = 1
		s.q.Transit = false
		var said []string
		for i, offer := range c.offers {
			if i == 0 {
				offer = names + offer
			}
			answer, _, _ := s.say(offer)
			for _, k := range strings.Fields(answer) {
				switch k {
				case "TargetPortalGroupTag=3", "TargetAlias=disk", "MaxRecvDataSegmentLength=262144":
				default:
					said = append(said, k)
				}
			}
		}
		if got := strings.Join(said, " "); got != c.want {
			t.Errorf("%d, %q: %q, want %q", c.ours, c.offers, got, c.want)
		}
	}
}

func TestWithRDMA(t *testing.T) {
	s := newSide(t, &policy{})
	s.ours[KeyRDMAExtensions], s.ours[KeyMaxOutstandingUnexpectedPDUs] = 1, 9
	answer, _, _ := s.say(names + "HeaderDigest=None TargetRecvDataSegmentLength=4096 MaxOutstandingUnexpectedPDUs=0 RDMAExtensions=Yes iSERHelloRequired=Yes")
	if want := "TargetPortalGroupTag=3 TargetAlias=disk TargetRecvDataSegmentLength=4096 RDMAExtensions=Yes HeaderDigest=Irrelevant MaxOutstandingUnexpectedPDUs=9"; answer != want {
		t.Errorf("%s, want %s", answer, want)
	}
	if v := s.Values; !v.Bool(KeyISERHelloRequired) || v[KeyTargetRecvDataSegmentLength] != 4096 || s.DeclaredSegment() != 4096 || v[KeyMaxOutstandingUnexpectedPDUs] != 0 {
		t.Errorf("%+v", v)
	}
}

// TestInRDMA is a login that is in RDMA mode from the beginning.
func TestInRDMA(t *testing.T) {
	for said, want := range map[string]struct {
		status                 LoginStatus
		rdma, solicited, first uint32
	}{
		"RDMAExtensions=Yes FirstBurstLength=65536": {rdma: 1, solicited: 1, first: 8192},
		"InitialR2T=No": {rdma: 1, solicited: 1, first: 65536},
		"TaggedBufferForSolicitedDataOnly=No RDMAExtensions=Yes": {rdma: 1, first: 65536},
		"RDMAExtensions=No": {status: LoginInitiatorError},
		"SessionType=Discovery MaxRecvDataSegmentLength=8192": {first: 65536},
	} {
		s := newSide(t, &policy{})
		s.InRDMA = true
		s.ours[KeyRDMAExtensions], s.ours[KeyTargetRecvDataSegmentLength] = 1, 8192
		s.ours[KeyFirstBurstLength] = 65536
		answer, r, done := s.say(names + said)
		v := s.Values
		if r.Status != want.status || done != (want.status == LoginOK) {
			t.Errorf("%s: %#x, %s", said, r.Status, answer)
		}
		if done && (v[KeyRDMAExtensions] != want.rdma || v[KeyTaggedBufferForSolicitedDataOnly] != want.solicited || v[KeyFirstBurstLength] != want.first || v[KeyMaxOutstandingUnexpectedPDUs] != unexpectedUnsaid) {
			t.Errorf("%s: %+v", said, v)
		}
		if strings.Contains(answer, "MaxRecvDataSegmentLength=") != strings.Contains(said, "Discovery") && done {
			t.Errorf("%s: %s", said, answer)
		}
	}
}

func TestDiscovery(t *testing.T) {
	answer, _, done := newSide(t, &policy{}).say("InitiatorName=iqn.x:i SessionType=Discovery MaxConnections=4 ErrorRecoveryLevel=2 HeaderDigest=None")
	if want := "MaxConnections=Irrelevant ErrorRecoveryLevel=0 HeaderDigest=None MaxRecvDataSegmentLength=262144"; answer != want || !done {
		t.Errorf("%s, want %s", answer, want)
	}
}

func TestWhoIsNotAdmitted(t *testing.T) {
	for name, c := range map[string]struct {
		p    policy
		text string
		want LoginStatus
	}{
		"without its name":   {policy{}, "TargetName=iqn.x:t", LoginMissing},
		"without a target":   {policy{}, "InitiatorName=iqn.x:i", LoginMissing},
		"with a strange one": {policy{}, "InitiatorName=me TargetName=iqn.x:t", LoginInitiatorError},
		"to no target":       {policy{status: LoginNotFound}, names, LoginNotFound},
		"to one that moved":  {policy{status: LoginMovedTemporarily, redirect: "10.0.0.1:3260"}, names, LoginMovedTemporarily},
		"without a secret":   {policy{credentials: &chap.Credentials{}}, names, LoginAuthFailure},
	} {
		answer, r, _ := newSide(t, &c.p).say(c.text)
		if r.Status != c.want || r.Transit || (answer == "TargetAddress=10.0.0.1:3260") != (c.p.redirect != "") {
			t.Errorf("%s: %#x %q", name, r.Status, answer)
		}
	}
	s := newSide(t, &policy{})
	s.q.VersionMin, s.q.VersionMax = 1, 1
	if _, r, _ := s.say(names); r.Status != LoginVersion {
		t.Errorf("%#x", r.Status)
	}
}

func TestStagesAndContinuation(t *testing.T) {
	s := newSide(t, &policy{})
	s.q.CSG, s.q.Transit, s.q.NSG, s.q.Continue = Security, false, 0, true
	var h BHS
	s.q.Put(&h)
	if r, text, done, err := s.Request(&h, []byte("InitiatorName=iqn.x:i\x00Target")); err != nil || len(text) > 0 || done || r.Transit {
		t.Fatal(r, text, err)
	}
	s.q.Continue, s.q.Transit, s.q.NSG = false, true, Operational
	s.q.Put(&h)
	r, text, _, err := s.Request(&h, []byte("Name=iqn.x:t\x00AuthMethod=CHAP,None\x00"))
	if err != nil || !r.Transit || r.NSG != Operational || string(text) != "TargetPortalGroupTag=3\x00TargetAlias=disk\x00AuthMethod=None\x00" {
		t.Fatal(r, string(text), err)
	}
	s.q.CSG, s.q.Transit, s.q.NSG = Operational, false, 0
	if answer, r, done := s.say("InitialR2T=No"); done || r.Transit || answer != "InitialR2T=No MaxRecvDataSegmentLength=262144" {
		t.Fatal(r, answer)
	}
	s.q.Transit, s.q.NSG = true, FullFeature
	if answer, r, done := s.say(""); !done || answer != "" || r.StatSN != 103 {
		t.Fatal(r, answer)
	}

	s = newSide(t, &policy{})
	s.q.Transit, s.q.NSG = false, 0
	s.say(names)
	s.q.CSG = Security
	if _, r, _ := s.say(""); r.Status != LoginInitiatorError {
		t.Error("back to the security stage")
	}
	s = newSide(t, &policy{})
	s.q.Transit, s.q.NSG = false, 0
	s.say(names)
	s.q.ITT++
	if _, r, _ := s.say(""); r.Status != LoginInitiatorError {
		t.Error("another task in the same login")
	}
	s = newSide(t, &policy{})
	s.q.Transit, s.q.NSG = false, 0
	s.say(names)
	for i := 1; ; i++ {
		if _, r, _ := s.say(""); r.Status != LoginOK {
			if i != MaxLoginExchanges {
				t.Errorf("%d requests", i)
			}
			break
		}
	}
}

// authenticate goes through CHAP as the initiator name with secret. peer asks for the target's.
func authenticate(t *testing.T, p *policy, name, secret, peer, initiator string) (answer string, r LoginResponse) {
	s := newSide(t, p)
	s.q.CSG, s.q.NSG = Security, FullFeature
	answer, r, done := s.say("InitiatorName=" + initiator + " TargetName=iqn.x:t AuthMethod=CHAP,None")
	if !strings.HasSuffix(answer, "AuthMethod=CHAP") || r.Transit || done {
		t.Fatal(answer, r)
	}
	answer, r, done = s.say("CHAP_A=6,5")
	f := strings.FieldsFunc(answer, func(c rune) bool { return c == ' ' || c == '=' })
	if len(f) != 6 || f[0] != "CHAP_A" || f[1] != "5" || f[2] != "CHAP_I" || r.Transit || done {
		t.Fatal(answer, r)
	}
	id, _ := strconv.Atoi(f[3])
	challenge, err := ParseBinary(f[5])
	if err != nil {
		t.Fatal(err)
	}
	if peer == "reflect" {
		peer = " CHAP_I=" + f[3] + " CHAP_C=" + f[5]
	}
	answer, r, done = s.say("CHAP_N=" + name + " CHAP_R=" + FormatBinary(chap.Response(chap.MD5, uint8(id), []byte(secret), challenge)) + peer)
	if done != (p.established == 1) || done && s.CHAPName != name {
		t.Error("a session is established without a login, or the other way round")
	}
	return answer, r
}

func TestCHAP(t *testing.T) {
	c := &chap.Credentials{Name: "alice", Secret: []byte("initiator's secret"), OwnName: "t", OwnSecret: []byte("the target's secret")}
	own := FormatBinary(chap.Response(chap.MD5, 7, c.OwnSecret, []byte("who?")))
	for name, x := range map[string]struct {
		name, secret, peer, initiator string
		status                        LoginStatus
		answer                        string
	}{
		"right":           {"alice", string(c.Secret), "", "iqn.x:i", LoginOK, ""},
		"mutual":          {"alice", string(c.Secret), " CHAP_I=7 CHAP_C=" + FormatBinary([]byte("who?")), "iqn.x:i", LoginOK, "CHAP_N=t CHAP_R=" + own},
		"wrong secret":    {"alice", "initiators secret!", "", "iqn.x:i", LoginAuthFailure, ""},
		"unknown name":    {"bob", string(c.Secret), "", "iqn.x:i", LoginAuthFailure, ""},
		"reflected":       {"alice", string(c.Secret), "reflect", "iqn.x:i", LoginAuthFailure, ""},
		"half a question": {"alice", string(c.Secret), " CHAP_I=7", "iqn.x:i", LoginAuthFailure, ""},
		"other's name":    {"alice", string(c.Secret), "", "iqn.x:other", LoginForbidden, ""},
	} {
		answer, r := authenticate(t, &policy{credentials: c}, x.name, x.secret, x.peer, x.initiator)
		if r.Status != x.status || answer != x.answer || r.Transit != (x.status == LoginOK) {
			t.Errorf("%s: %#x %q", name, r.Status, answer)
		}
	}
	// No way leads around it.
	for _, texts := range [][]string{{"", ""}, {"AuthMethod=None"}, {"AuthMethod=CHAP", "CHAP_N=alice CHAP_R=0x00"}, {"AuthMethod=CHAP", "CHAP_A=9"}, {"CHAP_A=5"}, {"AuthMethod=CHAP", "AuthMethod=None"}} {
		p := &policy{credentials: c}
		s := newSide(t, p)
		s.q.CSG = Security
		for i, text := range texts {
			if i == 0 {
				text = names + text
			}
			if _, r, done := s.say(text); done || r.Transit {
				t.Errorf("%q: %+v", texts, r)
			}
		}
		if p.established != 0 {
			t.Errorf("%q is good enough", texts)
		}
	}
}

// FuzzLogin proves that nobody gets into full feature phase without the secret, and that a login
// ends.
func FuzzLogin(f *testing.F) {
	f.Add([]byte(names+"AuthMethod=CHAP\x01CHAP_A=5\x01CHAP_N=alice CHAP_R=0x00\x01"), uint8(0x87), true)
	f.Add([]byte(names+"InitialR2T=No HeaderDigest=None,CRC32C\x01MaxBurstLength=512"), uint8(0x87), false)
	f.Add([]byte("InitiatorName=iqn.x:i SessionType=Discovery\x01\x01"), uint8(4), false)
	f.Fuzz(func(t *testing.T, script []byte, flags uint8, secret bool) {
		p := &policy{}
		if secret {
			p.credentials = &chap.Credentials{Name: "alice", Secret: []byte("initiator's secret")}
		}
		v := targetValues()
		l := NewLogin(p, &v, 0)
		n := 0
		for data := range slices.Values(strings.Split(string(script), "\x01")) {
			var h BHS
			q := LoginRequest{ITT: 1}
			q.Put(&h)
			h[1] = flags
			r, _, done, err := l.Request(&h, []byte(strings.ReplaceAll(data, " ", "\x00")+"\x00"))
			if n++; n > MaxLoginExchanges+1 && err == nil {
				t.Fatal("it does not end")
			}
			if done && (secret || p.established != 1 || !r.Transit) {
				t.Fatalf("%q is good enough", script)
			}
			if done && (l.Values[KeyFirstBurstLength] > l.Values[KeyMaxBurstLength] || l.Values[KeyMaxBurstLength] > v[KeyMaxBurstLength]) {
				t.Fatalf("%+v", l.Values)
			}
		}
	})
}
