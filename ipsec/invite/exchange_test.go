package invite

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

// party is one host's people and files.
type party struct {
	Side
	isAsked chan struct{} // is sent to when its people are

	mu      sync.Mutex // guards the fields below it
	partner Partner
	code    string
	asked   int
	psk     auth.Secret // zero: it has no peer
}

// newParty is a host whose people wait for what say returns.
func newParty(own Host, say func(code string) (bool, error)) *party {
	p := &party{isAsked: make(chan struct{}, 10)}
	p.Side = Side{Own: own,
		Check: func(Partner) error { return nil },
		Ask: func(ctx context.Context, q Partner, code string) (bool, error) {
			p.mu.Lock()
			p.partner, p.code = q, code
			p.asked++
			p.mu.Unlock()
			p.isAsked <- struct{}{}
			return say(code)
		},
		Write: func(_ context.Context, _ Partner, s auth.Secret) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.psk = s
			return nil
		},
		Undo: func(Partner) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.psk = auth.Secret{}
			return nil
		}}
	return p
}

func (p *party) secret() auth.Secret {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.psk
}

func (p *party) timesAsked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func yes(string) (bool, error) { return true, nil }
func no(string) (bool, error)  { return false, nil }

// ending is how an exchange has ended at one host.
type ending struct {
	Result
	err error
}

// invitation is one that waits on loopback.
type invitation struct {
	testing.TB
	token Token
	end   chan ending
	stop  context.CancelFunc
}

// invite has a host wait for a joiner.
func invite(t testing.TB, p *party, expires time.Time) *invitation {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewToken(expires, []netip.Addr{loopback}, uint16(l.Addr().(*net.TCPAddr).Port), p.Own)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	v := &invitation{TB: t, token: k, end: make(chan ending, 1), stop: cancel}
	go func() {
		r, err := Invite(ctx, k, []net.Listener{l}, p.Side)
		v.end <- ending{r, err}
		close(v.end)
	}()
	t.Cleanup(func() {
		cancel()
		for range v.end {
		}
	})
	return v
}

func (v *invitation) ending() ending {
	v.Helper()
	select {
	case e := <-v.end:
		return e
	case <-time.After(time.Minute):
		v.Fatal("the invitation does not end")
	}
	return ending{}
}

func (v *invitation) dial() *conn {
	v.Helper()
	c, err := net.Dial("tcp", netip.AddrPortFrom(loopback, v.token.Port).String())
	if err != nil {
		v.Fatal(err)
	}
	v.Cleanup(func() { c.Close() })
	return &conn{Conn: c, role: joiner}
}

func soon() time.Time { return time.Now().Add(time.Hour) }

var beta = Host{Name: "beta", Identity: "beta.example", Port: 7471, UDPPort: 9899}

// TestTwoHostsBecomePeers with one secret, one code, and each other's names.
func TestTwoHostsBecomePeers(t *testing.T) {
	a, b := newParty(alpha, yes), newParty(beta, yes)
	v := invite(t, a, soon())
	r, err := Join(t.Context(), v.token, b.Side)
	e := v.ending()
	if err != nil || e.err != nil || r.Outcome != Kept || e.Outcome != Kept {
		t.Fatalf("joiner %v %v, inviter %v %v", r.Outcome, err, e.Outcome, e.err)
	}
	if !a.secret().Equal(b.secret()) || a.secret().IsZero() || len(a.secret().Reveal()) != 44 {
		t.Error("the secrets are not the same, or not of 256 bits")
	}
	if a.code != b.code || len(a.code) != codeDigits+1 {
		t.Errorf("codes %q and %q", a.code, b.code)
	}
	if a.partner.Host != beta || b.partner.Host != alpha || a.partner.Address != loopback || b.partner.LocalAddress != loopback {
		t.Errorf("%+v, %+v", a.partner, b.partner)
	}
	if _, err := Join(t.Context(), v.token, newParty(beta, yes).Side); !errors.Is(err, ErrUnreachable) {
		t.Errorf("once more: %v", err)
	}
}

