package block

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// ID is the UUID of a disk, of a life of it, or of a client that has it attached.
type ID [16]byte

// NewID returns a random UUID (RFC 9562 5.4).
func NewID() (id ID) {
	rand.Read(id[:])
	return id.version(4)
}

// NamedID is the UUID for a name: the same for the same parts (RFC 9562 5.8).
func NamedID(parts ...any) ID {
	sum := sha256.Sum256(fmt.Appendln([]byte("ironwarp "), parts...))
	return ID(sum[:16]).version(8)
}

func (id ID) version(v byte) ID {
	id[6], id[8] = id[6]&0x0f|v<<4, id[8]&0x3f|0x80
	return id
}

// IsZero reports whether the UUID is the nil UUID, which names nothing.
func (id ID) IsZero() bool { return id == ID{} }

func (id ID) String() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(strings.ReplaceAll(string(text), "-", ""))
	if err != nil || len(b) != len(id) {
		return fmt.Errorf("%.60q is not a UUID", text)
	}
	*id = ID(b)
	return nil
}

// Identity identifies the disk of a storage, and its life.
type Identity struct {
	Disk ID // stays with the storage
	// Life changes whenever completed writes that no flush covered may have been
	// lost.
	Life ID
}
