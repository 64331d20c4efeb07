package sctp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// RFC 9260 section 8.5: what has another Verification Tag is nothing of the
// association's, whatever it says.
func TestWrongTagsChangeNothing(t *testing.T) {
	_, r, a, in := victim(t, Config{})
	for _, tag := range []uint32{r.peerTag ^ 1, r.tag, 1} {
		r.send(tag, appendAbort(nil, 0, assoc.Cause{Code: assoc.CauseUserAbort}))
		r.send(tag, appendChunk(nil, typeShutdownComplete, 0, nil))
		r.send(tag, appendChunk(nil, typeCookieAck, 0, nil))
		r.send(tag, appendError(nil, assoc.CauseStaleCookie, []byte{0, 0, 0, 0}))
	}
	r.send(r.peerTag, appendAbort(nil, flagT, assoc.Cause{})) // reflected, but with a tag that is not ours (8.5.1 B)
	r.send(0, appendAbort(nil, 0, assoc.Cause{}))
	r.send(0, r.data(0, "with tag 0"))
	r.tsn--
	r.send(r.peerTag, r.init()) // an INIT has tag 0
	r.send(0, r.init(), r.data(0, "bundled with INIT"))
	r.tsn--
	r.quiet("packets with wrong tags")
	if s := a.State(); s != "ESTABLISHED" || len(in.Messages()) > 0 {
		t.Errorf("state %s, messages %v", s, in.Messages())
	}
	// DATA with a wrong tag is out of the blue: an ABORT that reflects the tag
	// (section 8.4 rule 8).
	r.send(r.peerTag^1, dataWith(r.tsn, 0, 7, "x"))
	if c, p := r.want(typeAbort); c.flags() != flagT || p.tag() != r.peerTag^1 {
		t.Errorf("flags %x, tag %x", c.flags(), p.tag())
	}
	// The T bit with the peer's own tag does end it.
	r.send(r.tag, appendAbort(nil, flagT, assoc.Cause{}))
	<-a.Done()
	if !errors.Is(a.Err(), &assoc.AbortError{}) {
		t.Error(a.Err())
	}
}

// RFC 9260 section 8.4: out of the blue.
func TestOutOfTheBlue(t *testing.T) {
	e := listen(t, "127.0.0.1", Config{})
	r := newRawPeer(t, e)
	r.send(5, appendChunk(nil, typeShutdownAck, 0, nil))
	if c, p := r.want(typeShutdownComplete); c.flags() != flagT || p.tag() != 5 {
		t.Errorf("SHUTDOWN COMPLETE: flags %x, tag %x", c.flags(), p.tag())
	}
	for _, silent := range [][]byte{
		appendAbort(nil, 0, assoc.Cause{}), appendChunk(nil, typeShutdownComplete, 0, nil), appendChunk(nil, typeCookieAck, 0, nil),
		appendError(nil, assoc.CauseStaleCookie, []byte{0, 0, 0, 1}), appendChunk(nil, typeCookieEcho, 0, make([]byte, cookieLen)),
		append(appendChunk(nil, typeHeartbeat, 0, nil), appendAbort(nil, 0, assoc.Cause{})...),
		{0, 0, 0, 200, 1}, {0, 0, 0, 1},
	} {
		r.send(6, silent)
	}
	r.send(7, appendSack(nil, 1, 1, nil, nil))
	if c, p := r.recv().chunks(), 0; chunkType(c[0]) != typeAbort || c[1] != flagT {
		t.Errorf("a SACK out of the blue: %x %d", c, p)
	}
	// Nobody listens here: an ABORT with the tag of the INIT (rule 3).
	r.send(0, r.init())
	if c, p := r.want(typeAbort); c.flags() != 0 || p.tag() != r.tag {
		t.Errorf("ABORT: flags %x, tag %x", c.flags(), p.tag())
	}
}