// TestSecretsAndCodesAreOfOneExchange: another exchange between the same hosts has others.
func TestSecretsAndCodesAreOfOneExchange(t *testing.T) {
	codes := map[string]bool{}
	var last auth.Secret
	for range 4 {
		a := newParty(alpha, yes)
		v := invite(t, a, soon())
		if _, err := Join(t.Context(), v.token, newParty(beta, yes).Side); err != nil {
			t.Fatal(err)
		}
		v.ending()
		if codes[a.code] = true; a.secret().Equal(last) {
			t.Error("the same secret again")
		}
		last = a.secret()
	}
	if len(codes) < 3 {
		t.Errorf("codes %v", codes)
	}
}

// TestNoHostHasAPeerThatBothHaveNotConfirmed: whoever says no, or says nothing until patience ends.
func TestNoHostHasAPeerThatBothHaveNotConfirmed(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	silent := func(string) (bool, error) { <-never; return false, nil }
	for name, c := range map[string]struct {
		a, b func(string) (bool, error)
	}{"inviter": {no, yes}, "joiner": {yes, no}, "both": {no, no}, "inviter is silent": {silent, yes}, "joiner is silent": {yes, silent},
		"nobody is there": {func(string) (bool, error) { return false, io.EOF }, yes}} {
		t.Run(name, func(t *testing.T) {
			a, b := newParty(alpha, c.a), newParty(beta, c.b)
			if strings.Contains(name, "silent") {
				a.patient, b.patient = 200*time.Millisecond, 300*time.Millisecond
			}
			v := invite(t, a, soon())
			_, err := Join(t.Context(), v.token, b.Side)
			e := v.ending()
			if err == nil || e.err == nil || !a.secret().IsZero() || !b.secret().IsZero() {
				t.Errorf("joiner %v, inviter %v", err, e.err)
			}
			var said *AbortError
			if name == "inviter" && (!errors.As(err, &said) || !errors.Is(e.err, ErrDeclined)) {
				t.Errorf("joiner %v, inviter %v", err, e.err)
			}
		})
	}
}

// TestHostThatCannotWriteLeavesNothing on either side.
func TestHostThatCannotWriteLeavesNothing(t *testing.T) {
	full := errors.New("no space left on device")
	for _, which := range []string{"inviter", "joiner"} {
		a, b := newParty(alpha, yes), newParty(beta, yes)
		p := map[string]*party{"inviter": a, "joiner": b}[which]
		p.Write = func(context.Context, Partner, auth.Secret) error { return full }
		v := invite(t, a, soon())
		_, err := Join(t.Context(), v.token, b.Side)
		e := v.ending()
		if err == nil || e.err == nil || !a.secret().IsZero() || !b.secret().IsZero() {
			t.Errorf("%s: joiner %v, inviter %v", which, err, e.err)
		}
		if errs := map[string]error{"inviter": e.err, "joiner": err}; !errors.Is(errs[which], full) {
			t.Errorf("%s: %v", which, errs[which])
		}
	}
}

// TestHalfThatCannotBeTakenBackIsSaid.
func TestHalfThatCannotBeTakenBackIsSaid(t *testing.T) {
	a, b := newParty(alpha, yes), newParty(beta, yes)
	b.Write = func(context.Context, Partner, auth.Secret) error { return errors.New("no space left on device") }
	stuck := errors.New("read-only file system")
	a.Undo = func(Partner) error { return stuck }
	v := invite(t, a, soon())
	_, _ = Join(t.Context(), v.token, b.Side)
	if e := v.ending(); !errors.Is(e.err, stuck) {
		t.Errorf("%v", e.err)
	}
}

