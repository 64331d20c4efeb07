package api

import (
	"context"
	"net/http"
	"net/url"
)

// ULP is a local consumer of the RNIC (RFC 5042 section 2.1.3): users of this host who
// use the daemon with an account of their own.
type ULP struct {
	Name           string   `json:"name"`
	Privileged     bool     `json:"privileged"`
	Trust          string   `json:"trust"`
	Users          []string `json:"users"`
	Groups         []string `json:"groups"`
	Peers          []string `json:"peers"`   // may be pinged, and all that they offer attached
	Exports        []string `json:"exports"` // PEER/EXPORT
	Attachments    int      `json:"attachments"`
	MaxAttachments int      `json:"max_attachments"`
	Connections    int      `json:"connections"`       // to the control socket
	Refused        uint64   `json:"refused"`           // connections and requests that were too many
	Problem        *Error   `json:"problem,omitempty"` // why it is disabled; its users are refused
}

// ULPs lists the local consumers: all of them for a privileged caller, its own ULP for
// any other. It fails as each call does.
func (c *Client) ULPs(ctx context.Context) (v []ULP, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/ulps", nil, &v)
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
