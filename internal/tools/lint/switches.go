package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/printer"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A package has its checks in checks.go, which is built into the product, and once more,
// with switches, in weakened.go, which has the build tag.
const (
	productChecks = "checks.go"
	weakChecks    = "weakened.go"
	switchesDir   = "internal/checks"
)

// checkSwitch finds a product file that could switch a check off.
func checkSwitch(file string, src []byte) ([]finding, error) {
	if strings.HasSuffix(file, "_test.go") || path.Dir(file) == switchesDir {
		return nil, nil
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	switches := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(module+"/"+switchesDir) })
	switch {
	case switches && path.Base(file) != weakChecks:
		return []finding{{file, 0, fmt.Sprintf("imports %s: have the check in %s, and the switch in %s", switchesDir, productChecks, weakChecks)}}, nil
	case path.Base(file) == weakChecks && !hasTag(f):
		return []finding{{file, 0, "is built into the product: //go:build weakened"}}, nil
	}
	return nil, nil
}

func hasTag(f *ast.File) bool {
	for _, g := range f.Comments {
		for _, c := range g.List {
			if x, err := constraint.Parse(c.Text); err == nil && g.Pos() < f.Package {
				return !x.Eval(func(tag string) bool { return tag != "weakened" }) && x.Eval(func(string) bool { return true })
			}
		}
	}
	return false
}

// checkTwins compares the two files: with all switches on, weakened.go has to do what
// checks.go does, or attacks on the one would prove nothing about the other.
func checkTwins(dir string, product, weak []byte) []finding {
	file := path.Join(dir, weakChecks)
	want, err := functions(product)
	if err != nil {
		return []finding{{path.Join(dir, productChecks), 0, fmt.Sprintf("does not parse: %v", err)}}
	}
	have, err := functions(weak)
	if err != nil {
		return []finding{{file, 0, fmt.Sprintf("does not parse: %v", err)}}
	}
	var found []finding
	for name, w := range want {
		switch h, ok := have[name]; {
		case !ok:
			found = append(found, finding{file, 0, fmt.Sprintf("has no switch for %s of %s", name, productChecks)})
		case w.text != h.text:
			found = append(found, finding{file, h.line, fmt.Sprintf("%s with its checks on is not what %s has:\n\t%s\n\t%s", name, productChecks, h.text, w.text)})
		}
	}
	slices.SortFunc(found, func(a, b finding) int { return strings.Compare(a.text, b.text) })
	return found
}

type function struct {
	line int
	text string
}

// functions returns the functions of a file, with all checks on.
func functions(src []byte) (map[string]function, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	all := make(map[string]function)
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := fn.Name.Name
		if fn.Recv != nil {
			name = render(fn.Recv.List[0].Type) + "." + name
		}
		line := fset.Position(fn.Pos()).Line
		checksOn(fn)
		all[name] = function{line, render(fn)}
	}
	return all, nil
}

// render prints without regard to lines.
func render(n ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), n); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// checksOn replaces each checks.On by true and drops what then cannot be reached.
func checksOn(fn *ast.FuncDecl) {
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			n.List = reached(n.List)
		case *ast.CaseClause:
			n.Body = reached(n.Body)
			simplifyAll(n.List)
		case *ast.ReturnStmt:
			simplifyAll(n.Results)
		case *ast.AssignStmt:
			simplifyAll(n.Rhs)
		case *ast.CallExpr:
			simplifyAll(n.Args)
		case *ast.IfStmt:
			n.Cond = simplify(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				n.Cond = simplify(n.Cond)
			}
		}
		return true
	})
}

func reached(list []ast.Stmt) (out []ast.Stmt) {
	for _, s := range list {
		i, _ := s.(*ast.IfStmt)
		if i == nil || i.Init != nil {
			out = append(out, s)
			continue
		}
		switch i.Cond = simplify(i.Cond); {
		case isConst(i.Cond, "true"):
			out = append(out, reached(i.Body.List)...)
		case !isConst(i.Cond, "false"):
			out = append(out, s)
		case i.Else != nil:
			out = append(out, reached([]ast.Stmt{i.Else})...)
		}
	}
	return out
}

func simplifyAll(list []ast.Expr) {
	for i, e := range list {
		list[i] = simplify(e)
	}
}

// simplify evaluates constants, and puts parentheses around each operation and nowhere
// else.
func simplify(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return simplify(e.X)
	case *ast.CallExpr:
		if sel, ok := e.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "On" {
			if x, _ := sel.X.(*ast.Ident); x != nil && x.Name == "checks" {
				return ast.NewIdent("true")
			}
		}
	case *ast.UnaryExpr:
		e.X = simplify(e.X)
		switch {
		case e.Op == token.NOT && isConst(e.X, "true"):
			return ast.NewIdent("false")
		case e.Op == token.NOT && isConst(e.X, "false"):
			return ast.NewIdent("true")
		}
	case *ast.BinaryExpr:
		x, y := simplify(e.X), simplify(e.Y)
		unit, zero := "true", "false"
		switch e.Op {
		case token.LOR:
			unit, zero = zero, unit
		case token.LAND:
		default:
			unit, zero = "", ""
		}
		switch {
		case isConst(x, unit):
			return y
		case isConst(y, unit):
			return x
		case isConst(x, zero), isConst(y, zero):
			return ast.NewIdent(zero)
		}
		return &ast.ParenExpr{X: &ast.BinaryExpr{X: x, Op: e.Op, Y: y}}
	}
	return e
}

func isConst(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && name != "" && id.Name == name
}
