package iscsitest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
)

// challenged begins a login with CHAP, by MD5, and returns the target's challenge.
func (t *T) challenged() (*login, *answer) {
	l := t.begin(0)
	a := l.step(iscsi.Security, iscsi.Security, append(t.names(0), "AuthMethod=CHAP")...)
	m, _ := a.key("AuthMethod")
	t.require(a.accepted() && m == "CHAP", "AuthMethod=CHAP is answered by %v", a)
	a = l.step(iscsi.Security, iscsi.Security, "CHAP_A=5")
	t.require(a.accepted(), "CHAP_A=5 is answered by %v", a)
	return l, a
}

// chapCase is a case after the target's challenge.
func chapCase(id, source, says string, level Level, run func(t *T, l *login, a *answer)) Case {
	return Case{ID: "chap." + id, Level: level, Source: source, Says: says, Need: Secrets, run: func(t *T) {
		l, a := t.challenged()
		run(t, l, a)
	}}
}

// answered is the response to a challenge by the target's secret, or another one.
func (t *T) answered(a *answer, secret []byte) string {
	r, err := chapResponse(a, secret)
	t.require(err == nil, "the target's CHAP can't be answered: %v", err)
	return "CHAP_R=" + iscsi.FormatBinary(r)
}

// bypass is a case in which who has not authenticated himself goes on.
func bypass(id, says string, run func(t *T) *answer) Case {
	return Case{ID: "chap." + id, Source: "RFC 7143 9.2, 12.1", Says: says, Need: Secrets, run: func(t *T) {
		a := run(t)
		if a.refused() {
			return
		}
		t.require(!a.Transit, "%v", a)
	}}
}

