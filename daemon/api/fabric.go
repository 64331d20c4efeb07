package api

import (
	"context"
	"net/http"
	"net/url"
)

// FabricStatus is this host's part in a fabric.
type FabricStatus struct {
	Enabled  bool            `json:"enabled"` // the configuration names managers
	Identity string          `json:"identity,omitempty"`
	GUID     string          `json:"guid,omitempty"` // 64 bits of the identity's SHA-256
	Manager  bool            `json:"manager"`        // this host is one
	Master   string          `json:"master,omitempty"`
	Agent    bool            `json:"agent"`   // managers may change settings of this host
	Drained  bool            `json:"drained"` // a manager has: no new streams
	MKey     bool            `json:"m_key"`   // the agent has one, of the settings or of a manager
	Model    bool            `json:"sa_enhanced_trust_model"`
	Conf     string          `json:"conf,omitempty"` // the file of these settings
	Managers []FabricManager `json:"managers"`
	Totals   *FabricTotals   `json:"directory,omitempty"` // of this host's own directory; nil: it keeps none
	Insecure []string        `json:"insecure"`            // what weakens it
	Problem  *Error          `json:"problem,omitempty"`
}

// FabricTotals is how much a manager's directory has. A standby's has none of the services: they are registered with the master.
type FabricTotals struct {
	Hosts    int    `json:"hosts"` // that have a stream with it, itself included
	Services int    `json:"services"`
	Dropped  uint64 `json:"dropped_requests"` // since the host's part in the fabric began
}

// States of a FabricManager. There are others, in the words of the SMInfo.
const (
	FabricMaster      = "master"
	FabricStandby     = "standby"
	FabricUnreachable = "unreachable" // there is no stream with it
	FabricUnknown     = "unknown"     // it has not yet said
)

// FabricManager is a host that keeps a directory.
type FabricManager struct {
	Identity string `json:"identity"`
	GUID     string `json:"guid"`
	Peer     string `json:"peer,omitempty"` // its name here; "": this host
	State    string `json:"state"`
	Priority uint8  `json:"priority"`
	Problem  *Error `json:"problem,omitempty"` // why there is no stream with it
}

// FabricService is a service of a host, as the directory has it: an export, or a target.
type FabricService struct {
	Name         string   `json:"name"`
	Kind         string   `json:"kind"` // export, target, other
	ID           string   `json:"id"`   // ServiceID
	Host         string   `json:"host"` // GUID
	Peer         string   `json:"peer,omitempty"`
	Export       string   `json:"export,omitempty"` // what it is called there
	Port         uint16   `json:"port,omitzero"`
	Carriers     []string `json:"carriers"`
	Size         uint64   `json:"size_bytes,omitzero"`
	LeaseSeconds uint32   `json:"lease_seconds"` // 4294967295: for as long as the directory lasts
	Usable       bool     `json:"usable"`        // the host is a peer of this one
}

// FabricPath is a host that the directory knows, and whether it is there.
type FabricPath struct {
	Host   string `json:"host"` // GUID
	LID    uint16 `json:"lid"`
	Peer   string `json:"peer,omitempty"`
	MTU    int    `json:"mtu_bytes"`
	Router bool   `json:"router"`
}

// FabricSubscription is who hears of events, of which. Only a manager knows.
type FabricSubscription struct {
	Host  string `json:"host"`
	VPort string `json:"vport,omitempty"`
	Peer  string `json:"peer,omitempty"`
	Trap  string `json:"trap"` // a number, or all
	From  string `json:"from"` // LIDs, or all
}

// FabricGUID is an alias GUID: of a vport, which is a local user of a host. Only a manager knows.
type FabricGUID struct {
	Host  string `json:"host"`
	Peer  string `json:"peer,omitempty"`
	Index int    `json:"index"`
	GUID  string `json:"guid"`
}

