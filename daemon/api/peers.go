package api

import (
	"fmt"
	"time"
)

// States of a peer.
const (
	PeerUp      = "up"      // streams can run: an SA is installed, or none is needed
	PeerIdle    = "idle"    // nothing is wrong, the SA comes with the first stream
	PeerPaused  = "paused"  // streams wait for an SA
	PeerProblem = "problem" // streams cannot run; Problem says why
)

// PeerSpec declares a peer.
type PeerSpec struct {
	Name              string   `json:"name"`
	Address           string   `json:"address"` // or a host name with its domain, which the daemon looks up
	LocalAddress      string   `json:"local_address,omitempty"`
	Port              uint16   `json:"port,omitempty"`
	Transport         string   `json:"transport,omitempty"`   // tcp, sctp, sctp-udp, auto
	UDPPort           uint16   `json:"udp_port,omitempty"`    // of SCTP in UDP
	Multihoming       []Pair   `json:"multihoming,omitempty"` // further addresses of associations, with transport sctp
	Paths             []Path   `json:"paths,omitempty"`       // further ones of sessions
	LocalID           string   `json:"local_id,omitempty"`
	RemoteID          string   `json:"remote_id,omitempty"`
	Auth              string   `json:"auth,omitempty"` // psk, cert
	PSKFile           string   `json:"psk_file,omitempty"`
	CertFile          string   `json:"cert_file,omitempty"`
	KeyFile           string   `json:"key_file,omitempty"`
	CAFiles           []string `json:"ca_files,omitempty"`
	CRLURIs           []string `json:"crl_uris,omitempty"`
	OCSPURIs          []string `json:"ocsp_uris,omitempty"`
	Revocation        string   `json:"revocation,omitempty"` // strict, ifuri, relaxed
	Profile           string   `json:"profile,omitempty"`
	Mode              string   `json:"mode,omitempty"` // tunnel, transport
	Gateway           string   `json:"gateway,omitempty"`
	ChildSAs          int      `json:"child_sas,omitempty"`
	ISCSIPort         uint16   `json:"iscsi_port,omitempty"` // a TCP port of iSCSI that the SAs cover
	NVMePort          uint16   `json:"nvme_port,omitempty"`  // and one of NVMe over RDMA
	IdleReap          string   `json:"idle_reap,omitempty"`  // such as 10m
	Protection        string   `json:"protection,omitempty"`
	InsecurePlaintext bool     `json:"insecure_plaintext,omitempty"`
	CRC               string   `json:"crc,omitempty"`
	FPDU              string   `json:"fpdu,omitempty"`
	Connections       int      `json:"connections,omitempty"`
	Policy            string   `json:"policy,omitempty"`             // of sessions of several paths; default: min-inflight
	HeartbeatInterval string   `json:"heartbeat_interval,omitempty"` // such as 5s
	HeartbeatMisses   int      `json:"heartbeat_misses,omitempty"`
	NoPath            string   `json:"no_path,omitempty"`    // queue, fail
	FailAfter         string   `json:"fail_after,omitempty"` // such as 30s, with no_path fail
	ReconnectAttempts int      `json:"reconnect_attempts,omitempty"`
	AlwaysInvalidate  *bool    `json:"always_invalidate,omitempty"` // default: true
}

// PeerChange changes a peer's declaration.
type PeerChange struct {
	PeerSpec          // the name, and new values
	Set      []string `json:"set"` // the keys of PeerSpec that change, as JSON has them
}

// Pair is a pair of addresses by which a peer is reached.
type Pair struct {
	Address      string `json:"address"`
	LocalAddress string `json:"local_address"`
}

// Path is a further path of the sessions with a peer.
type Path struct {
	Name string `json:"name,omitempty"` // default: the address
	Pair
	Port      uint16 `json:"port,omitempty"`      // default: the peer's
	Transport string `json:"transport,omitempty"` // default: the peer's
}

// PathState is a pair of addresses by which a peer is reached, the first one
// included, and its state.
type PathState struct {
	Pair
	Path       string `json:"path"`       // name of the path of sessions that goes by it
	Protection string `json:"protection"` // of its SAs, a state of a peer
	Problem    *Error `json:"problem,omitempty"`
	// Reachable reports whether SCTP gets answers there: yes, no, or "" while no
	// association uses it.
	Reachable    string  `json:"reachable,omitempty"`
	SinceSeconds float64 `json:"since_seconds,omitempty"` // of Reachable
	Failures     uint64  `json:"failures"`                // times that it became unreachable
}

// Words of PathState.Reachable.
const (
	PathReachable   = "yes"
	PathUnreachable = "no"
)

// Carrier is what carries the streams that this host opens to a peer.
type Carrier struct {
	// Transport is tcp, sctp or sctp-udp; "" before the first stream with transport
	// auto.
	Transport string `json:"transport,omitempty"`
	Why       string `json:"why"` // in words
	// Tried are the transports that were given up lately, and why, with transport auto.
	Tried     []Tried `json:"tried,omitempty"`
	Fallbacks uint64  `json:"fallbacks"` // times that a transport was given up for the next best
}

// Tried is a transport that did not work.
type Tried struct {
	Transport    string  `json:"transport"`
	Error        string  `json:"error"`
	AgainSeconds float64 `json:"again_in_seconds"` // until it is tried again
}

