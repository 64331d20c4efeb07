package invite

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Host is what a host says of itself.
type Host struct {
	Name      string // a name that the other may give it
	Identity  string // what IKE authenticates it as; "": its address
	Profile   string // of IPsec; "": the default one. The inviter's counts
	Transport string // of streams; "": the default one. The inviter's counts
	Port      uint16 // that it listens on for streams
	UDPPort   uint16 // and for SCTP in UDP
}

// Token is an invitation as a person carries it to the other host. It is a secret: no way of formatting
// it shows it but Reveal.
type Token struct {
	Expires   time.Time // to the second
	Addresses []netip.Addr
	Port      uint16 // of TCP, at which the inviter awaits the joiner
	Inviter   Host

	id  [idSize]byte
	key **[keySize]byte // behind two pointers, which package fmt does not follow
}

const (
	idSize  = 8
	keySize = 16
	sumSize = 4

	tokenVersion = 1
	tokenPrefix  = "iw1"
)

// Errors of ParseToken.
var (
	ErrToken        = errors.New("not a token of an invitation")
	ErrTokenVersion = errors.New("token of another version of ironwarp")
)

// NewToken draws an invitation's id and key. It fails at addresses, ports or names that no token can have.
func NewToken(expires time.Time, at []netip.Addr, port uint16, inviter Host) (Token, error) {
	t := Token{Expires: expires.Truncate(time.Second), Addresses: at, Port: port, Inviter: inviter}
	key := new([keySize]byte)
	t.key = &key
	rand.Read(t.id[:])
	rand.Read(key[:])
	return t, t.check()
}

// check fails unless everything in the token can be what it has to be.
func (t Token) check() error {
	if len(t.Addresses) == 0 || len(t.Addresses) > MaxAddresses {
		return fmt.Errorf("%w: it has %d addresses, and needs 1 to %d", ErrToken, len(t.Addresses), MaxAddresses)
	}
	for _, a := range t.Addresses {
		if !isHost(a) || a.IsLinkLocalUnicast() { // on another host it is on no link, or on another
			return fmt.Errorf("%w: its address %s is not that of one host", ErrToken, a)
		}
	}
	if s := t.Expires.Unix(); t.Port == 0 || s <= 0 || s > 1<<32-1 {
		return fmt.Errorf("%w: it has no port, or ends at no time", ErrToken)
	}
	return t.Inviter.check()
}

// isHost reports whether an address can be that of one host.
func isHost(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// Reveal is the token's text: letters and digits, of which neither case nor spaces, line ends or dashes
// between them matter.
func (t Token) Reveal() string {
	b := appendToken(nil, t)
	return tokenPrefix + strings.ToLower(encoding.EncodeToString(b))
}

const redacted = "[secret]"

// String does not show the token.
func (t Token) String() string { return redacted }

// GoString does not show it either.
func (t Token) GoString() string { return redacted }

// Format does not, with any verb.
func (t Token) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue does not.
func (t Token) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText does not, and never fails.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// ParseToken reads a token. It fails with ErrToken at any other text, and at one with a mistake;
// with ErrTokenVersion at one of another version. The error does not show the text.
func ParseToken(text string) (Token, error) {
	if len(text) > 2*maxToken {
		return Token{}, fmt.Errorf("%w: %d characters are too many", ErrToken, len(text))
	}
	text = strings.Map(func(r rune) rune {
		if strings.ContainsRune(" \t\r\n-", r) {
			return -1
		}
		return r
	}, strings.ToUpper(text))
	rest, ok := strings.CutPrefix(text, strings.ToUpper(tokenPrefix))
	switch {
	case !ok && strings.HasPrefix(text, "IW"):
		return Token{}, fmt.Errorf("%w: use the same version on both hosts", ErrTokenVersion)
	case !ok:
		return Token{}, fmt.Errorf("%w: it does not begin with %s; copy all of what `ironwarp peer invite` has printed", ErrToken, tokenPrefix)
	case len(rest) > maxToken:
		return Token{}, fmt.Errorf("%w: %d characters are too many", ErrToken, len(rest))
	}
	b, err := encoding.DecodeString(rest)
	if err != nil || encoding.EncodeToString(b) != rest { // there is one way to write a token
		return Token{}, fmt.Errorf("%w: it has a character that no token has, or an end is missing; copy all of it", ErrToken)
	}
	return parseToken(b)
}

func appendToken(b []byte, t Token) []byte {
	start := len(b)
	b = append(b, tokenVersion)
	b = append(b, t.id[:]...)
	b = append(b, (**t.key)[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(t.Expires.Unix()))
	b = binary.BigEndian.AppendUint16(b, t.Port)
	b = append(b, byte(len(t.Addresses)))
	for _, a := range t.Addresses {
		b = appendAddr(b, a)
	}
	b = appendHost(b, t.Inviter)
	sum := sha256.Sum256(b[start:])
	return append(b, sum[:sumSize]...)
}

func parseToken(b []byte) (Token, error) {
	if len(b) < 1+sumSize {
		return Token{}, fmt.Errorf("%w: an end is missing; copy all of it", ErrToken)
	}
	body := b[:len(b)-sumSize]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:sumSize], b[len(body):]) {
		return Token{}, fmt.Errorf("%w: it has a mistake, or an end is missing; copy all of it", ErrToken)
	}
	if body[0] != tokenVersion {
		return Token{}, fmt.Errorf("%w: use the same version on both hosts", ErrTokenVersion)
	}
	r := reader{b: body[1:]}
	var t Token
	key := new([keySize]byte)
	t.key = &key
	copy(t.id[:], r.take(idSize))
	copy(key[:], r.take(keySize))
	t.Expires = time.Unix(int64(r.uint32()), 0)
	t.Port = r.uint16()
	n := int(r.byte())
	if n > MaxAddresses {
		return Token{}, fmt.Errorf("%w: it has %d addresses; allowed: %d", ErrToken, n, MaxAddresses)
	}
	for range n {
		t.Addresses = append(t.Addresses, r.addr())
	}
	t.Inviter = r.host()
	if !r.complete() {
		return Token{}, fmt.Errorf("%w: its parts do not fit", ErrToken)
	}
	if err := t.check(); err != nil {
		return Token{}, err
	}
	return t, nil
}

// isOf reports whether two tokens say the same of the inviter.
func (t Token) isOf(h Host, at netip.Addr) bool {
	return t.Inviter == h && slices.Contains(t.Addresses, at)
}