// TestHostThatCannotBeAPeerIsRefusedBeforePeopleAreAsked, in words, at both hosts.
func TestHostThatCannotBeAPeerIsRefusedBeforePeopleAreAsked(t *testing.T) {
	taken := errors.New("a peer of this name exists already\nand more")
	for _, which := range []string{"inviter", "joiner"} {
		a, b := newParty(alpha, yes), newParty(beta, yes)
		if which == "joiner" {
			b.Check = func(Partner) error { return taken }
		} else {
			a.Check = func(Partner) error { return taken }
		}
		v := invite(t, a, soon())
		_, err := Join(t.Context(), v.token, b.Side)
		errs := map[string]error{"inviter": v.ending().err, "joiner": err}
		if a.timesAsked()+b.timesAsked() > 0 {
			t.Errorf("%s: somebody is asked", which)
		}
		if !errors.Is(errs[which], taken) {
			t.Errorf("%s: %v", which, errs[which])
		}
		delete(errs, which)
		for _, err := range errs {
			var said *AbortError
			if !errors.As(err, &said) || said.Reason != "a peer of this name exists already" {
				t.Errorf("%s: the other learns %v", which, err)
			}
		}
	}
}

// TestJoinerChoosesNoProfile: what protects the streams, and what carries them, is what the inviter's people have asked for. Nobody shows
// them what a joiner says.
func TestJoinerChoosesNoProfile(t *testing.T) {
	for _, worse := range []Host{{Profile: "rfc7146-null"}, {Profile: "rfc3723-aggressive", Transport: "tcp"}, {Transport: "auto"}} {
		a, b := newParty(Host{Name: "alpha", Port: 7471, Transport: "tcp"}, yes), newParty(beta, yes)
		b.Own.Profile, b.Own.Transport = worse.Profile, worse.Transport
		v := invite(t, a, soon())
		_, err := Join(t.Context(), v.token, b.Side)
		if e := v.ending(); !errors.Is(e.err, ErrTampered) || err == nil || a.timesAsked()+b.timesAsked() > 0 || !a.secret().IsZero() || !b.secret().IsZero() {
			t.Errorf("%+v: inviter: %v; joiner: %v; asked: %d and %d", worse, e.err, err, a.timesAsked(), b.timesAsked())
		}
	}
}

// TestStolenTokenIsSeen: the thief joins first. The inviter sees his name and address, and a code that the one who should join
// does not have; that one is told that the invitation was used.
func TestStolenTokenIsSeen(t *testing.T) {
	decide := make(chan bool)
	a := newParty(alpha, func(string) (bool, error) { return <-decide, nil })
	v := invite(t, a, soon())
	stolen, err := ParseToken(v.token.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	thief := newParty(Host{Name: "mallory", Port: 7471}, yes)
	thiefEnds := make(chan error, 1)
	go func() { _, err := Join(context.Background(), stolen, thief.Side); thiefEnds <- err }()
	<-a.isAsked
	<-thief.isAsked
	honest := newParty(beta, yes)
	if _, err := Join(t.Context(), v.token, honest.Side); !errors.Is(err, ErrUsed) {
		t.Errorf("who should join: %v", err)
	}
	if honest.timesAsked() != 0 || a.partner.Name != "mallory" {
		t.Errorf("the inviter is asked about %q", a.partner.Name)
	}
	decide <- false
	if e := v.ending(); !errors.Is(e.err, ErrDeclined) || !a.secret().IsZero() {
		t.Errorf("inviter: %v", e.err)
	}
	if err := <-thiefEnds; err == nil || !thief.secret().IsZero() {
		t.Errorf("thief: %v", err)
	}
}

// cutter cuts the first connections to an inviter, and lets the next one through.
func cutter(t *testing.T, v *invitation, cuts int) (Token, *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := new(atomic.Int32)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			if int(seen.Add(1)) <= cuts {
				raw.Close()
				continue
			}
			out, err := net.Dial("tcp", netip.AddrPortFrom(loopback, v.token.Port).String())
			if err != nil {
				raw.Close()
				return
			}
			for _, ends := range [][2]net.Conn{{raw, out}, {out, raw}} {
				wg.Go(func() {
					defer ends[0].Close()
					defer ends[1].Close()
					_, _ = io.Copy(ends[0], ends[1])
				})
			}
		}
	})
	k := v.token
	k.Port = uint16(l.Addr().(*net.TCPAddr).Port)
	return k, seen
}