// RFC 9260 section 5.1.3: INITs leave nothing behind.
func TestInitFloodKeepsNothing(t *testing.T) {
	e := listen(t, "127.0.0.1", Config{Accept: func(*Assoc) assoc.Receiver { return assoctest.NewInbox() }})
	r := newRawPeer(t, e)
	for i := range 2000 {
		r.src = uint16(i + 1)
		r.send(0, r.init())
		if c, _ := r.want(typeInitAck); len(c) > initFixedLen+paramHeaderLen+cookieLen {
			t.Fatalf("an INIT ACK of %d bytes for an INIT of %d", len(c), len(r.init()))
		}
	}
	if s := e.Stats(); s.Assocs != 0 || s.Inits != 2000 {
		t.Errorf("%+v", s)
	}
}

// Associations that nobody accepts are bounded, and refused with a cause.
func TestBacklogIsBounded(t *testing.T) {
	e := listen(t, "127.0.0.1", Config{Params: assoc.Params{Backlog: 3}, Accept: func(*Assoc) assoc.Receiver { return assoctest.NewInbox() }})
	for range 3 {
		newRawPeer(t, e).connect()
	}
	r := newRawPeer(t, e)
	r.send(0, r.init())
	c, _ := r.want(typeInitAck)
	i, _ := parseInit(c)
	params, _ := parseParams(i.params)
	r.send(i.tag, appendChunk(nil, typeCookieEcho, 0, params.cookie))
	if c, p := r.want(typeAbort); firstCause(c).Code != assoc.CauseOutOfResource || p.tag() != r.tag {
		t.Errorf("%v", firstCause(c))
	}
	if s := e.Stats(); s.Assocs != 3 || s.NoRoom != 1 {
		t.Errorf("%+v", s)
	}
}

// Who is not admitted hears nothing and leaves nothing.
func TestAdmission(t *testing.T) {
	no := errors.New("not him")
	e := listen(t, "127.0.0.1", Config{
		Accept: func(*Assoc) assoc.Receiver { return assoctest.NewInbox() },
		Admit: func(_, a netip.AddrPort, out bool) error {
			if a.Port()%2 == 0 || out {
				return no
			}
			return nil
		},
	})
	_, err := e.Dial(patient(t), netip.MustParseAddrPort("127.0.0.1:9"), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return assoctest.NewInbox() }})
	if !errors.Is(err, ErrNotAdmitted) || !errors.Is(err, no) {
		t.Error(err)
	}
	var odd, even *rawPeer
	for odd == nil || even == nil {
		if r := newRawPeer(t, e); r.addr().Port()%2 == 0 {
			even = r
		} else {
			odd = r
		}
	}
	even.send(0, even.init())
	even.send(5, appendSack(nil, 1, 1, nil, nil))
	odd.connect()
	if s := e.Stats(); s.NotAdmitted != 2 || s.Inits != 1 {
		t.Errorf("%+v", s)
	}
	even.c.SetReadDeadline(time.Now())
	if n, err := even.c.Read(make([]byte, 100)); err == nil {
		t.Errorf("who is not admitted gets %d bytes", n)
	}
	if _, err := listen(t, "127.0.0.1", Config{}).Dial(patient(t), netip.AddrPort{}, DialConfig{Receiver: func(*Assoc) assoc.Receiver { return nil }}); err == nil {
		t.Error("Dial without an address")
	}
}

