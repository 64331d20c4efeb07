package api

import "time"

// Kinds of a principal.
const (
	PrincipalDevice = "device" // the RNIC as a whole
	PrincipalULP    = "ulp"    // a local consumer: a service of the daemon, or local users
	PrincipalPeer   = "peer"
)

// Resources is who uses how much of the RNIC's resources (RFC 5042 section 2.1).
type Resources struct {
	Device Principal   `json:"device"`
	ULPs   []Principal `json:"ulps"`  // by name
	Peers  []Principal `json:"peers"` // by name: those that are configured, and others that use something
	// Events that the RNIC reported since the daemon was started, by kind and peer.
	Events []EventCount `json:"events"`
	// EventsDropped counts the events for which the RNIC's queue had no room.
	EventsDropped uint64 `json:"events_dropped"`
}

// Principal is one whose use of resources is counted, and its use.
type Principal struct {
	Kind     string     `json:"kind"`
	Name     string     `json:"name"`               // of a ULP or a peer
	Identity string     `json:"identity,omitempty"` // of a peer: what IKE authenticated
	Trust    string     `json:"trust,omitempty"`    // of a ULP: its trust model
	Uses     []Resource `json:"resources"`
}

// Resource is how much of one resource a principal uses. Resources are named as the
// configuration's limits are; memory is in bytes.
type Resource struct {
	Name  string `json:"name"`
	Used  int64  `json:"used"`
	Limit int64  `json:"limit,omitempty"` // 0: that of the device
	Share int64  `json:"share,omitempty"` // reserved, whatever others use; 0: the resource is not divided
}

// EventCount counts events of one kind and peer.
type EventCount struct {
	Kind  string `json:"kind"`
	Peer  string `json:"peer"`
	Count uint64 `json:"count"`
}

// SlowPath counts the slow paths that a peer made a stream take (RFC 5042 section
// 6.4.4), by kind.
type SlowPath struct {
	Kind  string `json:"kind"`
	Count uint64 `json:"count"`
}

// Who drops the packets of a blocked peer.
const (
	BlockedByKernel = "kernel" // nothing of the peer's comes in, and none leaves to it
	BlockedByDaemon = "daemon" // its streams are refused: there is no ESP to recognise it by
)

// BlockRequest asks for a block of a peer.
type BlockRequest struct {
	Peer    string  `json:"peer"`
	Seconds float64 `json:"seconds,omitempty"` // 0: as the configuration's block policy says
	Why     string  `json:"why,omitempty"`
}

// Block is a peer that is kept out (RFC 5042 section 6.4.1).
type Block struct {
	Peer    string    `json:"peer"`
	Address string    `json:"address"`
	By      string    `json:"by"` // kernel or daemon
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Why     string    `json:"why"`
	Packets uint64    `json:"packets"` // that were dropped, or streams that were refused by the daemon
}
