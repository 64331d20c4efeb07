package profile

import "fmt"

// Mode is that of ESP.
type Mode uint8

const (
	Tunnel Mode = iota
	Transport
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

// ParseMode reads "tunnel" or "transport"; an empty string is tunnel.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "", "tunnel":
		return Tunnel, nil
	case "transport":
		return Transport, nil
	}
	return 0, fmt.Errorf("IPsec mode %q: want tunnel or transport", s)
}

// MarshalText writes the mode as its name.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (m *Mode) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMode(string(b))
	return err
}
