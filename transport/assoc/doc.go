// Package assoc is the seam between SCTP associations (RFC 9260) and what stands on
// them: what a user sees of one, whoever carries it. Package sctp carries it in UDP,
// package ksctp by the kernel; both import this package and neither the other. DDP's
// sessions, the verbs and the guard over a flow know nothing else, so that a carrier
// is chosen in one place.
//
// An Association takes messages in batches (Outgoing) and gives what comes to a
// Receiver (Message, Event). Params are what both carriers are told, with one table of
// the defaults of RFC 9260 section 16. Errors are this package's for either carrier.
package assoc
