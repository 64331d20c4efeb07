package invite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// A message is its kind, the length of its body in two bytes (big endian), and the body.
type kind byte

const (
	kindHello   kind = 1
	kindAnswer  kind = 2
	kindOpening kind = 3
	kindSealed  kind = 4 // with one of those from kindDetails on in it
	kindRefusal kind = 5 // of a Hello; nothing authenticates it

	kindDetails kind = 16
	kindConfirm kind = 17
	kindWritten kind = 18
	kindDone    kind = 19
	kindBye     kind = 20
	kindAbort   kind = 21
	kindReady   kind = 22
)

const (
	headerSize = 3
	pointSize  = 32 // of X25519
	nonceSize  = 32
	macSize    = 32

	wireVersion = 1
)

// errMalformed means that a message is none of this protocol.
var errMalformed = errors.New("malformed message")

// hello is the joiner's first message.
type hello struct {
	id         [idSize]byte
	commitment [32]byte
	mac        [macSize]byte
}

func (h hello) appendSigned(b []byte) []byte {
	b = append(b, wireVersion)
	b = append(b, h.id[:]...)
	return append(b, h.commitment[:]...)
}

func (h hello) append(b []byte) []byte { return append(h.appendSigned(b), h.mac[:]...) }

func parseHello(b []byte) (h hello, err error) {
	r := reader{b: b}
	version := r.byte()
	copy(h.id[:], r.take(idSize))
	copy(h.commitment[:], r.take(len(h.commitment)))
	copy(h.mac[:], r.take(macSize))
	if !r.complete() || version != wireVersion {
		return hello{}, errMalformed
	}
	return h, nil
}

// share is a public key and a nonce: the body of Answer and Opening.
type share struct {
	point [pointSize]byte
	nonce [nonceSize]byte
	mac   [macSize]byte
}

func (s share) appendSigned(b []byte) []byte {
	b = append(b, s.point[:]...)
	return append(b, s.nonce[:]...)
}

func (s share) append(b []byte) []byte { return append(s.appendSigned(b), s.mac[:]...) }

func parseShare(b []byte) (s share, err error) {
	r := reader{b: b}
	copy(s.point[:], r.take(pointSize))
	copy(s.nonce[:], r.take(nonceSize))
	copy(s.mac[:], r.take(macSize))
	if !r.complete() {
		return share{}, errMalformed
	}
	return s, nil
}

// details are what a host says of itself, and the addresses of the connection as it sees them.
type details struct {
	host         Host
	mine, theirs netip.Addr
}

func (d details) append(b []byte) []byte {
	b = appendHost(b, d.host)
	b = appendAddr(b, d.mine)
	return appendAddr(b, d.theirs)
}

func parseDetails(b []byte) (details, error) {
	r := reader{b: b}
	d := details{host: r.host(), mine: r.addr(), theirs: r.addr()}
	if !r.complete() || !isHost(d.mine) || !isHost(d.theirs) {
		return details{}, errMalformed
	}
	return d, d.host.check()
}

func appendHost(b []byte, h Host) []byte {
	for _, s := range []string{h.Name, h.Identity, h.Profile, h.Transport} {
		b = append(b, byte(min(len(s), maxText)))
		b = append(b, s[:min(len(s), maxText)]...)
	}
	b = binary.BigEndian.AppendUint16(b, h.Port)
	return binary.BigEndian.AppendUint16(b, h.UDPPort)
}

// check fails at names that people cannot be shown. What they mean is for whoever writes the peer.
func (h Host) check() error {
	for what, s := range map[string]string{"name": h.Name, "identity": h.Identity, "profile": h.Profile, "transport": h.Transport} {
		if s == "" && what != "name" {
			continue
		}
		if err := printable.Check(s); err != nil || len(s) > maxText {
			return fmt.Errorf("%w: the other host's %s cannot be shown", errMalformed, what)
		}
	}
	if h.Port == 0 {
		return fmt.Errorf("%w: no port of streams", errMalformed)
	}
	return nil
}

func appendAddr(b []byte, a netip.Addr) []byte {
	s := a.AsSlice()
	return append(append(b, byte(len(s))), s...)
}

// reader takes fields off a message. Once one is missing, all that follow are zero, and
// complete is false.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) text() string { return string(r.take(int(r.byte()))) }

func (r *reader) addr() netip.Addr {
	n := int(r.byte())
	if n != 4 && n != 16 {
		r.bad = true
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(r.take(n))
	return a
}

func (r *reader) host() Host {
	return Host{Name: r.text(), Identity: r.text(), Profile: r.text(), Transport: r.text(), Port: r.uint16(), UDPPort: r.uint16()}
}

// complete reports whether all fields were there, and nothing behind them.
func (r *reader) complete() bool { return !r.bad && len(r.b) == 0 }
