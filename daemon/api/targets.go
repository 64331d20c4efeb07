package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// States of a target and its LUNs.
const (
	TargetReady   = "ready"
	TargetWaiting = "waiting" // for the storage of a LUN: initiators are told to come back
	TargetProblem = "problem"

	TargetRedirecting = "redirecting" // initiators are sent elsewhere
)

// TargetSpec declares an iSCSI target.
type TargetSpec struct {
	Name               string     `json:"name"`
	IQN                string     `json:"iqn"`
	Alias              string     `json:"alias,omitempty"`
	Port               uint16     `json:"port,omitempty"`      // 0: 3260
	Addresses          []string   `json:"addresses,omitempty"` // of portals; none: those at which its peers reach this host
	Peers              []string   `json:"peers"`               // whose initiators may log in
	Initiators         []string   `json:"initiators"`          // that may; none: any on these peers
	CHAP               []CHAPUser `json:"chap,omitempty"`
	ErrorRecoveryLevel *uint32    `json:"error_recovery_level,omitempty"` // the highest that initiators may have, 0 to 2; absent: 1
	InsecureUndeclared bool       `json:"insecure_undeclared,omitempty"`  // hosts that are no peers may log in, in clear
	ISER               *bool      `json:"iser,omitempty"`                 // false: sessions are over TCP alone
	Redirect           string     `json:"redirect,omitempty"`             // where initiators are sent, as host or host:port
	RedirectPermanent  bool       `json:"redirect_permanent,omitempty"`   // for good
	LUNs               []LUNSpec  `json:"luns"`
	Partition          string     `json:"partition,omitempty"` // at whose iscsi_port its portals are
	Label              string     `json:"label,omitempty"`     // security label of its portals; "": as the service's
}

// CHAPUser names an initiator in CHAP, and the files that hold its secret and the target's for it.
type CHAPUser struct {
	User             string `json:"user"`
	SecretFile       string `json:"secret_file"`
	TargetUser       string `json:"target_user,omitempty"`
	TargetSecretFile string `json:"target_secret_file,omitempty"`
}

// TargetChange changes a target's declaration. Its LUNs are added and removed one by one, and its IQN stays:
// initiators and reservations know it by that.
type TargetChange struct {
	TargetSpec          // new values; of chap the users that are added or changed, which keep what is empty here
	Set        []string `json:"set"`                   // the keys of TargetSpec that change, as JSON has them: without a value to their defaults
	RemoveCHAP []string `json:"remove_chap,omitempty"` // users who are not let in any more
}

// LUNSpec declares a LUN: a disk that is an export's, or that has a path.
type LUNSpec struct {
	Number    int    `json:"number"`
	Export    string `json:"export,omitempty"`
	Path      string `json:"path,omitempty"`
	BlockSize int    `json:"block_size,omitempty"` // 512, the default, or 4096
	ReadOnly  bool   `json:"read_only,omitempty"`
	Removable bool   `json:"removable,omitempty"`
	Thin      *bool  `json:"thin,omitempty"`     // false: UNMAP is not offered
	Sanitize  bool   `json:"sanitize,omitempty"` // initiators may erase all of it by SANITIZE
}

// Target is a target as the daemon sees it.
type Target struct {
	TargetSpec
	Source        string   `json:"source"`
	State         string   `json:"state"`
	Problem       *Error   `json:"problem,omitempty"`
	Portals       []string `json:"portals"` // as address:port
	Units         []LUN    `json:"units"`
	Sessions      int      `json:"sessions"`
	Logins        uint64   `json:"logins"`
	RefusedLogins uint64   `json:"refused_logins"`
}

// LUN is a LUN as the daemon sees it.
type LUN struct {
	LUNSpec
	State   string `json:"state"`
	Problem *Error `json:"problem,omitempty"`
	UUID    string `json:"uuid,omitempty"`      // of the disk, while it is open
	Size    int64  `json:"size_bytes,omitzero"` // absent: its storage is not open
	IO      IO     `json:"io"`                  // commands that moved data, and as errors those with CHECK CONDITION
	// Latency is what commands take, from their coming to their answers.
	Latency []Latency `json:"latency,omitempty"`
}

