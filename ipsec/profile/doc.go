// Package profile says how IKE and ESP are done with a peer, and what the RFCs say of
// that: a Profile is data, ByName has those of RFC 3723 and RFC 7146, Clauses names the
// rule behind each line.
//
// It promises that a Profile which Validate lets pass does nothing that these RFCs
// forbid: it has no proposal without integrity, without a DH group of 2048 bits, or of an
// algorithm that is not in the table of proposal.go. What they allow and a reader
// should know all the same is in Warnings. It talks to nobody: what charon and the data
// plane lack of a profile is found from what they say they have (Algorithms, Fits).
//
// In reading order: profile.go, proposal.go, mode.go, profiles.go, algorithms.go.
package profile
