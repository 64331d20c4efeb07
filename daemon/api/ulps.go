package api

import (
	"context"
	"net/http"
	"net/url"
)

// ULPSpec declares a ULP: a local consumer of the RNIC (RFC 5042 section 2.1.3), users of this host who
// use the daemon with an account of their own. Without users and groups it is for the programs of root.
type ULPSpec struct {
	Name           string   `json:"name"`
	Privileged     bool     `json:"privileged"` // may do all that root may
	Trust          string   `json:"trust"`      // of a declaration: empty for that of the service attachments
	Users          []string `json:"users"`
	Groups         []string `json:"groups"`
	Peers          []string `json:"peers"`                     // may be pinged, and all that they offer attached
	Exports        []string `json:"exports"`                   // PEER/EXPORT
	Ports          []string `json:"ports"`                     // FIRST/SIZE: ports of its programs' streams with Peers
	Transport      string   `json:"transport,omitempty"`       // what carries those: sctp-udp, or tcp if it is empty
	Listen         bool     `json:"listen"`                    // its programs may take connections there
	MaxMemory      int64    `json:"max_memory_bytes,omitzero"` // 0: its fair share
	MaxStreams     int64    `json:"max_streams,omitzero"`      // 0: its fair share
	MaxAttachments int      `json:"max_attachments,omitzero"`  // disks at a time; 0: 16
	Partition      string   `json:"partition,omitempty"`       // of its programs' ports, and of what it attaches
	Label          string   `json:"label,omitempty"`           // security label; "": of each user as the kernel reports it, or the service's
}

// ULPChange changes a ULP's declaration.
type ULPChange struct {
	ULPSpec          // new values
	Set     []string `json:"set"` // the keys of ULPSpec that change, as JSON has them: without a value to their defaults
}

// ULP is a ULP as the daemon sees it.
type ULP struct {
	ULPSpec
	Source      string `json:"source,omitempty"`  // where it is declared
	Attachments int    `json:"attachments"`       // disks
	Connections int    `json:"connections"`       // to the control socket
	Refused     uint64 `json:"refused"`           // connections and requests that were too many
	Problem     *Error `json:"problem,omitempty"` // why it is disabled; its users are refused
}

// ULPs lists the local consumers: all of them for a privileged caller, its own ULP for
// any other. It fails as each call does.
func (c *Client) ULPs(ctx context.Context) (v []ULP, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/ulps", nil, &v)
}

// AddULP declares a ULP, whose users are admitted from now on. It fails as each call does, with CodeExists for a
// name that is taken.
func (c *Client) AddULP(ctx context.Context, spec ULPSpec) (v ULP, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/ulps", spec, &v)
}

// SetULP changes what a ULP's declaration says, and applies it: what its users may not do any more ends. It
// fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) SetULP(ctx context.Context, name string, change ULPChange) (v ULP, err error) {
	return v, c.call(ctx, http.MethodPatch, "/v1/ulps/"+url.PathEscape(name), change, &v)
}

// RemoveULP removes a ULP's declaration, and all that its users have. While it has disks, or programs have streams
// at its ports, force is needed. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) RemoveULP(ctx context.Context, name string, force bool) error {
	return c.call(ctx, http.MethodDelete, "/v1/ulps/"+url.PathEscape(name)+forceQuery(force), nil, nil)
}

// DetachOf is Detach for an attachment of a ULP, for which privileges are needed. It fails as
// Detach does.
func (c *Client) DetachOf(ctx context.Context, ulp, peer, export string, force bool) error {
	q := url.Values{"ulp": {ulp}}
	if force {
		q.Set("force", "1")
	}
	return c.call(ctx, http.MethodDelete, "/v1/attachments/"+url.PathEscape(peer)+"/"+url.PathEscape(export)+"?"+q.Encode(), nil, nil)
}
