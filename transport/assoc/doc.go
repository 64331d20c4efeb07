// Package assoc is the seam between SCTP associations (RFC 9260) and their users,
// independent of the carrier. Package sctp carries associations in UDP, package ksctp
// uses the kernel's; both import this package and neither imports the other. DDP's
// sessions, the verbs and the guard over a flow know only this package, so the carrier is
// chosen in one place.
//
// An Association takes messages in batches (Outgoing) and passes what it receives to a
// Receiver (Message, Event). Params configure both carriers, with one table of the
// defaults of RFC 9260 section 16. Both carriers return this package's errors.
package assoc
