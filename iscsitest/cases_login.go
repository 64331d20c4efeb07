package iscsitest

import (
	"strings"

	"github.com/ironwarp/ironwarp/iscsi"
)

// refusal makes the first Login Request one that no target may accept.
type refusal func(t *T, l *login) (pairs []string)

// ask sends it, and returns the answer.
func (r refusal) ask(t *T) (l *login, a *answer) {
	l = t.begin(0)
	l.q.CSG, l.q.NSG, l.q.Transit = iscsi.Operational, iscsi.FullFeature, true
	pairs := r(t, l)
	t.amiss = true
	return l, l.ask(text(pairs...))
}

func loginCases() []Case {
	var all []refusal
	// refuses is a case of such a request. What becomes of the connection is for login.ends-after-refusal.
	refuses := func(id, source, says string, level Level, want iscsi.LoginStatus, set refusal) Case {
		all = append(all, set)
		return Case{ID: id, Level: level, Source: source, Says: says, run: func(t *T) {
			l, a := set.ask(t)
			if want == iscsi.LoginNoSession && !a.refused() && !a.Transit {
				a = l.finish(l.replies()...) // at the end it needs the session
			}
			t.require(a.refused(), "the login goes on: %v", a)
			t.require(a.ended || want == 0 || a.Status == want, "status %#04x, in place of %#04x", uint16(a.Status), uint16(want))
		}}
	}
	return []Case{
		{ID: "login.plain", Level: Practice, Source: "RFC 7143 6.3", Says: "an initiator logs in and gets an answer to a ping", run: func(t *T) {
			t.login(options{}).silence()
		}},
		{ID: "login.one-request", Level: Practice, Source: "RFC 7143 6.3.1", Says: "who needs no authentication logs in by one Login Request, which begins in LoginOperationalNegotiation", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.FullFeature, t.names(0)...)
			t.require(a.accepted() && a.Transit && a.NSG == iscsi.FullFeature, "%v", a)
		}},
		{ID: "login.tsih", Source: "RFC 7143 11.13.3", Says: "For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the Login Final-Response", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.Operational, t.names(0)...)
			t.require(a.accepted(), "%v", a)
			t.require(a.TSIH == 0, "TSIH %d before the end of the login", a.TSIH)
			a = l.finish(l.replies()...)
			t.require(a.accepted() && a.TSIH != 0, "TSIH 0 at the end of the login: %v", a)
		}},
		{ID: "login.portal-group", Source: "RFC 7143 6.3.1", Says: "the iSCSI target MUST return the TargetPortalGroupTag key with the first Login Response PDU with which it is allowed to do so", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.Operational, t.names(0)...)
			t.require(a.accepted(), "%v", a)
			_, ok := a.key("TargetPortalGroupTag")
			t.require(ok, "the first Login Response has %v", a.pairs)
			a = l.step(iscsi.Operational, iscsi.FullFeature)
			_, again := a.key("TargetPortalGroupTag")
			t.require(!again, "TargetPortalGroupTag comes again in the second Login Response")
		}},
		{ID: "login.no-transit-unasked", Source: "RFC 7143 11.13.6", Says: "the T bit MUST NOT be set to 1 if the T bit in the request was set to 0", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.Operational, t.names(0)...)
			for range 3 {
				t.require(a.accepted() && !a.Transit, "%v", a)
				a = l.step(iscsi.Operational, iscsi.Operational)
			}
		}},
		{ID: "login.stage-by-stage", Source: "RFC 7143 6.3", Says: "SecurityNegotiation leads to LoginOperationalNegotiation, and that to full feature phase", run: func(t *T) {
			l := t.begin(0)
			a := l.authenticate(t.names(0), iscsi.Operational)
			t.authenticated(a)
			t.require(a.Transit && a.NSG == iscsi.Operational, "%v", a)
			a = l.step(iscsi.Operational, iscsi.Operational, "MaxBurstLength=65536")
			t.require(a.accepted() && !a.Transit, "%v", a)
			a = l.finish(l.replies()...)
			t.require(a.accepted(), "%v", a)
		}},
		{ID: "login.security-to-full", Source: "RFC 7143 6.3", Says: "SecurityNegotiation may lead to full feature phase, and the selected NSG MUST NOT exceed what the initiator has stated", run: func(t *T) {
			l := t.begin(0)
			a := l.authenticate(t.names(0), iscsi.FullFeature)
			t.authenticated(a)
			for range maxRounds {
				if a.Transit && a.NSG == iscsi.FullFeature {
					t.require(a.TSIH != 0, "there is no TSIH in the Login Final-Response")
					return
				}
				if a.Transit {
					l.q.CSG = a.NSG
				}
				a = l.step(l.q.CSG, iscsi.FullFeature, l.replies()...)
				t.require(a.accepted(), "%v", a)
			}
			t.fail("the login does not come to its end")
		}},
		{ID: "login.auth-none", Source: "RFC 7143 12.1, 6.3.2", Says: "The target MUST reply with the first option in the list it supports and is allowed to use", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Security, iscsi.Operational, append(t.names(0), "AuthMethod=None")...)
			m, _ := a.key("AuthMethod")
			t.require(a.accepted() && m == "None", "AuthMethod=None alone is answered by %v", a)
		}},
		{ID: "login.auth-unknown", Source: "RFC 7143 6.3.2, 6.2.1", Says: "If an acceptor does not understand any particular value in a list, it MUST ignore it", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Security, iscsi.Security, append(t.names(0), "AuthMethod=Z-org.example.none,None")...)
			m, _ := a.key("AuthMethod")
			t.require(a.accepted() && m == "None", "AuthMethod=Z-org.example.none,None is answered by %v", a)
		}},
		{ID: "login.split-text", Source: "RFC 7143 6.2", Says: "A target receiving a Login Request with the C bit set to 1 MUST answer with a Login Response with no data segment", run: func(t *T) {
			t.withoutCHAP()
			all := text(append(t.names(0), "MaxBurstLength=65536")...)
			l := t.begin(0)
			l.q.CSG, l.q.NSG = iscsi.Operational, iscsi.FullFeature
			for ; len(all) > 30; all = all[11:] { // in pieces that end within keys and values
				l.q.Continue = true
				a := l.ask(all[:11])
				t.require(a.accepted() && !a.Transit && len(a.pairs) == 0, "a piece of the text is answered by %v", a)
			}
			l.q.Continue, l.q.Transit = false, true
			a := l.ask(all)
			t.require(a.accepted(), "the last piece of the text is answered by %v", a)
			v, ok := a.key("MaxBurstLength")
			t.require(ok && v != "NotUnderstood", "the whole text is answered by %v", a)
		}},
		{ID: "login.8-kilobytes", Source: "RFC 7143 6.1", Says: "Any iSCSI target MUST support receiving at least 8192 bytes of key=value data in a negotiation sequence", run: func(t *T) {
			t.withoutCHAP()
			pairs := t.names(0)
			for n := len(text(pairs...)); n < 8000; n = len(text(pairs...)) {
				pairs = append(pairs, "X-org.example.filler."+strings.Repeat("a", len(pairs)%20+1)+"="+strings.Repeat("v", 200))
			}
			all := text(pairs...)
			all = all[:len(all):len(all)]
			l := t.begin(0)
			l.q.CSG, l.q.NSG = iscsi.Operational, iscsi.Operational
			for len(all) > 4000 {
				l.q.Continue = true
				a := l.ask(all[:4000])
				t.require(a.accepted(), "%v", a)
				all = all[4000:]
			}
			l.q.Continue = false
			a := l.ask(all)
			for range 16 {
				if !a.Continue || a.refused() {
					break
				}
				a = l.ask(nil)
			}
			t.require(a.accepted(), "8000 bytes of unknown keys are answered by %v", a)
		}},
		{ID: "login.unknown-key", Source: "RFC 7143 6.2", Says: "the answer for a key that is not understood MUST be key=NotUnderstood", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.Operational, append(t.names(0), "X-org.example.unknown=1", "Unheardof=Yes")...)
			for _, k := range []string{"X-org.example.unknown", "Unheardof"} {
				v, ok := a.key(k)
				t.require(a.accepted() && ok && v == "NotUnderstood", "%s is answered by %v", k, a)
			}
		}},
		{ID: "login.unknown-key-in-security", Source: "RFC 7143 6.2", Says: "the answer for a key that is not understood MUST be key=NotUnderstood, in each stage", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Security, iscsi.Security, append(t.names(0), "AuthMethod=None", "X-org.example.unknown=1")...)
			v, ok := a.key("X-org.example.unknown")
			t.require(a.accepted() && ok && v == "NotUnderstood", "it is answered by %v", a)
		}},
		{ID: "login.numbers", Source: "RFC 7143 11.13.4", Says: "The next response of any kind will carry this number + 1", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			first := l.step(iscsi.Operational, iscsi.Operational, t.names(0)...)
			second := l.step(iscsi.Operational, iscsi.FullFeature)
			t.require(second.accepted() && second.StatSN == first.StatSN+1, "StatSN %d after %d", second.StatSN, first.StatSN)
			t.require(first.ExpCmdSN == l.q.CmdSN && second.ExpCmdSN == l.q.CmdSN, "ExpCmdSN %d and %d, and the leading login has CmdSN %d", first.ExpCmdSN, second.ExpCmdSN, l.q.CmdSN)
		}},
		{ID: "login.cmdsn", Source: "RFC 7143 11.12.8", Says: "If the Login Request is a leading Login Request, the target MUST use its CmdSN as the next expected one", run: func(t *T) {
			t.withoutCHAP()
			for _, n := range []uint32{0, 1 << 31, 0xffffffff} {
				l := t.begin(0)
				l.q.CmdSN = n
				a := l.step(iscsi.Operational, iscsi.FullFeature, t.names(0)...)
				t.require(a.accepted() && a.ExpCmdSN == n, "CmdSN %#x is answered by ExpCmdSN %#x", n, a.ExpCmdSN)
				l.close()
			}
		}},
		{ID: "login.command-first", Source: "RFC 7143 6.3, 4.2.4", Says: "no command is carried out on a connection that is not in full feature phase", Over: onTCP, run: func(t *T) {
			l := t.begin(0)
			k := iscsi.Command{Final: true, Read: true, Attr: iscsi.Simple, ITT: 1, EDTL: 96, CmdSN: 1, CDB: [16]byte{0x12, 0, 0, 0, 96}}
			p := &PDU{}
			k.Put(&p.BHS)
			l.send(p)
			sent, ended := l.ends()
			for _, p := range sent {
				t.require(p.BHS.Opcode() != iscsi.OpResponse && p.BHS.Opcode() != iscsi.OpDataIn, "INQUIRY before a login is answered by %v", p)
			}
			t.require(ended, "the connection goes on")
		}},
		{ID: "login.command-within", Source: "RFC 7143 11.13.5, 4.2.4", Says: "no command is carried out on a connection whose login is not over", Over: onTCP, run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			l.step(iscsi.Operational, iscsi.Operational, t.names(0)...)
			k := iscsi.Command{Final: true, Read: true, Attr: iscsi.Simple, ITT: 2, EDTL: 96, CmdSN: 1, CDB: [16]byte{0x12, 0, 0, 0, 96}}
			p := &PDU{}
			k.Put(&p.BHS)
			l.send(p)
			sent, _ := l.ends()
			for _, p := range sent {
				t.require(p.BHS.Opcode() != iscsi.OpResponse && p.BHS.Opcode() != iscsi.OpDataIn, "INQUIRY during a login is answered by %v", p)
			}
		}},
		refuses("login.version", "RFC 7143 11.12.4, 11.13.5", "an initiator that supports only other versions is refused with status 0205", Must, iscsi.LoginVersion, func(t *T, l *login) []string {
			t.withoutCHAP()
			l.q.VersionMin, l.q.VersionMax = 0x20, 0x21
			return t.names(0)
		}),
		refuses("login.no-initiator-name", "RFC 7143 6.3, 13.5", "The initial Login Request of any connection MUST include the InitiatorName key=value pair", Must, 0, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return t.names(0)[1:]
		}),
		refuses("login.no-initiator-name-status", "RFC 7143 11.13.5", "status 0207 is for missing names", Practice, iscsi.LoginMissing, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return t.names(0)[1:]
		}),
		refuses("login.no-target-name", "RFC 7143 6.3, 13.4", "For any connection within a session whose type is not Discovery, the first Login Request MUST also include the TargetName key=value pair", Must, 0, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return t.names(0)[:2]
		}),
		refuses("login.no-target-name-status", "RFC 7143 11.13.5", "status 0207 is for missing names", Practice, iscsi.LoginMissing, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return t.names(0)[:2]
		}),
		refuses("login.unknown-target", "RFC 7143 11.13.5", "a target name that does not exist is refused", Must, 0, func(t *T, _ *login) []string {
			return append(t.names(0)[:2], "TargetName=iqn.2026-01.org.example:no-such-target")
		}),
		refuses("login.unknown-session", "RFC 7143 6.3.1, 11.13.5", "a TSIH of no session is refused with status 020a", Must, iscsi.LoginNoSession, func(t *T, l *login) []string {
			t.withoutCHAP()
			l.q.TSIH = 0xfffe
			return t.names(0)
		}),
		refuses("login.unknown-session-type", "RFC 7143 13.21, 6.2", "a value of SessionType that there is not is refused", Must, 0, func(t *T, _ *login) []string {
			t.withoutCHAP()
			n := t.names(0)
			n[1] = "SessionType=Extraordinary"
			return n
		}),
		refuses("login.stage-2", "RFC 7143 11.12.3, 11", "Receipt of reserved code values in defined fields MUST be reported as a protocol error", Must, 0, func(t *T, l *login) []string {
			t.withoutCHAP()
			l.q.CSG = 2
			return t.names(0)
		}),
		refuses("login.stage-3", "RFC 7143 6.3", "no Login Request belongs to full feature phase", Must, 0, func(t *T, l *login) []string {
			t.withoutCHAP()
			l.q.CSG = iscsi.FullFeature
			return t.names(0)
		}),
		refuses("login.stage-back", "RFC 7143 6.3", "no transition leads from LoginOperationalNegotiation to SecurityNegotiation", Must, 0, func(t *T, l *login) []string {
			t.withoutCHAP()
			l.q.NSG = iscsi.Security
			return t.names(0)
		}),
		refuses("login.continue-and-transit", "RFC 7143 11.12.2", "A Login Request with the C bit set to 1 MUST have the T bit set to 0: else it is an error", Should, 0, func(t *T, l *login) []string {
			t.withoutCHAP()
			l.q.Continue = true
			return t.names(0)
		}),
		refuses("login.key-twice", "RFC 7143 6.3", "If an attempt to renegotiate parameters is detected by the target, the target MUST respond with a Login reject (initiator error)", Must, 0, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return append(t.names(0), "MaxBurstLength=65536", "MaxBurstLength=32768")
		}),
		{ID: "login.key-twice-later", Source: "RFC 7143 6.3", Says: "An attempt to renegotiate parameters in a later Login Request MUST be detected by the target", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.Operational, append(t.names(0), "MaxBurstLength=65536")...)
			t.require(a.accepted(), "%v", a)
			a = l.step(iscsi.Operational, iscsi.FullFeature, "MaxBurstLength=32768")
			t.require(a.refused(), "%v", a)
		}},
		refuses("login.reserved-value", "RFC 7143 6.2", "The constants Reject, Irrelevant and NotUnderstood as proposed values are a protocol error", Should, 0, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return append(t.names(0), "MaxBurstLength=Irrelevant")
		}),
		refuses("login.no-equals-sign", "RFC 7143 6.1, 7.12", "text that is no key=value pair is an error, and ends the login", Should, 0, func(t *T, _ *login) []string {
			t.withoutCHAP()
			return append(t.names(0), "MaxBurstLength")
		}),
		refuses("login.wrong-stage", "RFC 7143 6.3", "Sending a key that is not allowed in the current stage is considered a protocol error", Should, 0, func(t *T, l *login) []string {
			t.withoutCHAP()
			return append(t.names(0), "AuthMethod=None")
		}),
		{ID: "login.fields-stay", Source: "RFC 7143 11.12", Says: "All Login Requests within the Login Phase MUST carry the same CID and ISID: another is an error, or the first counts", run: func(t *T) {
			t.withoutCHAP()
			l := t.begin(0)
			first := l.q.ISID
			a := l.step(iscsi.Operational, iscsi.Operational, t.names(0)...)
			t.require(a.accepted(), "%v", a)
			l.q.ISID = t.isid(9)
			if err := l.request(nil); err != nil {
				return
			}
			p, err := l.tryReceive(t.wait())
			if err != nil {
				return
			}
			r, _ := iscsi.ParseLoginResponse(&p.BHS)
			t.require(r.Status>>8 != 0 || r.ISID == first, "a Login Request with another ISID is answered with that, %x", r.ISID)
		}},
		{ID: "login.ends-after-refusal", Source: "RFC 7143 11.13.5", Says: "If the Status-Class is not 0, the initiator and target MUST close the TCP connection", run: func(t *T) {
			l := t.begin(0)
			a := l.step(iscsi.Operational, iscsi.FullFeature, append(t.names(0)[:2], "TargetName=iqn.2026-01.org.example:no-such-target")...)
			t.require(a.refused(), "%v", a)
			_, ended := l.ends()
			t.require(ended, "the connection goes on after status %#04x", uint16(a.Status))
			if t.target.CHAP != nil {
				return // as they begin without
			}
			for _, r := range all {
				l.close() // there are targets that do one login at a time
				if l, a = r.ask(t); !a.refused() || a.ended {
					continue
				}
				_, ended := l.ends()
				t.require(ended, "the connection goes on after status %#04x", uint16(a.Status))
			}
		}},
		{ID: "login.two-beside", Level: Practice, Source: "RFC 7143 6.3", Says: "a login that does not go on keeps nobody else from logging in", run: func(t *T) {
			for range 8 {
				t.begin(1)
			}
			t.login(options{}).silence()
		}},
	}
}

// withoutCHAP skips the case if the target asks for authentication: it has to do with what follows that, and begins
// without.
func (t *T) withoutCHAP() {
	if t.target.CHAP != nil {
		t.skip("it begins without authentication, and the target asks for that")
	}
}

// authenticated skips the case if the login has failed for want of a secret, and fails it if for another reason.
func (t *T) authenticated(a *answer) {
	if !a.ended && a.Status == iscsi.LoginAuthFailure {
		t.skip("the target asks for authentication, or knows another secret (status 0x0201)")
	}
	t.require(a.accepted(), "%v", a)
}
