package policy

import (
	"slices"
	"strconv"
	"strings"
)

// tokenKind is what a token is; of punctuation, its byte.
type tokenKind byte

const (
	tokenEnd        tokenKind = 0
	tokenIdentifier tokenKind = 'a'
	tokenKeyword    tokenKind = 'k'
	tokenVersion    tokenKind = '1'
	tokenBad        tokenKind = '?'
)

// pos is a place in a file, from 1.
type pos struct{ line, column int }

// token is a token of the language. The text of a keyword is in lower case.
type token struct {
	kind tokenKind
	text string
	pos
}

// String is the token in words, for errors.
func (t token) String() string {
	switch t.kind {
	case tokenEnd:
		return "the end of the file"
	case tokenIdentifier, tokenVersion:
		return t.text
	case tokenKeyword:
		return "the keyword " + t.text
	}
	return strconv.Quote(t.text)
}

// keywords are checkmodule's, between blanks. They are so in lower and in upper case, not
// in mixed; no type can have their names.
const keywords = " clone common class constrain validatetrans inherits sid role roles roleattribute attribute_role " +
	"types typealias typeattribute typebounds type bool tunable if else alias attribute expandattribute " +
	"type_transition type_member type_change role_transition range_transition sensitivity dominance category " +
	"level range mlsconstrain mlsvalidatetrans user neverallow allow auditallow auditdeny dontaudit allowxperm " +
	"auditallowxperm dontauditxperm neverallowxperm source target sameuser module require optional or and not " +
	"xor eq true false dom domby incomp fscon ibpkeycon ibendportcon portcon netifcon nodecon pirqcon iomemcon " +
	"ioportcon pcidevicecon devicetreecon fs_use_xattr fs_use_task fs_use_trans genfscon r1 r2 r3 u1 u2 u3 t1 " +
	"t2 t3 l1 l2 h1 h2 policycap permissive default_user default_role default_type default_range glblub " +
	"low-high low high "

// keyword returns the keyword, in lower case, that name is.
func keyword(name string) (k string, ok bool) {
	k = strings.ToLower(name)
	return k, (k == name || strings.ToUpper(name) == name) && strings.Contains(keywords, " "+k+" ")
}

// scanner reads tokens as checkmodule's does (checkpolicy 3.4, policy_scan.l).
type scanner struct {
	rest     []byte
	at       pos
	fail     func(at pos, err error, format string, args ...any)
	partcons []partcon
}

// partcon is a statement of that name, not yet understood.
type partcon struct {
	pos
	words []word
}

// word is a part of a comment between blanks.
type word struct {
	text string
	pos
}

func (s *scanner) advance(n int) {
	s.rest = s.rest[n:]
	s.at.column += n
}

// next returns the next token. A character that no token begins with is one error, and
// tokenBad.
func (s *scanner) next() token {
	s.blank()
	t := token{pos: s.at}
	if len(s.rest) == 0 {
		return t
	}
	n := identifierLen(s.rest)
	switch c := s.rest[0]; {
	case n > 0:
		t.kind, t.text = tokenIdentifier, string(s.rest[:n])
		if k, ok := keyword(t.text); ok {
			t.kind, t.text = tokenKeyword, k
		} else if n > maxName {
			s.fail(s.at, nil, "the name %.40s... has %d bytes; at most %d are possible", t.text, n, maxName)
			t.text = t.text[:maxName]
		}
	case isDigit(c):
		n = slices.IndexFunc(s.rest, func(c byte) bool { return !isLetter(c) && !isDigit(c) && c != '.' && c != '_' })
		if n < 0 {
			n = len(s.rest)
		}
		t.kind, t.text = tokenVersion, string(s.rest[:n])
	case strings.IndexByte("{};:,-~*", c) >= 0:
		n, t.kind, t.text = 1, tokenKind(c), string(c)
	default:
		n, t.kind, t.text = 1, tokenBad, string(rune(c))
		what := ""
		switch {
		case c == '\r':
			what = ": lines end with LF alone"
		case c >= 0x80:
			what = ": outside of comments a file is ASCII"
		}
		s.fail(s.at, nil, "the character %q stands in no statement%s", s.rest[:1], what)
	}
	s.advance(n)
	return t
}

// blank skips blanks and comments, and takes note of partcon.
func (s *scanner) blank() {
	for len(s.rest) > 0 {
		switch s.rest[0] {
		case ' ', '\t', '\f':
			s.advance(1)
		case '\n':
			s.rest = s.rest[1:]
			s.at = pos{s.at.line + 1, 1}
		case '#':
			n := slices.Index(s.rest, '\n')
			if n < 0 {
				n = len(s.rest)
			}
			s.comment(string(s.rest[:n]))
			s.advance(n)
		default:
			return
		}
	}
}

// comment looks into a comment.
func (s *scanner) comment(c string) {
	words := s.words(c[1:])
	if len(words) == 0 || !strings.EqualFold(words[0].text, "partcon") {
		return
	}
	switch {
	case strings.HasPrefix(c, "#partcon"):
		s.partcons = append(s.partcons, partcon{s.at, words[1:]})
	case len(words) > 1 && isDigit(words[1].text[0]):
		s.fail(s.at, nil, "this comment looks like a partcon statement and is none; write #partcon without a blank and in lower case, or ## in front to leave it out")
	}
}

// words are those of the comment that begins at the scanner's place, without its #.
func (s *scanner) words(c string) (ws []word) {
	for i := 0; i < len(c); {
		n := strings.IndexAny(c[i:], " \t\f\r")
		if n < 0 {
			n = len(c) - i
		}
		if n > 0 {
			ws = append(ws, word{c[i : i+n], pos{s.at.line, s.at.column + 1 + i}})
		}
		i += n + 1
	}
	return ws
}

// checkLines finds lines that are too long for checkmodule.
func checkLines(text string, fail func(pos, error, string, ...any)) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if len(line) > maxLine {
			fail(pos{n, 1}, nil, "the line has %d bytes; at most %d are possible", len(line), maxLine)
		}
	}
}
