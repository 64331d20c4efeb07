package auth

import (
	"errors"
	"net/mail"
	"net/netip"
	"regexp"
	"strings"
)

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

// CheckIdentity allows the identification types of RFC 7146 3.1 e and f: an address,
// ID_FQDN and ID_RFC822_ADDR (in IKEv1 ID_USER_FQDN). ID_KEY_ID must not be used,
// distinguished names should not, subnets and ranges are too broad. It returns nil for
// one that is allowed.
func CheckIdentity(id string) error {
	switch {
	case id == "":
		return errors.New("it is empty")
	case strings.HasPrefix(id, "@"):
		return errors.New("a name goes without @; ID_KEY_ID must not be used (RFC 7146 3.1)")
	case strings.ContainsAny(id, "%*"):
		return errors.New("a wildcard is no identity")
	case strings.Contains(id, "="):
		return errors.New("distinguished names should not be used (RFC 7146 3.1)")
	case strings.ContainsAny(id, "/: ,") && !isAddr(id):
		return errors.New("an address, a host name or user@host is needed; subnets, ranges and key ids are not possible (RFC 7146 3.1)")
	}
	if a, err := netip.ParseAddr(id); err == nil {
		if a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" { // strongSwan takes 0.0.0.0 for anybody
			return errors.New("it is not one host's address, and would stand for any")
		}
		return nil
	}
	if strings.Contains(id, "@") {
		if a, err := mail.ParseAddress(id); err != nil || a.Address != id {
			return errors.New("not of the form user@host")
		}
		return nil
	}
	if !hostName.MatchString(id) {
		return errors.New("an address, a host name or user@host is needed")
	}
	return nil
}

func isAddr(s string) bool { a, err := netip.ParseAddr(s); return err == nil && a.Zone() == "" }

// SameIdentity compares identities: addresses by value, names without case.
func SameIdentity(a, b string) bool {
	x, err1 := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	if err1 == nil && err2 == nil {
		return x.Unmap() == y.Unmap()
	}
	return err1 != nil && err2 != nil && strings.EqualFold(a, b)
}
