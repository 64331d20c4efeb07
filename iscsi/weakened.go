//go:build weakened

package iscsi

import "github.com/ironwarp/ironwarp/internal/checks"

func (s *Sequence) expects(d *DataOut, n int) bool {
	if !checks.On(checks.DataOrder) {
		return uint32(n) <= s.end-s.next
	}
	return d.DataSN == s.dataSN && d.Offset == s.next && uint32(n) <= s.end-s.next
}

func (w *Window) isBeyond(sn uint32) bool {
	return int32(sn-w.max) > 0 && checks.On(checks.CommandWindow)
}

func (l *Login) authenticated() bool {
	return l.skipped || l.auth == chapDone || !checks.On(checks.Authentication)
}

func isRepeated(said bool) bool { return said && checks.On(checks.TextBound) }
