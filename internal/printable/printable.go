// Package printable decides which names from peers may appear on terminals, in logs and
// in file names.
package printable

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Check returns nil if a name that a peer has sent can be shown as it is, otherwise an
// error with the reason. The name must be UTF-8, and each rune a letter, a mark, a digit,
// punctuation, a symbol or a space. That excludes control characters (C0 and C1), which
// steer a terminal, and those that change the direction of writing, are invisible or end a
// line. Code that reads a name off the wire refuses it unless it passes, so that code that
// prints it need not care.
func Check(name string) error {
	if !utf8.ValidString(name) {
		return errors.New("it is not UTF-8")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("it has the character %U, which can't be printed", r)
		}
	}
	return nil
}

// Cut returns the longest prefix of s of at most n bytes that ends between two runes.
func Cut(s string, n int) string {
	for len(s) > n {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// Text returns s with U+FFFD in place of what Check refuses, for messages to a peer.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}