// TestJoinerThatIsCutOffTriesAgain, as where a flood has the inviter cut it off, and says at last that the inviter is gone.
func TestJoinerThatIsCutOffTriesAgain(t *testing.T) {
	a, b := newParty(alpha, yes), newParty(beta, yes)
	v := invite(t, a, soon())
	k, seen := cutter(t, v, joinTries-1)
	if _, err := Join(t.Context(), k, b.Side); err != nil || seen.Load() != joinTries {
		t.Errorf("%v, after %d connections", err, seen.Load())
	}
	if e := v.ending(); e.err != nil || a.secret().IsZero() || !a.secret().Equal(b.secret()) {
		t.Errorf("inviter: %v", e.err)
	}
	v = invite(t, newParty(alpha, yes), soon())
	k, seen = cutter(t, v, 100)
	if _, err := Join(t.Context(), k, newParty(beta, yes).Side); !errors.Is(err, ErrLost) || seen.Load() != joinTries {
		t.Errorf("%v, after %d connections; want ErrLost after %d", err, seen.Load(), joinTries)
	}
}

// relay stands between two hosts: it takes the joiner's connection, dials the inviter, and passes
// messages as mangle says until one fails.
func relay(t *testing.T, v *invitation, mangle func(from role, k kind, body []byte) []byte) Token {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		raw, err := l.Accept()
		if err != nil {
			return
		}
		l.Close() // there is one attempt
		out, err := net.Dial("tcp", netip.AddrPortFrom(loopback, v.token.Port).String())
		if err != nil {
			raw.Close()
			return
		}
		ends := map[role]*conn{joiner: {Conn: raw}, inviter: {Conn: out}}
		for from := range ends {
			wg.Go(func() {
				defer raw.Close()
				defer out.Close()
				for {
					k, body, err := ends[from].receivePlain()
					if err != nil || ends[from.other()].sendPlain(k, mangle(from, k, body)) != nil {
						return
					}
				}
			})
		}
	})
	k := v.token
	k.Port = uint16(l.Addr().(*net.TCPAddr).Port)
	return k
}

// TestManInTheMiddleWithoutTheTokenIsFound, whatever part of which message he changes, and nobody is asked. The control: a
// relay that changes nothing is not in the way.
func TestManInTheMiddleWithoutTheTokenIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("many exchanges")
	}
	type change struct {
		from role
		kind kind
		at   int
	}
	all := []change{{-1, 0, 0}}
	for _, c := range []struct {
		from role
		kind kind
		size int
	}{{joiner, kindHello, len(hello{}.append(nil))}, {inviter, kindAnswer, len(share{}.append(nil))}, {joiner, kindOpening, len(share{}.append(nil))}, {joiner, kindSealed, 40}, {inviter, kindSealed, 40}} {
		for at := 0; at < c.size; at += 7 {
			all = append(all, change{c.from, c.kind, at})
		}
	}
	for _, c := range all {
		a, b := newParty(alpha, yes), newParty(beta, yes)
		a.patient, b.patient = 10*time.Second, 10*time.Second
		v := invite(t, a, soon())
		k := relay(t, v, func(from role, kd kind, body []byte) []byte {
			if from == c.from && kd == c.kind && c.at < len(body) {
				body[c.at] ^= 0x40
			}
			return body
		})
		_, err := Join(t.Context(), k, b.Side)
		if c.from < 0 {
			if e := v.ending(); err != nil || e.err != nil {
				t.Fatalf("unchanged: %v, %v", err, e.err)
			}
			continue
		}
		if err == nil || !b.secret().IsZero() || !a.secret().IsZero() || a.timesAsked()*b.timesAsked() > 0 {
			t.Errorf("%+v: %v", c, err)
		}
		v.stop()
	}
}