// What breaks a rule ends the association with an ABORT that says so, and does
// not go further.
func TestViolationsEndTheAssociation(t *testing.T) {
	for name, tc := range map[string]struct {
		chunk func(r *rawPeer) []byte
		want  assoc.CauseCode
	}{
		"SACK of a TSN never sent":     {func(r *rawPeer) []byte { return appendSack(nil, r.peerTSN, 1<<20, nil, nil) }, assoc.CauseProtocolViolation},
		"SACK of a far TSN":            {func(r *rawPeer) []byte { return appendSack(nil, r.peerTSN+1<<30, 1<<20, nil, nil) }, assoc.CauseProtocolViolation},
		"gap block beyond":             {func(r *rawPeer) []byte { return appendSack(nil, r.peerTSN-1, 1<<20, []gapBlock{{2, 9}}, nil) }, assoc.CauseProtocolViolation},
		"gap block backwards":          {func(r *rawPeer) []byte { return appendSack(nil, r.peerTSN-1, 1<<20, []gapBlock{{5, 2}}, nil) }, assoc.CauseProtocolViolation},
		"gap block at 0":               {func(r *rawPeer) []byte { return appendSack(nil, r.peerTSN-1, 1<<20, []gapBlock{{0, 0}}, nil) }, assoc.CauseProtocolViolation},
		"SACK cut short":               {func(r *rawPeer) []byte { b := appendSack(nil, r.peerTSN-1, 1, nil, nil); b[13] = 9; return b }, assoc.CauseProtocolViolation},
		"DATA without a byte":          {func(r *rawPeer) []byte { return dataWith(r.tsn, 0, 7, "") }, assoc.CauseNoUserData},
		"DATA shorter than its header": {func(r *rawPeer) []byte { return appendChunk(nil, typeData, 7, make([]byte, 8)) }, assoc.CauseProtocolViolation},
		"chunk of length 0":            {func(r *rawPeer) []byte { return []byte{0, 0, 0, 0} }, assoc.CauseProtocolViolation},
		"chunk beyond its packet":      {func(r *rawPeer) []byte { return []byte{3, 0, 0xff, 0xff} }, assoc.CauseProtocolViolation},
		"SHUTDOWN of a TSN never sent": {func(r *rawPeer) []byte { return appendShutdown(nil, r.peerTSN+5) }, assoc.CauseProtocolViolation},
		"SHUTDOWN of a wrong length":   {func(r *rawPeer) []byte { return appendChunk(nil, typeShutdown, 0, make([]byte, 9)) }, assoc.CauseProtocolViolation},
	} {
		t.Run(name, func(t *testing.T) {
			e, r, a, _ := victim(t, Config{})
			newRawPeer(t, e).connect()
			bystander, err := e.Accept(patient(t))
			if err != nil {
				t.Fatal(err)
			}
			r.send(r.peerTag, tc.chunk(r))
			c, p := r.want(typeAbort)
			if k := firstCause(c); k.Code != tc.want || p.tag() != r.tag || c.flags() != 0 {
				t.Errorf("ABORT: %v, tag %x, flags %x", k, p.tag(), c.flags())
			}
			<-a.Done()
			if !errors.Is(a.Err(), &assoc.AbortError{Local: true, Cause: assoc.Cause{Code: tc.want}}) {
				t.Error(a.Err())
			}
			if _, err := a.TrySend([]assoc.Outgoing{{Bufs: [][]byte{{1}}}}); !errors.Is(err, &assoc.AbortError{Local: true}) {
				t.Error(err)
			}
			if s := bystander.State(); s != "ESTABLISHED" {
				t.Errorf("another association is %s: %v", s, bystander.Err())
			}
		})
	}
}

// Gap blocks of a thousand turns cost no more than what was sent.
func TestJunkAbort(t *testing.T) {
	_, r, a, in := victim(t, Config{})
	r.send(r.peerTag, appendChunk(nil, typeAbort, 0, []byte{0, 12, 0xff, 0xff, 1, 2, 3}))
	<-a.Done()
	var ae *assoc.AbortError
	if !errors.As(a.Err(), &ae) || ae.Local || ae.Cause.Code != 0 {
		t.Error(a.Err())
	}
	_, r, a, _ = victim(t, Config{})
	long := bytes.Repeat([]byte("why? "), 200)
	r.send(r.peerTag, appendChunk(nil, typeAbort, 0, appendCause(nil, assoc.CauseUserAbort, long)))
	<-a.Done()
	if !errors.As(a.Err(), &ae) || ae.Cause.Code != assoc.CauseUserAbort || len(ae.Cause.Info) != assoc.MaxCauseInfo || !strings.Contains(ae.Error(), "why?") {
		t.Error(a.Err())
	}
	in.Wait(t, "the event", func() bool { return len(in.Events) == 2 && in.Events[1].Kind == assoc.EventDown })
}

