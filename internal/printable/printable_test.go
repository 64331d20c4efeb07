package printable

import (
	"strconv"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, s := range []string{"docs", "a b", "größe", "写真", "क्षि", "a-b_c.d/e", "~!@#$%^&*()\"'\\"} {
		if err := Check(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for what, s := range map[string]string{
		"C0": "a\x1b[31mb", "newline": "a\nb", "zero": "a\x00", "DEL": "a\x7f", "C1": "a\u009b31mb", "bare C1": "a\x9b31mb",
		"right-to-left override": "txt.\u202egpj", "isolate": "\u2066a", "mark of direction": "a\u200f", "zero width": "a\u200bb",
		"byte order mark": "\ufeffa", "line separator": "a\u2028b", "soft hyphen": "a\u00adb", "no-break space": "a\u00a0b",
		"private use": "\ue000", "surrogate": "\xed\xa0\x80", "overlong": "\xc0\xaf", "cut off": "a\xc3", "tag": "a\U000e0041",
	} {
		if Check(s) == nil {
			t.Errorf("%s: %q is taken", what, s)
		}
	}
}

// What passes needs no quoting but of quotes and backslashes.
func FuzzCheck(f *testing.F) {
	f.Add("docs")
	f.Add("a\u009b31m\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		switch clean := Text(s); {
		case Check(clean) != nil:
			t.Fatalf("%q becomes %q", s, clean)
		case Check(s) != nil:
			return
		case clean != s:
			t.Fatalf("%q becomes %q though it is taken", s, clean)
		}
		plain := strings.NewReplacer(`"`, "", `\`, "").Replace(s)
		if q := strconv.Quote(plain); q[1:len(q)-1] != plain {
			t.Errorf("%q is taken", s)
		}
	})
}