// TestManInTheMiddleWithTheTokenHasOtherCodes: he has an exchange with each host, which succeed, and the codes on the two
// screens differ.
func TestManInTheMiddleWithTheTokenHasOtherCodes(t *testing.T) {
	for range 5 {
		wait := make(chan struct{})
		a, b := newParty(alpha, func(string) (bool, error) { <-wait; return false, nil }), newParty(beta, func(string) (bool, error) { <-wait; return false, nil })
		v := invite(t, a, soon())
		asInviter := newParty(alpha, yes)
		stolen := v.token // by way of which the joiner reaches him
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		stolen.Port = uint16(l.Addr().(*net.TCPAddr).Port)
		var ends sync.WaitGroup
		ends.Go(func() { _, _ = Invite(t.Context(), stolen, []net.Listener{l}, asInviter.Side) })
		asJoiner := newParty(beta, yes)
		ends.Go(func() { _, _ = Join(t.Context(), v.token, asJoiner.Side) })
		ends.Go(func() { _, _ = Join(t.Context(), stolen, b.Side) })
		for _, p := range []*party{a, b, asInviter, asJoiner} {
			<-p.isAsked
		}
		if a.code != asJoiner.code || b.code != asInviter.code {
			t.Error("the man in the middle has no exchange with the hosts: this test shows nothing")
		}
		if a.code == b.code {
			t.Error("the codes are equal")
		}
		close(wait)
		ends.Wait()
		if v.ending(); !a.secret().IsZero() || !b.secret().IsZero() {
			t.Error("a peer is written")
		}
	}
}

// TestTranslatedAddressesAreRefused: hosts that see each other at other addresses cannot be peers by these.
func TestTranslatedAddressesAreRefused(t *testing.T) {
	a := newParty(alpha, yes)
	v := invite(t, a, soon())
	c := v.dial()
	if _, err := c.join(v.token); err != nil {
		t.Fatal(err)
	}
	if err := c.send(kindDetails, details{beta, netip.MustParseAddr("198.51.100.7"), loopback}.append(nil)); err != nil {
		t.Fatal(err)
	}
	if e := v.ending(); !errors.Is(e.err, ErrTranslated) || a.timesAsked() != 0 {
		t.Errorf("%v", e.err)
	}
}

// addressed is a connection between other addresses.
type addressed struct {
	net.Conn
	local, remote string
}

func (a addressed) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.local))
}
func (a addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.remote))
}