// RFC 9260 section 6.5: a stream that was not negotiated is reported, its DATA
// acknowledged and thrown away.
func TestStreamOutOfRange(t *testing.T) {
	_, r, a, in := victim(t, Config{Params: assoc.Params{Streams: 4}})
	r.send(r.peerTag, r.data(4, "beyond"))
	c, _ := r.want(typeError)
	if k := firstCause(c); k.Code != assoc.CauseInvalidStream || !bytes.Equal(k.Info, []byte{0, 4, 0, 0}) {
		t.Errorf("%v %x", k.Code, k.Info)
	}
	r.send(r.peerTag, r.data(3, "the last"))
	in.WaitFor(t, 1)
	for cum := r.tsn - 2; cum == r.tsn-2; { // the first may have been acknowledged alone
		c, _ = r.want(typeSack)
		s, _ := parseSack(c)
		if cum = s.cum(); cum != r.tsn-2 && cum != r.tsn-1 {
			t.Errorf("acknowledged up to %d, want %d", cum, r.tsn-1)
		}
	}
	if out, in := a.Streams(); out != 4 || in != 4 {
		t.Errorf("%d and %d streams", out, in)
	}
}

// Ordered messages and fragments come as they are, with their flags.
func TestOrderedAndFragmentsAreReported(t *testing.T) {
	_, r, _, in := victim(t, Config{})
	for i, flags := range []uint8{flagB | flagE, flagB, 0, flagE, flagB | flagU, flagE | flagU, flagB | flagE | flagU | flagI} {
		r.send(r.peerTag, dataWith(r.tsn, 1, flags, "abcd"))
		r.tsn++
		in.WaitFor(t, i+1)
		if m := in.Messages()[i]; m.Flags != assoc.Flags(flags) || m.TSN != r.tsn-1 {
			t.Errorf("flags %x: %+v", flags, m)
		}
	}
}

