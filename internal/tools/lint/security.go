package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/internal/tools/rfc5042"
)

const (
	checksFile = "internal/checks/checks.go"
	attacksDir = "integration/attack"
)

// weakenedDirs have tests that run with checks switched off: attacks, and scenes in
// which written data is lost.
var weakenedDirs = []string{attacksDir, "integration/history", "integration/simulation", "rnbd", "rtrs", "nbd", "ipsec/invite"}

// checkTable checks the table of RFC 5042 in docs/security.md: every requirement has a
// row, every row a test, and each of these tests exists.
func checkTable(src []byte, tests map[string][]string) []finding {
	rows, complaints := rfc5042.Parse(src)
	var found []finding
	for _, c := range complaints {
		found = append(found, finding{rfc5042.Document, 0, c})
	}
	for _, t := range rfc5042.Missing(rows, func(t string) bool {
		_, name, _ := strings.Cut(t, ".")
		for _, dir := range tests[name] {
			if rfc5042.Names(t, dir, name) {
				return true
			}
		}
		return false
	}) {
		found = append(found, finding{rfc5042.Document, 0, fmt.Sprintf("the table of RFC 5042 names the test %s, which does not exist", t)})
	}
	return found
}

// checkUse records which of the checks that attacks can switch off are used, and where.
type checkUse struct{ product, attack map[string]bool }

// note records the uses in one file.
func (u *checkUse) note(file string, src []byte) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	at := u.product
	switch dir := path.Dir(file); {
	case dir == attacksDir || strings.HasPrefix(dir, attacksDir+"/"):
		at = u.attack
	case strings.HasSuffix(file, "_test.go"):
		if !slices.Contains(weakenedDirs, dir) {
			return nil
		}
		at = u.attack
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, _ := sel.X.(*ast.Ident); x != nil && x.Name == "checks" {
				at[sel.Sel.Name] = true
			}
		}
		return true
	})
	return nil
}

// checkChecks finds checks that the product does not use, and those that no attack is about.
func checkChecks(src []byte, u checkUse) []finding {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, checksFile, src, parser.SkipObjectResolution)
	if err != nil {
		return []finding{{checksFile, 0, fmt.Sprintf("does not parse: %v", err)}}
	}
	var found []finding
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, name := range spec.Names {
			line := fset.Position(name.Pos()).Line
			switch {
			case name.Name == "None":
			case !u.product[name.Name]:
				found = append(found, finding{checksFile, line, fmt.Sprintf("nothing uses the check %s", name.Name)})
			case !u.attack[name.Name]:
				found = append(found, finding{checksFile, line, fmt.Sprintf("no attack or scene in %s is about the check %s", strings.Join(weakenedDirs, ", "), name.Name)})
			}
		}
		return true
	})
	return found
}
