package rfc5042

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func table(change func(rows []string) []string) []byte {
	var rows []string
	for i := range Rows {
		rows = append(rows, fmt.Sprintf("| R%d | 6.1 | what it says | `attack.TestOne`, `verbs.TestTwo` | |", i+1))
	}
	return []byte("# Security\n\n| id | section |\n|---|---|\n" + strings.Join(change(rows), "\n") + "\n\nmore\n")
}

func TestWholeTable(t *testing.T) {
	rows, complaints := Parse(table(func(r []string) []string { return r }))
	if len(complaints) > 0 || len(rows) != Rows {
		t.Fatalf("%d rows, %q", len(rows), complaints)
	}
	if r := rows[1]; r.ID != "R2" || r.Line != 6 || !slices.Equal(r.Tests, []string{"attack.TestOne", "verbs.TestTwo"}) {
		t.Errorf("the second row: %+v", r)
	}
}

func TestTablesWithFaults(t *testing.T) {
	for want, change := range map[string]func([]string) []string{
		"33 rows":                              func(r []string) []string { return r[:33] },
		"R3 is where that of R2 should be":     func(r []string) []string { return slices.Delete(r, 1, 2) },
		"R2 is where that of R1 should be":     func(r []string) []string { r[0], r[1] = r[1], r[0]; return r },
		"R1 is where that of R2 should be":     func(r []string) []string { r[1] = r[0]; return r },
		"R34 names no test":                    func(r []string) []string { r[33] = "| R34 | C | what it says | TestOne | |"; return r },
		"35 rows of RFC 5042's requirements, ": func(r []string) []string { return append(r, r[33]) },
	} {
		_, complaints := Parse(table(change))
		if !slices.ContainsFunc(complaints, func(c string) bool { return strings.Contains(c, want) }) {
			t.Errorf("%q is not among %q", want, complaints)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		test, dir, name string
		want            bool
	}{
		{"attack.TestA", "integration/attack", "TestA", true},
		{"attack/load.TestA", "integration/attack/load", "TestA", true},
		{"attack.TestA", "integration/counterattack", "TestA", false},
		{"attack.TestA", "integration/attack", "TestAB", false},
		{"attack.TestA", "attack", "TestA", true},
	} {
		if Names(c.test, c.dir, c.name) != c.want {
			t.Errorf("%s and %s of %s: %v", c.test, c.name, c.dir, !c.want)
		}
	}
}

func TestMissing(t *testing.T) {
	rows, _ := Parse(table(func(r []string) []string { return r }))
	if m := Missing(rows, func(t string) bool { return t == "attack.TestOne" }); !slices.Equal(m, []string{"verbs.TestTwo"}) {
		t.Errorf("missing: %q", m)
	}
}
