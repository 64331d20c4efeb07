package api

import (
	"context"
	"net/http"
	"net/url"
)

// Partition is a partition of this host.
type Partition struct {
	Name      string            `json:"name"`
	PKey      string            `json:"pkey"`            // in hexadecimal digits
	Label     string            `json:"label,omitempty"` // "": labels play no part
	Port      uint16            `json:"port"`
	ISCSIPort uint16            `json:"iscsi_port,omitempty"`
	Source    string            `json:"source"` // where it is declared
	Policy    string            `json:"policy"` // what decides who may use it; "": nothing has to
	Members   []PartitionMember `json:"members"`
	Users     []PartitionUser   `json:"users"` // what of this host is of it
	Streams   int               `json:"streams"`
}

// PartitionMember is a host of a partition.
type PartitionMember struct {
	Identity   string `json:"identity"`
	Membership string `json:"membership"`     // full, limited
	Peer       string `json:"peer,omitempty"` // that it is; "": this host, or no peer
	Linked     bool   `json:"linked"`         // this host has a link with it
}

// PartitionUser is an export, a target, a ULP or a service that is of a partition.
type PartitionUser struct {
	Kind   string `json:"kind"` // service, export, target, ulp
	Name   string `json:"name"`
	Label  string `json:"label,omitempty"`  // "": it has none, and there is no default one
	Denied string `json:"denied,omitempty"` // why it may not use the partition, "": it may
	// Permitted says that it may all the same, since the policy is permissive.
	Permitted bool `json:"permitted,omitempty"`
}

// PeerPartition is a partition of which a peer is a member.
type PeerPartition struct {
	Name   string `json:"name"`
	PKey   string `json:"pkey"`
	Label  string `json:"label,omitempty"`
	Port   uint16 `json:"port"`
	Own    string `json:"own"`    // this host's membership: full, limited, none
	Theirs string `json:"theirs"` // the peer's
	State  string `json:"state"`  // of its SAs: up, down, connecting, paused; ready without IPsec; apart: there is no link
	// Problem is why there is no SA, or no link.
	Problem *Error `json:"problem,omitempty"`
}

// The states of a PeerPartition beside those of SAs.
const (
	PartitionReady = "ready"
	PartitionApart = "apart"
)

// Partitions lists the partitions. It fails as each call does.
func (c *Client) Partitions(ctx context.Context) (v []Partition, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/partitions", nil, &v)
}

// OffersIn lists what a peer offers to this host in a partition. It fails as Offers does.
func (c *Client) OffersIn(ctx context.Context, peer, partition string) (v []Offer, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/peers/"+url.PathEscape(peer)+"/exports?partition="+url.QueryEscape(partition), nil, &v)
}
