package api

import "time"

// Reasons of an Error that is about IPsec.
const (
	ReasonNoProposal    = "no_proposal"
	ReasonAuthFailed    = "auth_failed"
	ReasonSelectors     = "traffic_selectors"
	ReasonUnreachable   = "unreachable"
	ReasonNegotiation   = "negotiation"
	ReasonCertExpired   = "cert_expired"
	ReasonCertRevoked   = "cert_revoked"
	ReasonCertUntrusted = "cert_untrusted"
	ReasonCertNotYet    = "cert_not_yet_valid"
	ReasonCertIdentity  = "cert_identity"
	ReasonCertStatus    = "cert_status_unknown"
	ReasonClock         = "clock"
	ReasonSecret        = "secret_file"
	ReasonCredential    = "credential"
	ReasonProfile       = "profile"
	ReasonDataPlane     = "data_plane"
	ReasonGuard         = "guard"
	ReasonStrongSwan    = "strongswan" // it does not run, does not answer, is too old
	ReasonNotCovered    = "not_covered"
	ReasonIdentity      = "wrong_identity"
	ReasonGateway       = "gateway"
	ReasonBlocked       = "blocked"
	ReasonLabel         = "label"
)

// SA is one child SA of a peer.
type SA struct {
	Peer             string  `json:"peer"`
	IKE              string  `json:"ike"`
	IKEID            string  `json:"ike_unique_id"`
	Child            string  `json:"child"`
	ChildID          string  `json:"child_unique_id"`
	State            string  `json:"state"`
	Protocol         string  `json:"protocol"`
	Mode             string  `json:"mode"`
	Encap            bool    `json:"udp_encapsulation"`
	SPIIn            string  `json:"spi_in"`
	SPIOut           string  `json:"spi_out"`
	Algorithms       string  `json:"algorithms"`
	Encryption       string  `json:"encryption"`
	KeyBits          int     `json:"key_bits,omitempty"`
	Integrity        string  `json:"integrity,omitempty"`
	DHGroup          string  `json:"dh_group,omitempty"` // of an exchange of its own: PFS
	ESN              bool    `json:"esn"`
	BytesIn          uint64  `json:"bytes_in"`
	BytesOut         uint64  `json:"bytes_out"`
	PacketsIn        uint64  `json:"packets_in"`
	PacketsOut       uint64  `json:"packets_out"`
	AgeSeconds       float64 `json:"age_seconds"`
	RekeyInSeconds   float64 `json:"rekey_in_seconds,omitempty"` // 0: never
	ExpiresInSeconds float64 `json:"expires_in_seconds,omitempty"`
	LocalTS          string  `json:"local_ts"`
	RemoteTS         string  `json:"remote_ts"`
	LocalID          string  `json:"local_id"`
	RemoteID         string  `json:"remote_id"`
	Streams          int     `json:"streams"` // that it carries
	Label            string  `json:"label,omitempty"`
}

// IKESA is an IKE SA of a peer and its children.
type IKESA struct {
	Peer       string `json:"peer"`
	UniqueID   string `json:"unique_id"`
	Version    int    `json:"ike_version"`
	State      string `json:"state"`
	Initiator  bool   `json:"initiator"` // this host began it
	LocalHost  string `json:"local_host"`
	RemoteHost string `json:"remote_host"`
	// LocalID and RemoteID are what IKE has authenticated.
	LocalID    string  `json:"local_id"`
	RemoteID   string  `json:"remote_id"`
	SPIs       string  `json:"spis"` // the initiator's, the responder's
	Algorithms string  `json:"algorithms"`
	AgeSeconds float64 `json:"age_seconds"`
	// RekeyInSeconds and ReauthInSeconds are 0 for never.
	RekeyInSeconds  float64 `json:"rekey_in_seconds,omitempty"`
	ReauthInSeconds float64 `json:"reauth_in_seconds,omitempty"`
	Gateway         bool    `json:"gateway"` // ESP ends elsewhere than at the peer itself
	Children        []SA    `json:"children"`
}

// SARequest names SAs of a peer.
type SARequest struct {
	Peer  string `json:"peer"`
	Child string `json:"child,omitempty"` // of this name only
}

// SAEvent is something that happened to an SA.
type SAEvent struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // such as child-down
	Peer   string    `json:"peer,omitempty"`
	Child  string    `json:"child,omitempty"`
	Reason string    `json:"reason,omitempty"` // why, in words
	Detail string    `json:"detail,omitempty"`
	// UniqueID is that of the child, or of the IKE SA if Child is "".
	UniqueID uint32 `json:"unique_id,omitempty"`
	SPIIn    string `json:"spi_in,omitempty"`
	SPIOut   string `json:"spi_out,omitempty"`
	// BytesIn and BytesOut are how much a child that went has carried.
	BytesIn  uint64 `json:"bytes_in,omitempty"`
	BytesOut uint64 `json:"bytes_out,omitempty"`
}

// Guard is what the kernel's guard and its policies have dropped on this host
// since it was booted.
type Guard struct {
	BlockedIn  uint64 `json:"blocked_in_packets"`
	BlockedOut uint64 `json:"blocked_out_packets"`
}
