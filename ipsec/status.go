package ipsec

import "time"

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
	Initiations   uint64        `json:"initiations"`       // attempts to bring a child up
	Reinitiations uint64        `json:"reinitiations"`     // those that brought a lost child back
	Failures      uint64        `json:"failures"`          // attempts that failed
	Rekeys        uint64        `json:"rekeys"`            // of children
	Refused       uint64        `json:"refused"`           // flows not admitted
	Outages       uint64        `json:"outages"`           // times that admitted flows had no SA
	LongestOutage time.Duration `json:"longest_outage_ns"` // of those that are over
	Duplicates    uint64        `json:"duplicates"`        // superfluous children that were ended
	GuardRepairs  uint64        `json:"guard_repairs"`     // times that somebody had removed the guard
}

// Status is the state of a peer.
type Status struct {
	Peer      string    `json:"peer"`
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	DataPlane DataPlane `json:"data_plane"`
	Flows     int       `json:"flows"`  // admitted and not released
	Paused    int       `json:"paused"` // of them
	Guarded   bool      `json:"guarded"`
	Loaded    bool      `json:"loaded"` // charon has the peer's key and connection
	// LastError is the last failure in plain words, "" after a success.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	Counters    Counters  `json:"counters"`
}

// EventKind names what happened to an SA.
type EventKind string

const (
	EventChildUp      EventKind = "child-up"
	EventChildDown    EventKind = "child-down"
	EventChildRekey   EventKind = "child-rekey"
	EventIKEUp        EventKind = "ike-up"
	EventIKEDown      EventKind = "ike-down"
	EventIKERekey     EventKind = "ike-rekey"
	EventCharonUp     EventKind = "charon-up"
	EventCharonDown   EventKind = "charon-down"
	EventFailed       EventKind = "failed" // an attempt to bring a child up failed
	EventRestored     EventKind = "restored"
	EventGuardRepair  EventKind = "guard-repaired"
	EventFlowAdmitted EventKind = "flow-admitted"
	EventFlowRefused  EventKind = "flow-refused"
)

// Event is something that happened.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   EventKind `json:"kind"`
	Peer   string    `json:"peer,omitempty"`
	Child  string    `json:"child,omitempty"`
	Detail string    `json:"detail,omitempty"`
}
