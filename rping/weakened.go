//go:build weakened

package rping

import (
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

func (s *side) endWrite() error {
	if !checks.On(checks.RevokeFirst) {
		return nil
	}
	return s.data[1].Invalidate()
}

func (s *side) endRead() error {
	if !checks.On(checks.ReadWhileNeeded) {
		return nil
	}
	return s.data[0].Invalidate()
}

func window(mr *verbs.MR, n int) int {
	if !checks.On(checks.ExactWindow) {
		return mr.Len()
	}
	return n
}
