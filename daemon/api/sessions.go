package api

import (
	"context"
	"net/http"
	"net/url"
)

// Orders of a PathRequest.
const (
	PathDisconnect = "disconnect" // until it is reconnected
	PathReconnect  = "reconnect"  // at once
)

// PathRequest is an order about a path of the open sessions with a peer.
type PathRequest struct {
	Peer  string `json:"peer"`
	Path  string `json:"path"` // its name or the peer's address there
	Order string `json:"order"`
}

// PolicyRequest changes how the open sessions with a peer spread I/O over their paths, or what
// becomes of it without one. What is "" stays.
type PolicyRequest struct {
	Peer      string `json:"peer"`
	Policy    string `json:"policy,omitempty"`
	NoPath    string `json:"no_path,omitempty"`    // queue, fail
	FailAfter string `json:"fail_after,omitempty"` // such as 30s, with no_path fail
}

// AddPath declares a further path of the sessions with a peer, which comes up in those that
// are open. It fails as each call does, with CodeNotFound for an unknown peer.
func (c *Client) AddPath(ctx context.Context, peer string, q Path) (v Peer, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/peers/"+url.PathEscape(peer)+"/paths", q, &v)
}

// RemovePath removes a path by its name, or the peer's address there. Its I/O goes on by the
// others. It fails as each call does, with CodeNotFound for an unknown peer or path.
func (c *Client) RemovePath(ctx context.Context, peer, path string) (v Peer, err error) {
	return v, c.call(ctx, http.MethodDelete, "/v1/peers/"+url.PathEscape(peer)+"/paths/"+url.PathEscape(path), nil, &v)
}

// Sessions lists the block sessions. It fails as each call does.
func (c *Client) Sessions(ctx context.Context) (v []Session, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/sessions", nil, &v)
}

// OrderPath takes a path of the open sessions with a peer down, or up again, and returns
// these. It fails as each call does, with CodeUnavailable where no session is open.
func (c *Client) OrderPath(ctx context.Context, q PathRequest) (v []Session, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/sessions/path", q, &v)
}

// SetPolicy changes policies of the open sessions with a peer, and returns these. It fails as OrderPath does.
func (c *Client) SetPolicy(ctx context.Context, q PolicyRequest) (v []Session, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/sessions/policy", q, &v)
}
