package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// CheckPeerName fails if a name cannot be a peer's. The error is the reason.
func CheckPeerName(s string) error { return checkName(s, MaxPeerName) }

// CheckPathName fails if a name cannot be a path's: one that is no address, which every path
// has as a name already. The error is the reason.
func CheckPathName(s string) error { return checkName(s, MaxPathName) }

// CheckExportName fails if a name cannot be an export's. The error is the reason.
func CheckExportName(s string) error { return checkName(s, MaxExportName) }

// checkName keeps names usable in file names, socket names, URLs, metric labels
// and IKE connection names without any quoting.
func checkName(s string, limit int) error {
	const rule = "letters, digits, dot, dash and underscore, starting with a letter or a digit"
	switch {
	case s == "":
		return errors.New("is empty; a name has " + rule)
	case len(s) > limit:
		return fmt.Errorf("has %d bytes; %d are allowed", len(s), limit)
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '-' && c != '_') {
			return errors.New("is not a valid name; allowed: " + rule)
		}
	}
	return nil
}

// CheckAllowed fails if an entry cannot be in an export's allow: it has to be the name of
// a peer, or an IKE identity behind AllowIdentity. The error is the reason.
func CheckAllowed(s string) error {
	if id, ok := strings.CutPrefix(s, AllowIdentity); ok {
		return checkIdentity(id)
	}
	if err := CheckPeerName(s); err != nil {
		return fmt.Errorf("%w; an IKE identity is written with %s before it", err, AllowIdentity)
	}
	return nil
}

// CheckCRLURI fails if a text cannot name a certificate revocation list.
func CheckCRLURI(s string) error { return checkURI(s, "http", "https", "file") }

// CheckOCSPURI fails if a text cannot name an OCSP responder.
func CheckOCSPURI(s string) error { return checkURI(s, "http", "https") }

func checkURI(s string, schemes ...string) error {
	u, err := url.Parse(s)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Host == "" && !strings.HasPrefix(u.Path, "/") || u.User != nil {
		return fmt.Errorf("is not a URI that can be used; write %s:// and where it is", strings.Join(schemes, ":// or "))
	}
	return nil
}

// checkIdentity keeps IKE identities to those of RFC 7146 3.1.
func checkIdentity(s string) error {
	if err := auth.CheckIdentity(s); err != nil {
		return fmt.Errorf("cannot be an IKE identity: %w", err)
	}
	return nil
}

func checkPath(s string) error {
	if s == "" || strings.ContainsRune(s, 0) {
		return errors.New("is not a file name")
	}
	return nil
}

func checkVICI(s string) error {
	if rest, ok := strings.CutPrefix(s, "unix://"); ok && strings.HasPrefix(rest, "/") {
		return nil
	}
	return errors.New("is not a VICI socket; write unix:// and an absolute path, such as unix:///var/run/charon.vici")
}

// ParseAddr reads an IP address that can be a peer's: unicast and without zone. It
// fails at any other.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	a = a.Unmap()
	if a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%q is not the unicast address of one host", s)
	}
	return a, nil
}

var sizeUnits = []struct {
	suffix string
	shift  uint
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

// ParseSize reads an amount of memory: a number of bytes, or one followed by KiB, MiB,
// GiB or TiB. It fails at any other text, and at more than an int64 holds.
func ParseSize(s string) (int64, error) {
	shift := uint(0)
	digits := s
	for _, u := range sizeUnits {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, shift = strings.TrimSpace(d), u.shift
			break
		}
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v < 0 || v > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size; write a number of bytes or one with KiB, MiB, GiB or TiB", s)
	}
	return v << shift, nil
}

// FormatSize is the shortest exact text that ParseSize reads back.
func FormatSize(v int64) string {
	for _, u := range sizeUnits {
		if v != 0 && v%(1<<u.shift) == 0 {
			return strconv.FormatInt(v>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(v, 10)
}

// FormatDuration is the shortest text that time.ParseDuration reads back.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