// Peer is a peer as the daemon sees it.
type Peer struct {
	PeerSpec
	Source string `json:"source"` // where it is declared
	// Resolved is the address at which a peer is that is declared by a name; "" while none is known.
	Resolved string `json:"resolved,omitempty"`
	// NameNote is what is to be said of the name: that it cannot be looked up, or has another address now.
	NameNote   string      `json:"name_note,omitempty"`
	State      string      `json:"state"`
	Carrier    Carrier     `json:"carrier"`
	PathStates []PathState `json:"path_states,omitempty"` // of a peer with several addresses
	DataPlane  string      `json:"data_plane,omitempty"`  // kernel or userland ESP
	Problem    *Error      `json:"problem,omitempty"`
	Streams    int         `json:"streams"`
	NarrowPath *NarrowPath `json:"narrow_path,omitempty"`
	Exports    []string    `json:"exports"` // ours that it may attach
	// ProgramPorts are the blocks of ports of ULPs whose programs may have streams with the peer, such
	// as 18432/512, or "18432/512 over sctp-udp".
	ProgramPorts []string `json:"program_ports,omitempty"`
	IPsec        *IPsec   `json:"ipsec,omitempty"`
	// Partitions are those of which it is a member.
	Partitions []PeerPartition `json:"partitions,omitempty"`
	Insecure   []string        `json:"insecure,omitempty"` // what weakens its protection by choice
	// CertExpires is when this host's certificate for the peer expires.
	CertExpires time.Time `json:"cert_expires,omitzero"`
}

// NarrowPath means that the path to a peer drops packets that this host's route has
// room for, without an ICMP error. Lengths are those of IP packets, within the
// tunnel if there is one, as this host sends them.
type NarrowPath struct {
	Transport    string `json:"transport"`     // of the stream that found it
	CarriesBytes int    `json:"carries_bytes"` // get through
	LostBytes    int    `json:"lost_bytes"`    // do not
}

func (n *NarrowPath) String() string {
	return fmt.Sprintf("drops packets of %d bytes without a word, and %d get through (%s)", n.LostBytes, n.CarriesBytes, n.Transport)
}

// Fix is what to do.
func (n *NarrowPath) Fix() string {
	return "streams keep to the shorter ones, and new ones have to find out again; set the MTU of the route or the interface to the peer, on both hosts, to what the path carries, or mend the path"
}

// IPsec is what has happened to a peer's SAs since the daemon has known it, and their
// state.
type IPsec struct {
	Guarded              bool      `json:"guarded"` // the kernel's guard is in place
	StateSeconds         float64   `json:"state_seconds"`
	ChildDeletes         uint64    `json:"child_deletes"`
	DeletedByPeer        uint64    `json:"deleted_by_peer"` // of them
	DeletedHere          uint64    `json:"deleted_here"`
	Expired              uint64    `json:"expired"`
	IdleReaps            uint64    `json:"idle_reaps"`
	LostByStrongSwan     uint64    `json:"lost_by_strongswan"` // they went with it
	Initiations          uint64    `json:"initiations"`
	Reinitiations        uint64    `json:"reinitiations"` // that brought a lost SA back
	Failures             uint64    `json:"failures"`
	Rekeys               uint64    `json:"rekeys"`
	IKERekeys            uint64    `json:"ike_rekeys"`
	Refused              uint64    `json:"refused_flows"`
	Refusals             Refused   `json:"refused_flows_by_reason"`
	Impostors            uint64    `json:"impostors"` // SAs of another identity that would have carried its streams
	Outages              uint64    `json:"outages"`   // times that streams had no SA
	OutageSeconds        float64   `json:"outage_seconds"`
	LongestOutageSeconds float64   `json:"longest_outage_seconds"`
	GuardRepairs         uint64    `json:"guard_repairs"`
	Reloads              uint64    `json:"reloads"`              // times that strongSwan had lost its connection or credentials, and got them again
	ReloadedAt           time.Time `json:"reloaded_at,omitzero"` // the last of them
	Live                 *LiveSA   `json:"live,omitempty"`       // nil: no IKE SA now
}

// Refused counts a peer's flows that were not admitted, by reason.
type Refused struct {
	NotCovered    uint64 `json:"not_covered"`
	WrongIdentity uint64 `json:"wrong_identity"`
	Gateway       uint64 `json:"gateway"`
	Label         uint64 `json:"label"`
	NotConnected  uint64 `json:"not_connected"`
	Blocked       uint64 `json:"blocked"`
	Other         uint64 `json:"other"`
}

// LiveSA is the youngest IKE SA with a peer, and what was agreed on in it.
type LiveSA struct {
	IKEVersion int     `json:"ike_version"`
	LocalID    string  `json:"local_id"`
	RemoteID   string  `json:"remote_id"` // whom IKE has authenticated
	Gateway    string  `json:"gateway,omitempty"`
	IKE        string  `json:"ike"`           // algorithms
	ESP        string  `json:"esp,omitempty"` // those of its youngest child
	Mode       string  `json:"mode,omitempty"`
	ESN        bool    `json:"esn"`
	Encap      bool    `json:"udp_encapsulation"`
	AgeSeconds float64 `json:"age_seconds"`
}
