package transport

import "fmt"

// Kind is what carries the streams to a peer.
type Kind uint8

// The kinds of carriers.
const (
	TCP     Kind = iota // MPA on TCP (RFC 5044)
	SCTP                // the kernel's SCTP (RFC 5043)
	SCTPUDP             // SCTP in UDP, by package sctp (RFC 6951)
)

var kindNames = [...]string{TCP: "tcp", SCTP: "sctp", SCTPUDP: "sctp-udp"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("transport %d", uint8(k))
}

// ParseKind returns the Kind whose String is s. It fails for any other s, with an error
// that lists the kinds.
func ParseKind(s string) (Kind, error) {
	for k, name := range kindNames {
		if s == name {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("transport %q: tcp, sctp and sctp-udp are possible", s)
}

// Protocol returns the protocol of the kind's flows.
func (k Kind) Protocol() Protocol {
	switch k {
	case SCTP:
		return ProtoSCTP
	case SCTPUDP:
		return ProtoUDP
	}
	return ProtoTCP
}
