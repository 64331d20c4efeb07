package guard

import (
	"strings"
	"testing"
)

func TestReasonOfABlockFitsALine(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		" a\r\n\tb\x1b[2J \x00c ":  "a b [2J c",
		"64 streams\u2028forged":   "64 streams forged",
		"\xff\xfe":                 "??",
		strings.Repeat("ä", 200):   strings.Repeat("ä", maxWhy/2),
		strings.Repeat("x", 1<<16): strings.Repeat("x", maxWhy),
	} {
		if got := OneLine(in); got != want {
			t.Errorf("%.40q: %q, want %q", in, got, want)
		}
	}
}
