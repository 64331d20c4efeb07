package ipsec

import (
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// State is that of a peer's SAs.
type State string

const (
	StateDown       State = "down"       // no SA, and nobody needs one
	StateConnecting State = "connecting" // an SA is being brought up for the first time
	StateUp         State = "up"         // a child is installed
	StatePaused     State = "paused"     // streams wait for a child to come back
)

// Counters of a peer since it was added.
type Counters struct {
	ChildDeletes  uint64        `json:"child_deletes"`     // children that went, whoever deleted them
	DeletedByPeer uint64        `json:"deleted_by_peer"`   // of them: those that the peer deleted
	DeletedHere   uint64        `json:"deleted_here"`      // of them: on request of this host
	Expired       uint64        `json:"expired"`           // of them: at the end of their lifetime
	IdleReaps     uint64        `json:"idle_reaps"`        // of them: since their streams were idle (Peer.IdleReap)
	LostByCharon  uint64        `json:"lost_by_charon"`    // children that went with charon itself
	Initiations   uint64        `json:"initiations"`       // attempts to bring a child up
	Reinitiations uint64        `json:"reinitiations"`     // those that brought a lost child back
	Failures      uint64        `json:"failures"`          // attempts that failed
	Rekeys        uint64        `json:"rekeys"`            // of children
	IKERekeys     uint64        `json:"ike_rekeys"`        // of IKE SAs
	Refused       uint64        `json:"refused"`           // flows not admitted
	Refusals      Refusals      `json:"refusals"`          // the same by reason
	Outages       uint64        `json:"outages"`           // times that admitted flows had no SA
	Outage        time.Duration `json:"outage_ns"`         // all of those that are over, in sum
	LongestOutage time.Duration `json:"longest_outage_ns"` // of those that are over
	Duplicates    uint64        `json:"duplicates"`        // superfluous children that were ended
	Stale         uint64        `json:"stale"`             // children made anew since nothing came back on them
	Impostors     uint64        `json:"impostors"`         // children of another identity that would have carried the peer's streams, and were ended
	GuardRepairs  uint64        `json:"guard_repairs"`     // times that somebody had removed the guard
	Reloads       uint64        `json:"reloads"`           // times that somebody had unloaded its connection or credentials from charon
}

// Refusals counts flows that were not admitted, by reason.
type Refusals struct {
	NotCovered    uint64 `json:"not_covered"`    // ErrNotCovered
	WrongIdentity uint64 `json:"wrong_identity"` // ErrWrongIdentity
	Gateway       uint64 `json:"gateway"`        // ErrGateway
	Label         uint64 `json:"label"`          // ErrLabel
	NotConnected  uint64 `json:"not_connected"`  // ErrNotConnected
	Blocked       uint64 `json:"blocked"`        // ErrBlocked
	Other         uint64 `json:"other"`
}

// Status is the state of a peer.
type Status struct {
	Peer      string    `json:"peer"`
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	DataPlane esp.Plane `json:"data_plane"`
	Flows     int       `json:"flows"`  // admitted and not released
	Paused    int       `json:"paused"` // of them
	Guarded   bool      `json:"guarded"`
	Loaded    bool      `json:"loaded"` // charon has the peer's key and connection
	LocalID   string    `json:"local_id"`
	RemoteID  string    `json:"remote_id"` // as configured
	Profile   string    `json:"profile"`
	// Live is the youngest IKE SA with the peer; nil if there is none.
	Live *Live `json:"live,omitempty"`
	// Lanes are the child SAs, those for flows that this host dials first.
	Lanes []LaneStatus `json:"lanes"`
	// LastError is the last failure in plain words, "" after a success.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	Err         error     `json:"-"` // that failure itself, for errors.Is and errors.As
	// ReloadedAt is when charon was last found without what it was given for the
	// peer, and got it again.
	ReloadedAt time.Time `json:"reloaded_at,omitzero"`
	Counters   Counters  `json:"counters"`
}

// Live is what IKE has agreed on with a peer.
type Live struct {
	IKEVersion  int       `json:"ike_version"`
	LocalID     string    `json:"local_id"`
	RemoteID    string    `json:"remote_id"`         // whom IKE has authenticated
	Gateway     string    `json:"gateway,omitempty"` // where ESP ends, if not at the peer's own address
	IKE         string    `json:"ike"`               // algorithms of IKE
	ESP         string    `json:"esp,omitempty"`     // those of its youngest child
	Mode        string    `json:"mode,omitempty"`    // TUNNEL or TRANSPORT
	ESN         bool      `json:"esn"`               // extended sequence numbers
	Encap       bool      `json:"encap"`             // ESP in UDP
	Initiator   bool      `json:"initiator"`         // this host began it
	SPI         [2]string `json:"spi"`               // initiator's, responder's
	Established time.Time `json:"established,omitzero"`
	Rekey       time.Time `json:"rekey,omitzero"`           // of the IKE SA
	Installed   time.Time `json:"child_installed,omitzero"` // its youngest child
	ChildRekey  time.Time `json:"child_rekey,omitzero"`
	ChildExpiry time.Time `json:"child_expiry,omitzero"`
}

// LaneStatus is the state of one child SA of a peer.
type LaneStatus struct {
	Child  string `json:"child"` // its name in charon
	State  State  `json:"state"`
	Flows  int    `json:"flows"`
	Reaped bool   `json:"reaped,omitempty"` // it was ended since its streams are idle
	Link   string `json:"link"`             // whose it is, in words
	Label  string `json:"label,omitempty"`  // that the link has
	// Err is why the last attempt to bring it up has failed, nil if it was up since.
	Err error `json:"-"`
	// What follows is of the installed child; zero if there is none.
	UniqueID  uint32    `json:"unique_id,omitempty"`
	SPIIn     string    `json:"spi_in,omitempty"`
	SPIOut    string    `json:"spi_out,omitempty"`
	ESP       string    `json:"esp,omitempty"` // algorithms
	Installed time.Time `json:"installed,omitzero"`
}

// EventKind names what happened to an SA.
type EventKind string

// The kinds of an Event.
const (
	EventChildUp      EventKind = "child-up"
	EventChildDown    EventKind = "child-down"
	EventChildRekey   EventKind = "child-rekey"
	EventIKEUp        EventKind = "ike-up"
	EventIKEDown      EventKind = "ike-down"
	EventIKERekey     EventKind = "ike-rekey"
	EventCharonUp     EventKind = "charon-up"
	EventCharonDown   EventKind = "charon-down"
	EventFailed       EventKind = "failed"   // an attempt to bring a child up failed
	EventPaused       EventKind = "paused"   // streams wait for an SA
	EventRestored     EventKind = "restored" // they go on
	EventImpostor     EventKind = "impostor" // an SA of another identity would carry the peer's streams
	EventGuardRepair  EventKind = "guard-repaired"
	EventReloaded     EventKind = "reloaded"       // charon had lost the peer's connection or credentials
	EventBlocked      EventKind = "blocked"        // Manager.Block
	EventUnblocked    EventKind = "unblocked"      // on request, or since its time is over
	EventBlockRepair  EventKind = "block-repaired" // somebody had taken it away
	EventFlowAdmitted EventKind = "flow-admitted"
	EventFlowRefused  EventKind = "flow-refused"
)

// Reason says why something happened to an SA.
type Reason string

// The reasons of Events.
const (
	ReasonPeer      Reason = "deleted by the peer"
	ReasonHere      Reason = "deleted on request"
	ReasonElsewhere Reason = "deleted by strongSwan or by hand" // not by this package, not by the peer
	ReasonExpired   Reason = "its lifetime is over"
	ReasonCharon    Reason = "strongSwan is gone"
	ReasonIdle      Reason = "its streams are idle"
	ReasonDuplicate Reason = "it is superfluous"
	ReasonMismatch  Reason = "it covers other ports than configured"
	ReasonStale     Reason = "the peer does not answer on it"
	ReasonIdentity  Reason = "it belongs to another identity"
	ReasonRemoved   Reason = "the peer was removed"
	ReasonRekeyed   Reason = "fresh keys"
	ReasonFlow      Reason = "a flow is opened"
	ReasonTraffic   Reason = "a stream has data to send"
	ReasonKeepAlive Reason = "idle streams need a sign of life"
	ReasonGreeting  Reason = "to have it in time"
	ReasonRestart   Reason = "streams were left without it"
	ReasonByPeer    Reason = "brought up by the peer"
)

// Event is something that happened.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   EventKind `json:"kind"`
	Peer   string    `json:"peer,omitempty"`
	Child  string    `json:"child,omitempty"`
	Reason Reason    `json:"reason,omitempty"`
	// UniqueID is that of the child, or of the IKE SA if Child is "".
	UniqueID uint32 `json:"unique_id,omitempty"`
	SPIIn    string `json:"spi_in,omitempty"`
	SPIOut   string `json:"spi_out,omitempty"`
	// BytesIn and BytesOut are what a child that went has carried.
	BytesIn  uint64 `json:"bytes_in,omitempty"`
	BytesOut uint64 `json:"bytes_out,omitempty"`
	Detail   string `json:"detail,omitempty"`
}