// FabricGroup is a member of a multicast group. Only a manager knows.
type FabricGroup struct {
	GID    string `json:"mgid"`
	LID    uint16 `json:"mlid"`
	PKey   uint16 `json:"pkey"`
	Member string `json:"member"` // GID of the port
	Peer   string `json:"peer,omitempty"`
	State  string `json:"state"` // full, non, send-only
}

// FabricDrops are requests that were dropped in silence, of one requester. Only a manager knows.
type FabricDrops struct {
	Host  string  `json:"host"`
	Peer  string  `json:"peer,omitempty"`
	Count uint64  `json:"count"`
	Last  string  `json:"last"`        // the request, and why
	Age   float64 `json:"age_seconds"` // since the last
}

// FabricKeys is what a rotation of keys has changed.
type FabricKeys struct {
	Files  []string `json:"files"`  // that have new keys
	Hosts  []string `json:"hosts"`  // whose agents have them
	Missed []string `json:"missed"` // whose agents have not, with the reason
}

// FabricKeyRequest says which keys to make anew.
type FabricKeyRequest struct {
	Keys []string `json:"keys"` // m_key, sm_key, sa_key
}

// FabricDrainRequest has a host of the fabric take no new streams, or take them again.
type FabricDrainRequest struct {
	Peer  string `json:"peer"`
	Drain bool   `json:"drain"`
}

// FabricPartitionsRequest has a host of the fabric be in these of its partitions alone.
type FabricPartitionsRequest struct {
	Peer       string   `json:"peer"`
	Partitions []string `json:"partitions"`
	All        bool     `json:"all"` // in all of which this host's configuration has it as a member
}

// Fabric describes this host's part in a fabric. It fails as each call does.
func (c *Client) Fabric(ctx context.Context) (v FabricStatus, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fabric", nil, &v)
}

// FabricServices asks the directory for services, by name unless that is "". It fails as each call does, with
// CodeUnavailable without a directory.
func (c *Client) FabricServices(ctx context.Context, name string) (v []FabricService, err error) {
	q := ""
	if name != "" {
		q = "?" + url.Values{"name": {name}}.Encode()
	}
	return v, c.call(ctx, http.MethodGet, "/v1/fabric/services"+q, nil, &v)
}

// FabricPaths asks the directory for the hosts that it knows. It fails as FabricServices does.
func (c *Client) FabricPaths(ctx context.Context) (v []FabricPath, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fabric/paths", nil, &v)
}

// FabricSubscriptions lists who hears of events. It fails as each call does, on a host that is no manager
// with CodeUnavailable, like the calls after it.
func (c *Client) FabricSubscriptions(ctx context.Context) (v []FabricSubscription, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fabric/subscriptions", nil, &v)
}

// FabricGUIDs lists alias GUIDs. It fails as FabricSubscriptions does.
func (c *Client) FabricGUIDs(ctx context.Context) (v []FabricGUID, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fabric/guids", nil, &v)
}

// FabricGroups lists members of multicast groups. It fails as FabricSubscriptions does.
func (c *Client) FabricGroups(ctx context.Context) (v []FabricGroup, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fabric/groups", nil, &v)
}

// FabricDrops lists whose requests were dropped in silence. It fails as FabricSubscriptions does.
func (c *Client) FabricDrops(ctx context.Context) (v []FabricDrops, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/fabric/drops", nil, &v)
}

// RotateFabricKeys makes new keys, and gives agents theirs. It fails as FabricSubscriptions does.
func (c *Client) RotateFabricKeys(ctx context.Context, q FabricKeyRequest) (v FabricKeys, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/fabric/keys", q, &v)
}

// SetFabricPartitions has a host be in these of its partitions alone. It fails as DrainFabricHost does, with CodeNotFound for a
// partition that this host does not have.
func (c *Client) SetFabricPartitions(ctx context.Context, q FabricPartitionsRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/fabric/partitions", q, nil)
}

// DrainFabricHost has a host take no new streams, or take them again. It fails as FabricSubscriptions does, and
// where the host's agent refuses.
func (c *Client) DrainFabricHost(ctx context.Context, q FabricDrainRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/fabric/drain", q, nil)
}