// TestLinkLocalAddressesAreRefused: a host whose connection comes from such an address, or ends at one, would be a peer that
// nobody can dial, as no peer's address has a zone. Both hosts learn why.
func TestLinkLocalAddressesAreRefused(t *testing.T) {
	k, err := deriveKeys(newToken(t, soon(), alpha, loopback), nil, hello{}, share{}, share{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		joiner, inviter string
		want            error
	}{
		{"[2001:db8::2]:40000", "[2001:db8::1]:7473", nil},
		{"[fe80::2%eth0]:40000", "[2001:db8::1]:7473", ErrLinkLocal},
		{"[2001:db8::2]:40000", "[fe80::1%eth1]:7473", ErrLinkLocal},
		{"169.254.0.2:40000", "192.0.2.1:7473", ErrLinkLocal},
	} {
		here, there := connected(t)
		i := &conn{Conn: addressed{here, c.inviter, c.joiner}, role: inviter, keys: k}
		j := &conn{Conn: addressed{there, c.joiner, c.inviter}, role: joiner, keys: k}
		said := make(chan error, 1)
		go func() {
			_, err := i.introduce(alpha)
			said <- err
		}()
		_, err := j.introduce(beta)
		if theirs := <-said; !errors.Is(err, c.want) || !errors.Is(theirs, c.want) {
			t.Errorf("%s to %s: the joiner says %v, the inviter %v; want: %v", c.joiner, c.inviter, err, theirs, c.want)
		}
	}
}

// connected are both ends of a connection over loopback.
func connected(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err == nil {
		b, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// TestFloodsKeepNobodyOut: a thousand connections that are silent, slow, too long or garbage, then the joiner.
func TestFloodsKeepNobodyOut(t *testing.T) {
	a, b := newParty(alpha, yes), newParty(beta, yes)
	v := invite(t, a, soon())
	long := binary.BigEndian.AppendUint16([]byte{byte(kindHello)}, 65535)
	wrong := hello{id: v.token.id}
	for i := range 1000 {
		c := v.dial()
		switch i % 5 {
		case 1:
			_, _ = c.Write([]byte{byte(kindHello)})
		case 2:
			_, _ = c.Write(append(long, make([]byte, 70000)...))
		case 3:
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: alpha\r\n\r\n"))
		case 4:
			_ = c.sendPlain(kindHello, wrong.append(nil))
		}
		if i%5 != 0 && i%5 != 1 {
			c.Close()
		}
	}
	if _, err := Join(t.Context(), v.token, b.Side); err != nil {
		t.Error(err)
	}
	if e := v.ending(); e.err != nil || !a.secret().Equal(b.secret()) {
		t.Errorf("%v", e.err)
	}
}

// TestReplayedAndReflectedMessagesAreRefused: what one host has sealed, said again, or said to itself.
func TestReplayedAndReflectedMessagesAreRefused(t *testing.T) {
	for _, attack := range []string{"replay", "reflection"} {
		never := make(chan struct{})
		a := newParty(alpha, func(string) (bool, error) { <-never; return true, nil })
		v := invite(t, a, soon())
		c := v.dial()
		if _, err := c.join(v.token); err != nil {
			t.Fatal(err)
		}
		mine, theirs, _ := c.addresses()
		if err := c.send(kindDetails, details{beta, mine, theirs}.append(nil)); err != nil {
			t.Fatal(err)
		}
		// The inviter's Details, as they came.
		_, body, err := c.receivePlain()
		if err != nil {
			t.Fatal(err)
		}
		if attack == "replay" {
			// Its own first message once more, which was number 0.
			body = c.keys.seal[joiner].Seal(nil, nonce(0), append([]byte{byte(kindDetails)}, details{beta, mine, theirs}.append(nil)...), nil)
		}
		if err := c.sendPlain(kindSealed, body); err != nil {
			t.Fatal(err)
		}
		if e := v.ending(); !errors.Is(e.err, ErrTampered) {
			t.Errorf("%s: %v", attack, e.err)
		}
		close(never)
	}
}

// TestInviterSaysWhoDidNotComplete: a joiner with the token that falls silent uses the invitation up, and is named.
func TestInviterSaysWhoDidNotComplete(t *testing.T) {
	a := newParty(alpha, yes)
	v := invite(t, a, soon())
	c := v.dial()
	j, err := newHello(v.token)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.sendPlain(kindHello, j.hello.append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.expect(kindAnswer); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if e := v.ending(); e.err == nil || !strings.Contains(e.err.Error(), "127.0.0.1") {
		t.Errorf("%v", e.err)
	}
}

// TestInvitationEnds when it expires and when it is cancelled, and its port is shut then.
func TestInvitationEnds(t *testing.T) {
	a := newParty(alpha, yes)
	v := invite(t, a, time.Now().Add(1100*time.Millisecond))
	if e := v.ending(); !errors.Is(e.err, ErrExpired) {
		t.Errorf("%v", e.err)
	}
	late := newParty(beta, yes)
	if _, err := Join(t.Context(), v.token, late.Side); !errors.Is(err, ErrExpired) {
		t.Errorf("late: %v", err)
	}
	v = invite(t, a, soon())
	v.stop()
	if e := v.ending(); !errors.Is(e.err, context.Canceled) {
		t.Errorf("%v", e.err)
	}
	if _, err := Join(t.Context(), v.token, late.Side); !errors.Is(err, ErrUnreachable) {
		t.Errorf("cancelled: %v", err)
	}
}
