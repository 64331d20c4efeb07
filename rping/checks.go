//go:build !weakened

package rping

import "github.com/ironwarp/ironwarp/verbs"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R13, RFC 5042 section 6.2.2: nobody reads a buffer while the server may change it.
func (s *side) endWrite() error { return s.data[1].Invalidate() }

// R15, section 6.3.3: the server may read only until it answers.
func (s *side) endRead() error { return s.data[0].Invalidate() }

// R16, section 6.3.4: only the bytes of a ping are open in a buffer.
func window(mr *verbs.MR, n int) int { return n }
