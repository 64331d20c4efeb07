package profile

import "fmt"

// Mode is that of ESP (RFC 4301 section 3.2).
type Mode uint8

const (
	Tunnel    Mode = iota // whole IP packets
	Transport             // what is in them
)

func (m Mode) String() string {
	switch m {
	case Tunnel:
		return "tunnel"
	case Transport:
		return "transport"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// ParseMode reads "tunnel" or "transport"; an empty string is tunnel. It fails at any
// other.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "", "tunnel":
		return Tunnel, nil
	case "transport":
		return Transport, nil
	}
	return 0, fmt.Errorf("IPsec mode %q: want tunnel or transport", s)
}

// MarshalText writes the mode as its name. It does not fail.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText writes. It fails as ParseMode does.
func (m *Mode) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMode(string(b))
	return err
}
