package sctp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// INITs that cannot be are refused with an ABORT that has their tag and says why,
// or not answered at all (RFC 9260 sections 3.3.2, 5.1 and 8.4).
func TestInitsThatAreRefused(t *testing.T) {
	good := initChunk{tag: 77, rwnd: 1 << 16, out: 4, in: 4, tsn: 1, params: appendAdaptation(nil, 1)}
	for name, tc := range map[string]struct {
		change func(i *initChunk)
		want   assoc.CauseCode
	}{
		"no outbound streams": {func(i *initChunk) { i.out = 0 }, assoc.CauseInvalidParameter},
		"no inbound streams":  {func(i *initChunk) { i.in = 0 }, assoc.CauseInvalidParameter},
		"small window":        {func(i *initChunk) { i.rwnd = 1499 }, assoc.CauseProtocolViolation},
		"host name":           {func(i *initChunk) { i.params = appendParam(i.params, paramHostName, []byte("host")) }, assoc.CauseUnresolvableAddress},
		"parameter too long":  {func(i *initChunk) { i.params = append(i.params, 0xc0, 6, 0xff, 0xff) }, assoc.CauseProtocolViolation},
		"no indication":       {func(i *initChunk) { i.params = nil }, assoc.CauseUserAbort},
		"other indication":    {func(i *initChunk) { i.params = appendAdaptation(nil, 2) }, assoc.CauseUserAbort},
		"tag 0":               {func(i *initChunk) { i.tag = 0 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := listen(t, "127.0.0.1", Config{Params: assoc.Params{Adaptation: 1}, Accept: to(assoctest.NewInbox())})
			r := newRawPeer(t, e)
			i := good
			tc.change(&i)
			r.send(0, i.append(nil, typeInit))
			if tc.want == 0 { // silence: the next INIT is answered first
				r.send(0, good.append(nil, typeInit))
				if c, p := r.recv().chunks(), 0; chunkType(c[0]) != typeInitAck {
					t.Errorf("%x %d", c, p)
				}
				return
			}
			if c, p := r.want(typeAbort); p.tag() != 77 || c.flags() != 0 || firstCause(c).Code != tc.want {
				t.Errorf("tag %d, flags %x, %v", p.tag(), c.flags(), firstCause(c))
			}
			if s := e.Stats(); s.Inits != 0 || s.Assocs != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// INIT ACKs that cannot be end Dial, for the reason that there is (RFC 9260
// section 3.3.3).
func TestInitAcksThatAreRefused(t *testing.T) {
	withCookie := appendParam(nil, paramCookie, []byte("cookie!!"))
	good := initChunk{tag: 77, rwnd: 1 << 16, out: 4, in: 4, tsn: 1, params: withCookie}
	for name, tc := range map[string]struct {
		change func(i *initChunk)
		want   assoc.CauseCode
	}{
		"no outbound streams": {func(i *initChunk) { i.out = 0 }, assoc.CauseInvalidParameter},
		"no inbound streams":  {func(i *initChunk) { i.in = 0 }, assoc.CauseInvalidParameter},
		"no cookie":           {func(i *initChunk) { i.params = nil }, assoc.CauseMissingParameter},
		"host name": {func(i *initChunk) {
			i.params = appendParam(i.params[:len(i.params):len(i.params)], paramHostName, []byte("host"))
		}, assoc.CauseUnresolvableAddress},
		"cookie too long": {func(i *initChunk) { i.params = appendParam(nil, paramCookie, make([]byte, 1200)) }, assoc.CauseOutOfResource},
		"tag 0":           {func(i *initChunk) { i.tag = 0 }, assoc.CauseInvalidParameter},
	} {
		t.Run(name, func(t *testing.T) {
			e := listen(t, "127.0.0.1", Config{})
			c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			failed := make(chan error)
			go func() {
				_, err := e.Dial(patient(t), c.LocalAddr().(*net.UDPAddr).AddrPort(), DialConfig{Receiver: to(assoctest.NewInbox())})
				failed <- err
			}()
			b := make([]byte, 2000)
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				t.Fatal(err)
			}
			p := packet(b[:n])
			first, _, _ := cutChunk(p.chunks())
			theirs, err := parseInit(first)
			if err != nil {
				t.Fatal(err)
			}
			i := good
			tc.change(&i)
			ack := packet(i.append(appendHeader(nil, p.dstPort(), p.srcPort(), theirs.tag), typeInitAck))
			ack.seal()
			c.WriteToUDPAddrPort(ack, from)
			if err := <-failed; !errors.Is(err, &assoc.AbortError{Local: true, Cause: assoc.Cause{Code: tc.want}}) {
				t.Error(err)
			}
		})
	}
}

// What an INIT ACK is refused for is told, to the peer and here, as it came, whatever is read
// into the packet's memory meanwhile.
func TestRefusedInitAckIsKept(t *testing.T) {
	var x tcb
	x.init(simSettings(0, rand.New(rand.NewPCG(1, 1))))
	x.associate(1)
	params := appendParam(appendParam(nil, paramCookie, []byte("cookie!!")), paramHostName, []byte("host"))
	i := initChunk{tag: 77, rwnd: 1 << 16, out: 4, in: 4, tsn: 1, params: params}
	read := i.append(nil, typeInitAck)
	x.input(2, read, false)
	for i := range read {
		read[i] = 0xaa
	}
	want := appendParam(nil, paramHostName, []byte("host"))
	var refused *assoc.AbortError
	if !errors.As(x.err, &refused) || !bytes.Equal(refused.Cause.Info, want) {
		t.Errorf("the association has ended by %+v", x.err)
	}
	if x.want&sendAbort == 0 || !bytes.Equal(x.abort.Info, want) {
		t.Errorf("the peer is told %x, not %x", x.abort.Info, want)
	}
}

// RFC 9260 sections 5.2.4 and 5.2.6: a State Cookie that comes after its life is
// stale; the peer begins again and gets another.
func TestStaleCookie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		start := time.Now()
		w.drop = func(_, _ netip.AddrPort, p packet) bool {
			return chunkType(p[headerLen]) == typeCookieEcho && time.Since(start) < 2*cookieLife
		}
		a := w.endpoint(addrA, Config{Params: assoc.Params{MaxInitRetrans: 50, RTOMax: 5 * time.Second}})
		b := w.endpoint(addrB, Config{Accept: to(bubbleInbox())})
		defer b.Close()
		defer a.Close()
		x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(bubbleInbox())})
		if err != nil {
			t.Fatal(err)
		}
		if s := b.Stats(); x.State() != "ESTABLISHED" || s.BadCookies != 1 || s.Assocs != 1 || s.Inits != 2 {
			t.Errorf("%s, %+v", x.State(), s)
		}
	})
}
