package ipsec

import "fmt"

// Mode is that of ESP.
type Mode uint8

const (
	ModeTunnel Mode = iota
	ModeTransport
)

func (m Mode) String() string {
	switch m {
	case ModeTunnel:
		return "tunnel"
	case ModeTransport:
		return "transport"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// ParseMode reads "tunnel" or "transport"; an empty string is tunnel.
func ParseMode(s string) (Mode, error) {
	switch s {
	case "", "tunnel":
		return ModeTunnel, nil
	case "transport":
		return ModeTransport, nil
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
