package web

import (
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// clean replaces each string in what v points to by one that can be shown: a line of printable characters, of a bounded length.
// Peers choose some of them, and what they write in an error. Escaping is html/template's part.
func clean(v any) { cleanValue(reflect.ValueOf(v)) }

func cleanValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			cleanValue(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				cleanValue(v.Field(i))
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			cleanValue(v.Index(i))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(line(v.String()))
		}
	}
}

// spaces become one: they end a line, or go to the next column.
var spaces = strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ")

// line is a text as one line that can be shown.
func line(s string) string {
	if len(s) > maxText+utf8.UTFMax {
		s = printable.Cut(s[:maxText+utf8.UTFMax], maxText) + "..."
	}
	if isPlain(s) {
		return s // as nearly all are, of a host with thousands of streams
	}
	return printable.Text(spaces.Replace(s))
}

// isPlain reports whether a text is of printable ASCII.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
