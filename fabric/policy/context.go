package policy

import (
	"errors"
	"fmt"
	"strings"
)

// Context is a security context of SELinux.
type Context struct {
	User, Role, Type string
	Range            string // "" without multi-level security
}

// ErrContext means that a string is not a security context.
var ErrContext = errors.New("not a security context, which is USER:ROLE:TYPE or USER:ROLE:TYPE:RANGE")

// ParseContext reads a context. It fails with ErrContext unless user, role and type are
// identifiers and the range, which may have colons itself, is of the characters that
// ranges have.
func ParseContext(s string) (Context, error) {
	if len(s) > maxContext {
		return Context{}, fmt.Errorf("%.40q... has %d bytes, more than %d: %w", s, len(s), maxContext, ErrContext)
	}
	var c Context
	user, rest, _ := strings.Cut(s, ":")
	role, rest, _ := strings.Cut(rest, ":")
	typ, level, ranged := strings.Cut(rest, ":")
	c = Context{user, role, typ, level}
	if !isIdentifier(user) || !isIdentifier(role) || !isIdentifier(typ) || ranged && !isRange(level) {
		return Context{}, fmt.Errorf("%q: %w", s, ErrContext)
	}
	return c, nil
}

// String is the context as SELinux writes it.
func (c Context) String() string {
	s := c.User + ":" + c.Role + ":" + c.Type
	if c.Range != "" {
		s += ":" + c.Range
	}
	return s
}

// isIdentifier reports whether s is a name as checkmodule's scanner reads them: a letter,
// then letters, digits, _ and -, and single dots between these.
func isIdentifier(s string) bool {
	return s != "" && len(s) <= maxName && identifierLen(s) == len(s)
}

// identifierLen is the length of the identifier that s begins with, 0 if there is none.
func identifierLen[T string | []byte](s T) int {
	if len(s) == 0 || !isLetter(s[0]) {
		return 0
	}
	n := 1
	for n < len(s) {
		switch {
		case isNameByte(s[n]):
			n++
		case s[n] == '.' && n+1 < len(s) && isNameByte(s[n+1]):
			n += 2
		default:
			return n
		}
	}
	return n
}

func isRange(s string) bool {
	for i := range len(s) {
		if !isNameByte(s[i]) && s[i] != '.' && s[i] != ',' && s[i] != ':' {
			return false
		}
	}
	return s != ""
}

func isLetter(c byte) bool   { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool    { return c >= '0' && c <= '9' }
func isNameByte(c byte) bool { return isLetter(c) || isDigit(c) || c == '_' || c == '-' }