// RFC 9260 section 6.2 and 6.7: gaps and duplicates are reported at once.
func TestGapsAndDuplicatesAreReported(t *testing.T) {
	_, r, _, in := victim(t, Config{})
	first := r.tsn
	sack := func() sackChunk {
		c, _ := r.want(typeSack)
		s, err := parseSack(c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	r.send(r.peerTag, dataWith(first+2, 0, 7, "third"))
	if s := sack(); s.cum() != first-1 || s.gaps() != 1 || s.gap(0) != (gapBlock{3, 3}) {
		t.Errorf("%x", s)
	}
	in.WaitFor(t, 1) // at once, though two are missing
	r.send(r.peerTag, dataWith(first+2, 0, 7, "third"))
	if s := sack(); s.dups() != 1 || s.dup(0) != first+2 {
		t.Errorf("%x", s)
	}
	r.send(r.peerTag, dataWith(first, 0, 7, "first"), dataWith(first+1, 0, 7, "second"))
	// The gap is closed; what is not acknowledged at once is within SACK.Delay.
	if s := sack(); s.cum() != first+2 || s.gaps() != 0 || s.dups() != 0 {
		t.Errorf("%x", s)
	}
	// A TSN that is too far ahead is dropped, not kept.
	r.send(r.peerTag, dataWith(first+3+maxAhead, 0, 7, "far"))
	if s := sack(); s.cum() != first+2 || s.gaps() != 0 {
		t.Errorf("%x", s)
	}
	if len(in.Messages()) != 3 {
		t.Errorf("%d messages", len(in.Got))
	}
}

// The window is advertised as it is, and what exceeds it is dropped: a peer that
// minds nothing cannot make this end keep more.
func TestWindowIsKept(t *testing.T) {
	_, r, a, in := victim(t, Config{RecvWindow: 8000})
	in.Lock()
	in.Hold = true
	in.Unlock()
	text := string(make([]byte, 1000))
	for range 20 {
		r.send(r.peerTag, r.data(0, text))
	}
	r.quietAfterData()
	if len(in.Messages()) != 8 || a.Stats().HeldHere != 8000 || a.Stats().Dropped != 12 {
		t.Errorf("%d messages are held, %+v", len(in.Messages()), a.Stats())
	}
	a.Release(8000)
	for {
		c, _ := r.want(typeSack)
		if s, _ := parseSack(c); s.rwnd() == 8000 {
			if s.cum() != r.tsn-13 {
				t.Errorf("acknowledged up to %d, want %d", s.cum(), r.tsn-13)
			}
			break
		}
	}
}

// quietAfterData waits until all that was sent has been treated, and delivered: a timer may answer the first
// HEARTBEAT while the reader is delivering, which reads the second when it has done so.
func (r *rawPeer) quietAfterData() {
	r.t.Helper()
	for range 2 {
		r.send(r.peerTag, appendChunk(nil, typeHeartbeat, 0, appendParam(nil, paramHeartbeatInfo, []byte("sync"))))
		r.want(typeHeartbeatAck)
	}
}

// RFC 9260 section 3.2: unknown chunks by their high bits.
func TestUnknownChunks(t *testing.T) {
	_, r, _, in := victim(t, Config{})
	for i, tc := range []struct {
		typ           chunkType
		skip, reports bool
	}{{0x3f, false, false}, {0x7f, false, true}, {0xbf, true, false}, {0xff, true, true}} {
		before := len(in.Messages())
		d := r.data(0, "behind it")
		r.send(r.peerTag, appendChunk(nil, tc.typ, 0, []byte{1, 2, 3}), d)
		if tc.reports {
			c, _ := r.want(typeError)
			if k := firstCause(c); k.Code != assoc.CauseUnrecognizedChunk || k.Info[0] != byte(tc.typ) {
				t.Errorf("type %x: %v", tc.typ, k)
			}
		}
		r.quietAfterData()
		if got := len(in.Messages()) > before; got != tc.skip {
			t.Errorf("%d: DATA behind a chunk of type %x is delivered: %v", i, tc.typ, got)
		}
		if !tc.skip {
			r.tsn--
		}
	}
}

// A State Cookie serves who got it, where it was got, as long as it lives.
func TestCookiesOfOthers(t *testing.T) {
	e := listen(t, "127.0.0.1", Config{Accept: func(*Assoc) assoc.Receiver { return assoctest.NewInbox() }})
	r := newRawPeer(t, e)
	r.send(0, r.init())
	c, _ := r.want(typeInitAck)
	i, _ := parseInit(c)
	params, _ := parseParams(i.params)
	cookie := slices.Clone(params.cookie)
	echo := func(change func(b []byte)) {
		b := slices.Clone(cookie)
		change(b)
		r.send(i.tag, appendChunk(nil, typeCookieEcho, 0, b))
	}
	echo(func(b []byte) { b[20] ^= 1 })
	echo(func(b []byte) { binary.BigEndian.PutUint64(b[8:], 1<<60) })
	r.send(i.tag+1, appendChunk(nil, typeCookieEcho, 0, cookie))
	r.src++
	r.send(i.tag, appendChunk(nil, typeCookieEcho, 0, cookie))
	r.src--
	echo(func([]byte) {})
	r.want(typeCookieAck)
	echo(func([]byte) {}) // case D: again
	r.want(typeCookieAck)
	if s := e.Stats(); s.Assocs != 1 || s.BadCookies != 4 {
		t.Errorf("%+v", s)
	}
}
