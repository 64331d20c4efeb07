package api

import (
	"context"
	"net/http"
)

// How a requirement is met.
const (
	AuditMet      = "met"
	AuditWeakened = "weakened" // met but for what somebody's choice waives
	AuditNotMet   = "not met"
)

// Audit says how a running daemon meets each requirement of RFC 5042.
type Audit struct {
	State        string        `json:"state"`        // the worst of all
	Requirements []Requirement `json:"requirements"` // R1 to R34
}

// Requirement is one of them.
type Requirement struct {
	ID      string     `json:"id"`       // such as R4, as in docs/security.md
	Section string     `json:"section"`  // of RFC 5042
	Text    string     `json:"requires"` // what it demands
	State   string     `json:"state"`
	How     string     `json:"how"`                // it is met in this configuration
	Weak    []Weakness `json:"weakened,omitempty"` // what is in the way of it
}

// Weakness is something that a requirement suffers from.
type Weakness struct {
	Setting string `json:"setting"` // whose choice it is, as the configuration names it, or what is amiss
	Effect  string `json:"effect"`
	Fix     string `json:"fix"`
	Unmet   bool   `json:"unmet,omitempty"` // it leaves nothing of the requirement
}

// Audit asks how the daemon meets RFC 5042. It fails as each call does.
func (c *Client) Audit(ctx context.Context) (v Audit, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/audit", nil, &v)
}
