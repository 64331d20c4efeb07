package sctp

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"
)

// cookie is a State Cookie (RFC 9260 section 5.1.3): everything needed to make an
// association, so that an INIT leaves no state. It is followed by its HMAC, which proves
// that what comes back is what was sent.
type cookie struct {
	created time.Duration // on the endpoint's clock
	life    time.Duration

	peer
	localTag            uint32
	localTSN, peerTSN   uint32 // the initial ones
	localTie, peerTie   uint32 // RFC 9260 section 5.2.2
	peerRwnd            uint32
	localPort, peerPort uint16
	addr                netip.Addr // where the INIT came from
}

const (
	cookieBodyLen = 16 + 28 + 8 + 16 + 4 // as append writes it, a multiple of 4
	cookieMACLen  = sha256.Size
	cookieLen     = cookieBodyLen + cookieMACLen
)

func (c *cookie) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(c.created))
	b = binary.BigEndian.AppendUint64(b, uint64(c.life))
	for _, v := range [...]uint32{c.localTag, c.tag, c.localTSN, c.peerTSN, c.localTie, c.peerTie, c.peerRwnd} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, v := range [...]uint16{c.out, c.in, c.localPort, c.peerPort} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	family := byte(4)
	if c.addr.Is6() {
		family = 6
	}
	a := c.addr.As16()
	return append(append(b, a[:]...), family, 0, 0, 0)
}

func parseCookie(b []byte) (c cookie) {
	c.created = time.Duration(binary.BigEndian.Uint64(b))
	c.life = time.Duration(binary.BigEndian.Uint64(b[8:]))
	for i, v := range [...]*uint32{&c.localTag, &c.tag, &c.localTSN, &c.peerTSN, &c.localTie, &c.peerTie, &c.peerRwnd} {
		*v = binary.BigEndian.Uint32(b[16+4*i:])
	}
	for i, v := range [...]*uint16{&c.out, &c.in, &c.localPort, &c.peerPort} {
		*v = binary.BigEndian.Uint16(b[44+2*i:])
	}
	c.addr = netip.AddrFrom16([16]byte(b[52:68]))
	if b[68] == 4 {
		c.addr = c.addr.Unmap()
	}
	return c
}

// signer makes and verifies State Cookies. Its key changes now and then (RFC 9260 section
// 5.1.3: "the secret key ... SHOULD be changed reasonably frequently"); cookies of the
// previous key are still accepted.
type signer struct {
	random func([]byte)

	mu      sync.Mutex  // guards the fields below it; innermost
	key     [2][32]byte // the current one and the one before
	changed time.Duration
	ready   bool
}

func (s *signer) rotateLocked(now time.Duration) {
	if s.ready && now-s.changed < cookieKeyLife {
		return
	}
	s.key[1] = s.key[0]
	s.random(s.key[0][:])
	if !s.ready {
		s.random(s.key[1][:])
	}
	s.ready, s.changed = true, now
}

func (s *signer) sign(now time.Duration, c *cookie) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotateLocked(now)
	b := c.append(make([]byte, 0, cookieLen))
	m := hmac.New(sha256.New, s.key[0][:])
	m.Write(b)
	return m.Sum(b)
}

// open returns the cookie in b if it was signed here.
func (s *signer) open(now time.Duration, b []byte) (c cookie, ok bool) {
	if len(b) != cookieLen {
		return c, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotateLocked(now)
	for i := range s.key {
		m := hmac.New(sha256.New, s.key[i][:])
		m.Write(b[:cookieBodyLen])
		var sum [cookieMACLen]byte
		if subtle.ConstantTimeCompare(m.Sum(sum[:0]), b[cookieBodyLen:]) == 1 {
			return parseCookie(b), true
		}
	}
	return c, false
}
