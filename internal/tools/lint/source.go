package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
)

const maxLines = 800

func checkLength(file string, src []byte) []finding {
	if n := bytes.Count(src, []byte{'\n'}); n > maxLines {
		return []finding{{file, 0, fmt.Sprintf("%d lines; a file tells one story in at most %d", n, maxLines)}}
	}
	return nil
}

// checkTest finds skips that give no reason and waits for the clock.
func checkTest(file string, src []byte) []finding {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return []finding{{file, 0, fmt.Sprintf("does not parse: %v", err)}}
	}
	var found []finding
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		recv, _ := sel.X.(*ast.Ident)
		if recv == nil {
			return true
		}
		line := fset.Position(call.Pos()).Line
		switch {
		case recv.Name == "time" && sel.Sel.Name == "Sleep":
			found = append(found, finding{file, line, "a test waits for a condition, not for the clock (time.Sleep)"})
		case sel.Sel.Name == "SkipNow" && len(call.Args) == 0,
			sel.Sel.Name == "Skip" && isTestHandle(recv.Name) && len(call.Args) == 0,
			(sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf") && isTestHandle(recv.Name) && emptyReason(call.Args):
			found = append(found, finding{file, line, "a skipped test says why: t.Skip(\"reason\")"})
		}
		return true
	})
	return found
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z0-9]\w*)\(`)

// testNames lists the tests that a file has.
func testNames(src []byte) []string {
	var names []string
	for _, m := range testFunc.FindAllSubmatch(src, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

func isTestHandle(name string) bool { return name == "t" || name == "b" || name == "f" || name == "tb" }

func emptyReason(args []ast.Expr) bool {
	if len(args) == 0 {
		return true
	}
	lit, ok := args[0].(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && len(lit.Value) <= 2
}
