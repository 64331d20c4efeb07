package charon

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// SA is an IKE SA and its children, as charon lists it.
type SA struct {
	Peer       string     `json:"peer"` // name of the connection, which is the peer's
	UniqueID   uint32     `json:"unique_id"`
	Version    int        `json:"version"` // of IKE
	State      string     `json:"state"`   // ESTABLISHED, CONNECTING, ...
	LocalHost  netip.Addr `json:"local_host"`
	RemoteHost netip.Addr `json:"remote_host"`
	LocalPort  uint16     `json:"local_port"`
	RemotePort uint16     `json:"remote_port"`
	// LocalID and RemoteID are what IKE has authenticated once State is
	// ESTABLISHED.
	LocalID     string    `json:"local_id"`
	RemoteID    string    `json:"remote_id"`
	Initiator   bool      `json:"initiator"` // this host began it
	SPI         [2]string `json:"spi"`       // initiator's, responder's
	Encryption  string    `json:"encryption"`
	Integrity   string    `json:"integrity,omitempty"`
	PRF         string    `json:"prf"`
	DHGroup     string    `json:"dh_group"`
	Established time.Time `json:"established"`
	Rekey       time.Time `json:"rekey,omitzero"`  // when it will be rekeyed; zero: never
	Reauth      time.Time `json:"reauth,omitzero"` // when its peers will authenticate again; zero: never
	Gateway     bool      `json:"gateway"`         // ESP ends elsewhere than at the peer's own address
	Children    []Child   `json:"children"`
}

// Algorithms are those of IKE in one word, such as
// "AES_GCM_16-128/PRF_HMAC_SHA2_256/ECP_256".
func (s *SA) Algorithms() string { return joinNames(s.Encryption, s.Integrity, s.PRF, s.DHGroup) }

// Algorithms are those of ESP in one word, such as "AES_CBC-128/HMAC_SHA2_256_128".
func (c *Child) Algorithms() string { return joinNames(c.Encryption, c.Integrity, c.DHGroup) }

func joinNames(names ...string) string {
	return strings.Join(slices.DeleteFunc(names, func(s string) bool { return s == "" }), "/")
}

// Child is a child SA (RFC 3723: IKE Phase 2 SA), a pair of ESP SAs.
type Child struct {
	Name       string     `json:"name"` // as configured, such as beta-out
	UniqueID   uint32     `json:"unique_id"`
	ReqID      uint32     `json:"reqid"`
	State      string     `json:"state"` // INSTALLED and REKEYING ones carry traffic
	Mode       string     `json:"mode"`
	Protocol   string     `json:"protocol"`
	Encap      bool       `json:"encap"` // ESP in UDP
	SPIIn      string     `json:"spi_in"`
	SPIOut     string     `json:"spi_out"`
	Encryption string     `json:"encryption"`
	KeyBits    int        `json:"key_bits,omitempty"`
	Integrity  string     `json:"integrity,omitempty"`
	DHGroup    string     `json:"dh_group,omitempty"` // PFS group, if the child has had an exchange of its own
	ESN        bool       `json:"esn"`
	BytesIn    uint64     `json:"bytes_in"`
	PacketsIn  uint64     `json:"packets_in"`
	BytesOut   uint64     `json:"bytes_out"`
	PacketsOut uint64     `json:"packets_out"`
	Installed  time.Time  `json:"installed"`
	Rekey      time.Time  `json:"rekey"` // when it will be rekeyed; zero: never
	Expires    time.Time  `json:"expires"`
	LocalTS    []Selector `json:"local_ts"`
	RemoteTS   []Selector `json:"remote_ts"`
	// Label is the security label that IKE has negotiated (RFC 9478), "" if there is none. What was negotiated may be
	// unprintable: who shows it sees to that.
	Label string `json:"label,omitempty"`
	Flows int    `json:"flows"` // streams of this process that it carries
}

// StateInstalled and StateRekeying are the states of a child that carries
// traffic. After a rekey the old child stays listed for a while, in other states.
const (
	StateInstalled = "INSTALLED"
	StateRekeying  = "REKEYING"
)

// IsInstalled reports whether the child carries traffic.
func (c *Child) IsInstalled() bool { return c.State == StateInstalled || c.State == StateRekeying }

// IsAlive reports whether the IKE SA has authenticated its peer and is not on its way
// out.
func (sa *SA) IsAlive() bool { return sa.State == "ESTABLISHED" || sa.State == "REKEYING" }
