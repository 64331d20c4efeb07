// Package printable decides which names of peers go on to terminals, logs and file
// names.
package printable

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Check says why a name that a peer has sent can't be shown as it is, nil if it can: it
// is UTF-8, and each rune is a letter, a mark, a digit, punctuation, a symbol or a
// space. So it has neither control characters, C0 or C1, by which a terminal is
// steered, nor those that turn the direction of writing, are invisible or end a line.
// Whoever reads a name off the wire refuses what does not pass, so that nobody who
// prints it has to think of that.
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
