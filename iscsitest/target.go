package iscsitest

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
)

// Transport is what carries iSCSI.
type Transport uint8

// The transports.
const (
	TCP           Transport = iota
	ISER                    // RFC 7145 as RDMA-CM's users start it: in RDMA mode from the first byte
	ISERStreaming           // RFC 7145 section 5.1: login over TCP, then RDMA
	RDMA                    // no iSCSI: what package rdmatest judges
	numTransports
)

var transportNames = [numTransports]string{"tcp", "iser", "iser-streaming", "rdma"}

// String returns the name of the transport.
func (t Transport) String() string { return transportNames[t] }

// MarshalText returns the name of the transport. It never fails.
func (t Transport) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// DefaultPort is the port of iSCSI (RFC 7143 section 14).
const DefaultPort = 3260

// DefaultInitiator is what initiators are called if nobody says otherwise. The names of further ones of a case
// begin with it.
const DefaultInitiator = "iqn.2026-01.org.ironwarp:tester"

// ErrTarget means that what is to be tested is not described as it has to be.
var ErrTarget = errors.New("iscsitest")

// Target is what is tested.
type Target struct {
	Address   string // host:port
	Name      string // its iSCSI name
	LUN       uint16 // below 16384
	Over      Transport
	Initiator string // "": DefaultInitiator
	// CHAP is what it knows the initiator by, if it asks for that, and its own name and secret if it has to
	// prove itself.
	CHAP *chap.Credentials
}

// ParseURL reads a target's URL, as libiscsi and QEMU have them: iscsi://HOST[:PORT]/IQN/LUN, with iser or
// iser-streaming in place of iscsi for those transports. There are no secrets in it. It fails with ErrTarget.
func ParseURL(s string) (Target, error) {
	bad := func(why string) (Target, error) {
		return Target{}, fmt.Errorf("%w: %q: %s; a target is iscsi://HOST[:PORT]/IQN/LUN", ErrTarget, s, why)
	}
	u, err := url.Parse(s)
	if err != nil {
		return bad("this is no URL")
	}
	var t Target
	switch u.Scheme {
	case "iscsi":
	case "iser":
		t.Over = ISER
	case "iser-streaming":
		t.Over = ISERStreaming
	default:
		return bad("it begins with neither iscsi:// nor iser:// nor iser-streaming://")
	}
	if u.User != nil {
		return bad("a user or a secret does not belong there")
	}
	port := u.Port()
	if port == "" {
		port = strconv.Itoa(DefaultPort)
	}
	if u.Hostname() == "" {
		return bad("it has no host")
	}
	t.Address = net.JoinHostPort(u.Hostname(), port)
	name, lun, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if !ok || !iscsi.IsName(name) {
		return bad("it has no iSCSI name, or no LUN")
	}
	n, err := strconv.ParseUint(lun, 10, 14)
	if err != nil {
		return bad("its LUN is no number below 16384")
	}
	t.Name, t.LUN = name, uint16(n)
	return t, nil
}

// URL returns what ParseURL reads.
func (t *Target) URL() string {
	return fmt.Sprintf("%s://%s/%s/%d", [...]string{"iscsi", "iser", "iser-streaming"}[t.Over], t.Address, t.Name, t.LUN)
}

// initiator is the name of initiator number n of a case, 0 for the first.
func (t *Target) initiator(n int) string {
	name := t.Initiator
	if name == "" {
		name = DefaultInitiator
	}
	if n > 0 {
		name += strconv.Itoa(n)
	}
	return name
}
