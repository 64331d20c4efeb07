package main

import "testing"

func TestExportedNamesAreDocumented(t *testing.T) {
	cases := map[string]struct{ src, want string }{
		"a function":              {"// F does.\nfunc F() {}", ""},
		"no comment":              {"func F() {}", "F has no comment that begins with its name"},
		"another name":            {"// G does.\nfunc F() {}", "F has no comment that begins with its name"},
		"a longer name":           {"// Fail does.\nfunc F() {}", "F has no comment that begins with its name"},
		"an error without words":  {"// F does.\nfunc F() error { return nil }", "the comment of F does not say how it fails"},
		"an error":                {"// F does. It fails when it is late.\nfunc F() (int, error) { return 0, nil }", ""},
		"an error by its name":    {"// F does, with ErrLate after that.\nfunc F() error { return nil }", ""},
		"an unexported name":      {"func f() error { return nil }", ""},
		"of an unexported type":   {"type t int\nfunc (t) F() error { return nil }", ""},
		"of an exported type":     {"// T is one.\ntype T int\nfunc (*T) F() {}", "F has no comment that begins with its name"},
		"of a generic type":       {"// T is one.\ntype T[X any] struct{}\nfunc (*T[X]) F() {}", "F has no comment that begins with its name"},
		"what errors and fmt ask": {"// T is one.\ntype T int\nfunc (T) Error() string { return \"\" }", ""},
		"an interface's method":   {"// T is one.\ntype T int\n// F implements I.\nfunc (T) F() error { return nil }", ""},
		"a type with an article":  {"// A T is one.\ntype T int", ""},
		"a type":                  {"type T int", "T has no comment"},
		"a group":                 {"// The numbers.\nconst (\n\tA = 1\n\tB = 2\n)", ""},
		"a group without comment": {"const (\n\tA = 1 // one\n\tB = 2\n)", "B has no comment"},
		"a constant":              {"// One is 1.\nconst A = 1", "A has no comment"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			found, err := checkComments("verbs/x.go", []byte("package verbs\n\n"+c.src+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			expect(t, found, c.want)
		})
	}
	for file, want := range map[string]int{"verbs/x_test.go": 0, "internal/x/x.go": 1} {
		if found, err := checkComments(file, []byte("package p\nfunc F() {}\n")); err != nil || len(found) != want {
			t.Errorf("%s: %v, %v", file, found, err)
		}
	}
}
