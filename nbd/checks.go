//go:build !weakened

package nbd

import "time"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// Succession: what a vanished client had requested overwrites nothing that its successor was
// served. A connection ends when it is closed; one whose client vanished silently is abandoned.
func (x *succession) endConn(c *conn)     { x.cutOff(c, false) }
func (x *succession) abandonConn(c *conn) { x.cutOff(c, true) }

// ClientBytes: permits do not wait for an NBD client's bytes.
func clientDeadline() time.Time { return time.Now().Add(clientTime) }
