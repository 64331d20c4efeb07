// Package rfc5042 reads the table of RFC 5042's requirements in docs/security.md, for
// the programs that check it.
package rfc5042

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	// Document has the table.
	Document = "docs/security.md"
	// Rows is how many requirements there are, R1 to R34.
	Rows = 34
)

// Row is one requirement.
type Row struct {
	ID    string // "R1"
	Line  int
	Tests []string // as "package.TestName"
}

var (
	row  = regexp.MustCompile(`^\| *(R[0-9]+) *\|(.*)\|\s*$`)
	test = regexp.MustCompile("`([a-z][a-z0-9_/]*\\.(?:Test|Fuzz)[A-Z0-9]\\w*)`")
)

// Parse finds the rows in a document. complaints lists the faults of the table: rows that
// are missing, duplicated or out of order, or that name no test.
func Parse(src []byte) (rows []Row, complaints []string) {
	for i, line := range bytes.Split(src, []byte{'\n'}) {
		m := row.FindSubmatch(line)
		if m == nil {
			continue
		}
		r := Row{ID: string(m[1]), Line: i + 1}
		for _, t := range test.FindAllSubmatch(m[2], -1) {
			r.Tests = append(r.Tests, string(t[1]))
		}
		rows = append(rows, r)
		if want := fmt.Sprintf("R%d", len(rows)); r.ID != want {
			complaints = append(complaints, fmt.Sprintf("line %d: the row of %s is where that of %s should be", r.Line, r.ID, want))
		}
		if len(r.Tests) == 0 {
			complaints = append(complaints, fmt.Sprintf("line %d: %s names no test", r.Line, r.ID))
		}
	}
	if len(rows) != Rows {
		complaints = append(complaints, fmt.Sprintf("%d rows of RFC 5042's requirements, there are %d", len(rows), Rows))
	}
	return rows, complaints
}

// Names reports whether test, "package.TestName", is the test called name of the package
// in dir.
func Names(test, dir, name string) bool {
	pkg, fn, _ := strings.Cut(test, ".")
	return fn == name && (dir == pkg || strings.HasSuffix(dir, "/"+pkg))
}

// Missing lists the tests of rows for which has returns false.
func Missing(rows []Row, has func(test string) bool) []string {
	var missing []string
	for _, r := range rows {
		for _, t := range r.Tests {
			if !has(t) && !slices.Contains(missing, t) {
				missing = append(missing, t)
			}
		}
	}
	return missing
}
