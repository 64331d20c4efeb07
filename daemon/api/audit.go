package api

import (
	"context"
	"net/http"
)

// How a requirement is met.
const (
	AuditMet      = "met"
	AuditWeakened = "weakened" // met, except for what a choice of somebody's waives
	AuditNotMet   = "not met"
)

// Audit is how a running daemon meets each requirement of RFC 5042.
type Audit struct {
	State        string        `json:"state"`        // the worst of all
	Requirements []Requirement `json:"requirements"` // R1 to R34
}

// Requirement is a requirement of RFC 5042, and how it is met.
type Requirement struct {
	ID      string     `json:"id"`       // such as R4, as in docs/security.md
	Section string     `json:"section"`  // of RFC 5042
	Text    string     `json:"requires"` // what it demands
	State   string     `json:"state"`
	How     string     `json:"how"`                // it is met in this configuration
	Weak    []Weakness `json:"weakened,omitempty"` // what weakens it
}

// Weakness is something that weakens a requirement.
type Weakness struct {
	Setting string `json:"setting"` // the choice, as the configuration names it, or the fault
	Effect  string `json:"effect"`
	Fix     string `json:"fix"`
	Unmet   bool   `json:"unmet,omitempty"` // it leaves nothing of the requirement
}

// Audit returns how the daemon meets RFC 5042. It fails as each call does.
func (c *Client) Audit(ctx context.Context) (v Audit, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/audit", nil, &v)
}