func chapCases() []Case {
	failed := func(t *T, a *answer) {
		t.require(a.refused(), "%v", a)
		t.require(a.ended || a.Status == iscsi.LoginAuthFailure, "status %#04x, in place of 0x0201", uint16(a.Status))
	}
	const mustFail = "If the initiator authentication fails, the target MUST answer with a Login reject with the Authentication Failure status"
	return []Case{
		{ID: "chap.login", Level: Practice, Source: "RFC 7143 12.1.3", Says: "who knows the secret logs in", Need: Secrets, run: func(t *T) {
			t.login(options{}).silence()
		}},
		chapCase("md5", "RFC 7143 12.1.3", "the target answers CHAP_A with an algorithm that was offered, an identifier and a challenge", Must, func(t *T, _ *login, a *answer) {
			algorithm, _ := a.key("CHAP_A")
			id, _ := a.key("CHAP_I")
			c, _ := a.key("CHAP_C")
			challenge, err := iscsi.ParseBinary(c)
			t.require(algorithm == "5" && within(id, 0, 255) && err == nil && len(challenge) > 0 && len(challenge) <= chap.MaxBinary, "%v", a)
		}),
		chapCase("challenge-length", "RFC 1994 2.3, RFC 7143 9.2.1", "a challenge is as long as the digest, so that it is not guessed", Should, func(t *T, _ *login, a *answer) {
			c, _ := a.key("CHAP_C")
			challenge, _ := iscsi.ParseBinary(c)
			t.require(len(challenge) >= 16, "a challenge of %d bytes", len(challenge))
		}),
		chapCase("challenge-new", "RFC 1994 2.3, RFC 7143 9.2.1", "each challenge is another", Must, func(t *T, _ *login, a *answer) {
			one, _ := a.key("CHAP_C")
			_, b := t.challenged()
			other, _ := b.key("CHAP_C")
			t.require(one != other, "two logins get the challenge %s", one)
		}),
		chapCase("wrong-secret", "RFC 7143 12.1.3", mustFail, Must, func(t *T, l *login, a *answer) {
			failed(t, l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, t.answered(a, []byte("not-the-secret-of-anybody"))))
		}),
		chapCase("wrong-name", "RFC 7143 12.1.3", mustFail, Must, func(t *T, l *login, a *answer) {
			failed(t, l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name+"-x", t.answered(a, t.target.CHAP.Secret)))
		}),
		chapCase("short-response", "RFC 7143 12.1.3", mustFail, Must, func(t *T, l *login, a *answer) {
			r := t.answered(a, t.target.CHAP.Secret)
			failed(t, l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, r[:len(r)-2]))
		}),
		chapCase("empty-response", "RFC 7143 12.1.3", mustFail, Must, func(t *T, l *login, _ *answer) {
			b := l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, "CHAP_R=0x")
			t.require(b.refused(), "%v", b)
		}),
		chapCase("no-response", "RFC 7143 9.2", "the keys and their values of each step are those of the step, or the target MUST answer with a Login reject", Must, func(t *T, l *login, _ *answer) {
			a := l.step(iscsi.Security, iscsi.Operational)
			t.require(a.refused() || !a.Transit, "%v", a)
		}),
		chapCase("response-of-another", "RFC 7143 12.1.3", "the response to another challenge is none to this", Must, func(t *T, _ *login, a *answer) {
			r := t.answered(a, t.target.CHAP.Secret)
			other, _ := t.challenged()
			failed(t, other.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, r))
		}),
		chapCase("base64", "RFC 7143 12.1.3, 6.1", "binary values are hex-constants or base64-constants", Must, func(t *T, l *login, a *answer) {
			r, err := chapResponse(a, t.target.CHAP.Secret)
			t.require(err == nil, "%v", err)
			a = l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, "CHAP_R=0b"+base64Of(r))
			t.require(a.accepted(), "a right response in base64 is answered by %v", a)
		}),
		chapCase("reflected", "RFC 7143 9.2.1", "Originators MUST NOT reuse the CHAP challenge sent by the responder, and responders MUST check for this condition and close the connection", Must, func(t *T, l *login, a *answer) {
			c, _ := a.key("CHAP_C")
			a = l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, t.answered(a, t.target.CHAP.Secret), "CHAP_I=7", "CHAP_C="+c)
			_, proves := a.key("CHAP_R")
			t.require(a.refused() && !proves, "%v", a)
		}),
		chapCase("mutual", "RFC 7143 12.1.3", "If the initiator required target authentication, the target MUST either answer with a Login reject or reply with its name and response", Must, func(t *T, l *login, a *answer) {
			challenge := make([]byte, 16)
			rand.Read(challenge)
			a = l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, t.answered(a, t.target.CHAP.Secret), "CHAP_I=9", "CHAP_C="+iscsi.FormatBinary(challenge))
			if a.refused() {
				return
			}
			r, ok := a.key("CHAP_R")
			got, err := iscsi.ParseBinary(r)
			t.require(ok && err == nil, "%v", a)
			if own := t.target.CHAP.OwnSecret; len(own) > 0 {
				t.require(bytes.Equal(got, chap.Response(chap.MD5, 9, own, challenge)), "the target does not know its own secret")
			}
			t.require(!bytes.Equal(got, chap.Response(chap.MD5, 9, t.target.CHAP.Secret, challenge)), "the target proves itself by the initiator's secret (RFC 7143 9.2.1: it MUST NOT be configured for both)")
		}),
		chapCase("unknown-algorithm", "RFC 7143 12.1.3", "The target MUST answer with a Login reject with the Authentication Failure status or reply with an algorithm that was proposed", Must, func(t *T, _ *login, _ *answer) {
			l := t.begin(0)
			l.step(iscsi.Security, iscsi.Security, append(t.names(0), "AuthMethod=CHAP")...)
			a := l.step(iscsi.Security, iscsi.Security, "CHAP_A=250,251")
			failed(t, a)
		}),
		bypass("bypass-none", "who has to authenticate himself is not let in with AuthMethod=None", func(t *T) *answer {
			return t.begin(0).step(iscsi.Security, iscsi.Operational, append(t.names(0), "AuthMethod=None")...)
		}),
		bypass("bypass-stage", "who has to authenticate himself is not let in by leaving SecurityNegotiation out", func(t *T) *answer {
			return t.begin(0).step(iscsi.Operational, iscsi.FullFeature, t.names(0)...)
		}),
		bypass("bypass-transit", "who has to authenticate himself is not let in by asking for the next stage at once", func(t *T) *answer {
			return t.begin(0).step(iscsi.Security, iscsi.FullFeature, append(t.names(0), "AuthMethod=CHAP")...)
		}),
		bypass("bypass-middle", "who has to authenticate himself is not let in by going on in the middle of CHAP", func(t *T) *answer {
			l, _ := t.challenged()
			return l.step(iscsi.Operational, iscsi.FullFeature)
		}),
		{ID: "chap.tries", Level: Practice, Source: "RFC 7143 9.2.1", Says: "wrong secrets do not shut out who knows the right one", Need: Secrets, run: func(t *T) {
			for i := range 5 {
				l, a := t.challenged()
				l.step(iscsi.Security, iscsi.Operational, "CHAP_N="+t.target.CHAP.Name, t.answered(a, fmt.Appendf(nil, "not-the-secret-%d", i)))
			}
			t.login(options{}).silence()
		}},
	}
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
