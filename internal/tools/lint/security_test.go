package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/internal/tools/rfc5042"
)

func TestTableOfRFC5042NamesTestsThatExist(t *testing.T) {
	var table strings.Builder
	for i := range rfc5042.Rows {
		fmt.Fprintf(&table, "| R%d | 6.1 | `attack.TestOne` |\n", i+1)
	}
	has := map[string][]string{"TestOne": {"integration/attack"}}
	expect(t, checkTable([]byte(table.String()), has), "")
	expect(t, checkTable([]byte(table.String()), map[string][]string{"TestOne": {"verbs"}}), "attack.TestOne, which does not exist")
	expect(t, checkTable([]byte(strings.Replace(table.String(), "`attack.TestOne`", "", 1)), has), "R1 names no test")
}

func TestChecksAreMadeAndAttacked(t *testing.T) {
	const src = "package checks\n\nconst (\n\tNone Check = iota\n\tBounds\n)\n"
	use := func(files ...string) checkUse {
		u := checkUse{map[string]bool{}, map[string]bool{}}
		for _, f := range files {
			if err := u.note(f, []byte("package x\n\nvar _ = checks.On(checks.Bounds)\n")); err != nil {
				t.Fatal(err)
			}
		}
		return u
	}
	expect(t, checkChecks([]byte(src), use("verbs/stag.go", "integration/attack/a_test.go")), "")
	expect(t, checkChecks([]byte(src), use("verbs/stag.go", "integration/attack/load/a_test.go")), "")
	expect(t, checkChecks([]byte(src), use("verbs/stag.go", "verbs/stag_test.go")), "no attack or scene in integration/attack, integration/history, integration/simulation, rnbd, rtrs, nbd, ipsec/invite is about the check Bounds")
	expect(t, checkChecks([]byte(src), use("integration/attack/a_test.go")), "nothing uses the check Bounds")
	expect(t, checkChecks([]byte("package"), use()), "does not parse")
}