// TargetSession is a session of an iSCSI initiator.
type TargetSession struct {
	ID           string  `json:"id"`
	Target       string  `json:"target,omitempty"` // by its name here; a discovery session may have none
	IQN          string  `json:"iqn,omitempty"`
	Initiator    string  `json:"initiator"`
	ISID         string  `json:"isid"`
	CHAP         string  `json:"chap,omitempty"` // who was authenticated by CHAP
	Discovery    bool    `json:"discovery,omitempty"`
	Peer         string  `json:"peer,omitempty"`     // absent: a host that is no peer
	Identity     string  `json:"identity,omitempty"` // that IKE has authenticated
	Address      string  `json:"address"`
	Portal       string  `json:"portal"`
	Transport    string  `json:"transport"` // tcp or iser: what moves its data
	AgeSeconds   float64 `json:"age_seconds"`
	HeaderDigest bool    `json:"header_digest"`
	DataDigest   bool    `json:"data_digest"`
	Recovery     uint32  `json:"error_recovery_level"`
	Connections  int     `json:"connections"`
	Failed       int     `json:"failed_connections,omitempty"` // whose commands wait for another
	InFlight     int     `json:"in_flight"`
	IO           IO      `json:"io"`
}

// DiscoverRequest asks a portal of a peer for its targets.
type DiscoverRequest struct {
	Portal     string `json:"portal"`              // a peer's name, or an address of one, with :PORT behind it if that is not 3260
	Initiator  string `json:"initiator,omitempty"` // the iSCSI name to log in by
	User       string `json:"user,omitempty"`      // for CHAP, with its secret's file
	SecretFile string `json:"secret_file,omitempty"`
}

// Discovered is a target at a portal.
type Discovered struct {
	IQN     string   `json:"iqn"`
	Portals []string `json:"portals"` // as address:port,group
}

// Targets lists the iSCSI targets. It fails as each call does.
func (c *Client) Targets(ctx context.Context) (v []Target, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/targets", nil, &v)
}

// Target describes a target. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) Target(ctx context.Context, name string) (v Target, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/targets/"+url.PathEscape(name), nil, &v)
}

// AddTarget declares a target and offers it. It fails as each call does, with CodeExists for a name
// that is taken.
func (c *Client) AddTarget(ctx context.Context, spec TargetSpec) (v Target, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/targets", spec, &v)
}

// SetTarget changes what a target's declaration says, and applies it: sessions of those who may not log in any
// more end. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) SetTarget(ctx context.Context, name string, change TargetChange) (v Target, err error) {
	return v, c.call(ctx, http.MethodPatch, "/v1/targets/"+url.PathEscape(name), change, &v)
}

// RemoveTarget removes a target. While it has sessions force is needed, and their I/O fails from then
// on. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) RemoveTarget(ctx context.Context, name string, force bool) error {
	return c.call(ctx, http.MethodDelete, "/v1/targets/"+url.PathEscape(name)+forceQuery(force), nil, nil)
}

// AddLUN gives a target one more LUN, of which initiators that are logged in are told. It fails as each call does, with
// CodeNotFound for an unknown target, and with CodeExists for a number that is taken.
func (c *Client) AddLUN(ctx context.Context, target string, l LUNSpec) (v Target, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/targets/"+url.PathEscape(target)+"/luns", l, &v)
}

// RemoveLUN takes a LUN of a target away, with its reservations. It fails as each call does, with
// CodeNotFound where there is none.
func (c *Client) RemoveLUN(ctx context.Context, target string, number int) (v Target, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/targets/"+url.PathEscape(target)+"/luns/"+strconv.Itoa(number), nil, &v)
}

// TargetSessions lists the sessions of iSCSI initiators. It fails as each call does.
func (c *Client) TargetSessions(ctx context.Context) (v []TargetSession, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/iscsi/sessions", nil, &v)
}

// EndTargetSession ends a session of an initiator, which may log in again. It fails as each call does,
// with CodeNotFound for an unknown one.
func (c *Client) EndTargetSession(ctx context.Context, id string) (v TargetSession, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/iscsi/sessions/"+url.PathEscape(id), nil, &v)
}

// Discover asks a portal of a peer for its targets. It fails as each call does, with CodeUnavailable
// where the portal is not reached or refuses.
func (c *Client) Discover(ctx context.Context, q DiscoverRequest) (v []Discovered, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/iscsi/discover", q, &v)
}
