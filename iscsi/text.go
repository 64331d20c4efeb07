package iscsi

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// ErrText means that key=value text breaks its format or exceeds a limit (RFC 7143 section 6.1).
var ErrText = errors.New("iscsi: text is not key=value pairs")

// Pair is a key and its value.
type Pair struct{ Key, Value string }

// ParsePairs reads a logical text data segment. Empty strings between pairs, with which some
// initiators pad, are skipped. It fails with ErrText.
func ParsePairs(data []byte) ([]Pair, error) {
	if len(data) > MaxText {
		return nil, fmt.Errorf("%d bytes of text: %w", len(data), ErrText)
	}
	var all []Pair
	for rest := string(data); rest != ""; {
		var s string
		var ended bool
		s, rest, ended = strings.Cut(rest, "\x00")
		if s == "" && ended {
			continue
		}
		key, value, ok := strings.Cut(s, "=")
		limit := maxSimple
		if strings.HasPrefix(key, "CHAP_") {
			limit = maxValue
		}
		switch {
		case !ended || !ok || !isKey(key) || len(value) > limit:
			return nil, fmt.Errorf("%.40q: %w", s, ErrText)
		case len(all) == maxKeys:
			return nil, fmt.Errorf("more than %d pairs: %w", maxKeys, ErrText)
		}
		all = append(all, Pair{key, value})
	}
	return all, nil
}

// isKey reports whether s is a standard-label. iSERHelloRequired and iSCSIProtocolLevel, defined
// by later RFCs, begin with a small letter, and X#NodeArchitecture has a character of its own.
func isKey(s string) bool {
	if s == "" || len(s) > maxLabel {
		return false
	}
	for i, c := range []byte(s) {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || strings.IndexByte(".-+@_#", c) >= 0):
		default:
			return false
		}
	}
	return true
}

// AppendPair appends one pair.
func AppendPair(b []byte, key, value string) []byte {
	return append(append(append(append(b, key...), '='), value...), 0)
}

// errNumber means that a value is no number.
var errNumber = errors.New("not a number")

// parseNumber reads a numerical-value.
func parseNumber(s string) (uint64, error) {
	if h, ok := cutPrefix(s, "0x"); ok {
		if h == "" || strings.ContainsAny(h, "_+") {
			return 0, errNumber
		}
		return strconv.ParseUint(h, 16, 64)
	}
	if s == "" || s[0] < '0' || s[0] > '9' || len(s) > 1 && s[0] == '0' {
		return 0, errNumber
	}
	return strconv.ParseUint(s, 10, 64)
}

// cutPrefix cuts a prefix of a digit and a letter that may be large.
func cutPrefix(s, prefix string) (string, bool) {
	if len(s) < 2 || !strings.EqualFold(s[:2], prefix) {
		return s, false
	}
	return s[2:], true
}

// ParseBinary reads a hex-constant or base64-constant (RFC 7143 section 6.1). It fails with ErrText, and
// as the decoders do.
func ParseBinary(s string) ([]byte, error) {
	if h, ok := cutPrefix(s, "0x"); ok && h != "" {
		if len(h)%2 != 0 {
			h = "0" + h
		}
		return hex.DecodeString(h)
	}
	if b, ok := cutPrefix(s, "0b"); ok && b != "" {
		return base64.StdEncoding.DecodeString(b)
	}
	return nil, fmt.Errorf("%.20q: %w", s, ErrText)
}

// FormatBinary returns a hex-constant.
func FormatBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

// textBuffer collects a text that spans several PDUs (the C bit).
type textBuffer struct {
	b    []byte
	open bool // more follows
}

// add takes the data of one PDU. When the text is complete it returns its pairs.
func (t *textBuffer) add(data []byte, more bool) ([]Pair, error) {
	if len(t.b)+len(data) > MaxText {
		return nil, fmt.Errorf("more than %d bytes of text: %w", MaxText, ErrText)
	}
	t.open = more
	if more || len(t.b) > 0 {
		t.b = append(t.b, data...)
		data = t.b
	}
	if more {
		return nil, nil
	}
	t.b = nil
	return ParsePairs(data)
}

// IsName reports whether s is an iSCSI name: of one of the three types, not too long, and of the
// characters that names have after preparation (RFC 7143 section 4.2.7, RFC 3722), which all can be
// printed. What is beyond ASCII is compared as it comes.
func IsName(s string) bool {
	if len(s) > MaxName || !(strings.HasPrefix(s, "iqn.") || strings.HasPrefix(s, "eui.") || strings.HasPrefix(s, "naa.")) || len(s) == 4 || printable.Check(s) != nil {
		return false
	}
	for _, c := range s {
		if c < 0x80 && !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == ':' || c >= 'A' && c <= 'F') {
			return false
		}
		if c == 0xfffd || c >= 'A' && c <= 'F' && s[0] == 'i' {
			return false
		}
	}
	return true
}
