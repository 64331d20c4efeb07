package mad

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// GUID is the 64-bit identifier of a port, a node or a vport (section 4.1.1).
type GUID uint64

// String returns the GUID as opensm and infiniband-diags print it.
func (g GUID) String() string { return fmt.Sprintf("%#016x", uint64(g)) }

// LID is a local identifier of a port or, from [FirstMulticastLID] on, of a multicast group (section 4.1.3).
type LID uint16

// The ranges of LIDs, and those with a meaning of their own (section 4.1.3).
const (
	LIDReserved       LID = 0
	FirstMulticastLID LID = 0xc000
	LastMulticastLID  LID = 0xfffe
	LIDPermissive     LID = 0xffff // any port
)

// Unicast reports whether l is the LID of one port.
func (l LID) Unicast() bool { return l != LIDReserved && l < FirstMulticastLID }

// GID is the 128-bit identifier of a port or of a multicast group (section 4.1.1).
type GID [16]byte

// LinkLocalPrefix is the upper half of GIDs in a subnet that has no other prefix (section 4.1.1).
const LinkLocalPrefix uint64 = 0xfe80_0000_0000_0000

// MakeGID returns the GID of a port: the subnet's prefix and the port's GUID.
func MakeGID(prefix uint64, guid GUID) (g GID) {
	binary.BigEndian.PutUint64(g[:8], prefix)
	binary.BigEndian.PutUint64(g[8:], uint64(guid))
	return g
}

// Prefix returns the upper half of a unicast GID.
func (g GID) Prefix() uint64 { return binary.BigEndian.Uint64(g[:8]) }

// GUID returns the lower half of a unicast GID.
func (g GID) GUID() GUID { return GUID(binary.BigEndian.Uint64(g[8:])) }

// Multicast reports whether g names a multicast group.
func (g GID) Multicast() bool { return g[0] == 0xff }

// String returns the GID in the notation of IPv6 addresses.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// Key is a 64-bit secret: M_Key, SM_Key or SA_Key (section 14.2.4, 14.4.7, 15.4.1). It prints as [secret], except where
// it is in an unexported field: there package fmt passes over its methods.
type Key uint64

const redacted = "[secret]"

// Equal compares two keys in a time that does not depend on them.
func (k Key) Equal(other Key) bool {
	var a, b [8]byte
	binary.BigEndian.PutUint64(a[:], uint64(k))
	binary.BigEndian.PutUint64(b[:], uint64(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String returns "[secret]".
func (k Key) String() string { return redacted }

// Format writes "[secret]" for each verb.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue returns "[secret]".
func (k Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]". It never fails.
func (k Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// ServiceKey is the 128-bit secret of a ServiceRecord: who changes or deletes the record needs it (section 15.2.5.14).
// It prints as [secret], with the exception that [Key] has.
type ServiceKey [16]byte

// Equal compares two keys in a time that does not depend on them.
func (k ServiceKey) Equal(other ServiceKey) bool {
	return subtle.ConstantTimeCompare(k[:], other[:]) == 1
}

// String returns "[secret]".
func (k ServiceKey) String() string { return redacted }

// Format writes "[secret]" for each verb.
func (k ServiceKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue returns "[secret]".
func (k ServiceKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]". It never fails.
func (k ServiceKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// NameLen is the length in bytes of a [Name].
const NameLen = 64

// Name is a text of the wire: a service's name (section 15.2.5.14) or a node's description (14.2.5.2). A zero byte ends it.
type Name [NameLen]byte

// ErrName means that a text is no name.
var ErrName = errors.New("mad: not a name")

// MakeName returns text as a name. It fails with [ErrName] if text is longer than 63 bytes or can't be printed.
func MakeName(text string) (n Name, err error) {
	if len(text) >= NameLen {
		return n, fmt.Errorf("name of %d bytes, at most %d are possible: %w", len(text), NameLen-1, ErrName)
	}
	if err := printable.Check(text); err != nil {
		return n, fmt.Errorf("%q: %w: %w", text, err, ErrName)
	}
	copy(n[:], text)
	return n, nil
}

func (n *Name) text() string {
	text, _, _ := strings.Cut(string(n[:]), "\x00")
	return text
}

// Text returns the name. It fails with [ErrName] if the name can't be printed as it is, or if anything follows its end.
func (n *Name) Text() (string, error) {
	text := n.text()
	if err := printable.Check(text); err != nil {
		return "", fmt.Errorf("%q: %w: %w", text, err, ErrName)
	}
	if [NameLen]byte(*n) != [NameLen]byte(padded(text)) {
		return "", fmt.Errorf("%q has more bytes behind its end: %w", text, ErrName)
	}
	return text, nil
}

func padded(text string) (n Name) {
	copy(n[:], text)
	return n
}

// String returns the name for people, with U+FFFD in place of what can't be printed.
func (n Name) String() string { return printable.Text(n.text()) }
