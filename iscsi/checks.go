//go:build !weakened

package iscsi

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// DataOrder: data are those that were asked for, each byte once and in its place (RFC 7143 sections
// 4.2.2.4 and 7.9).
func (s *Sequence) expects(d *DataOut, n int) bool {
	return d.DataSN == s.dataSN && d.Offset == s.next && uint32(n) <= s.end-s.next
}

// CommandWindow: an initiator has no more commands under way than it was let have (RFC 7143 section
// 4.2.2.1).
func (w *Window) isBeyond(sn uint32) bool { return int32(sn-w.max) > 0 }

// Authentication: nobody gets past the security stage who was to authenticate himself and has not.
func (l *Login) authenticated() bool { return l.skipped || l.auth == chapDone }

// TextBound: a key has one answer in a negotiation, however often it is sent (RFC 7143 section 6.2).
func isRepeated(said bool) bool { return said }
