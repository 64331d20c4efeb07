// Package initiator is an iSCSI initiator over TCP (RFC 7143) in user space: it asks a portal for its targets, and
// reads and writes a logical unit, without a block device and without root.
//
//	s, err := initiator.Login(ctx, nc, initiator.Config{Initiator: "iqn.2026-01.org.example:me", Target: "iqn.2026-01.org.example:disk"})
//	...
//	defer s.Close()
//	n, err := s.ReadAt(p, 0)
//
// The connection is the caller's to make, and to protect. A session has one connection and ErrorRecoveryLevel 0: when the
// connection ends, so does the session, and who wants to go on logs in again. Nothing that a target sends is trusted: no
// length, offset or tag of it reaches memory unchecked.
package initiator
