package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// fails is how a comment says that a function can fail.
var fails = regexp.MustCompile(`(?i)\bfail|\berrors?\b|\bErr[A-Z]|\*\w+Error\b|\brefused\b|\bimplements\b|\bnil\b|(?-i:\bE[A-Z]{2,}\b|\bErr\b)`)

// checkComments demands that each exported name has a comment which begins with it, so
// that go doc reads well by itself, and that the comment of a function which returns an
// error says how it fails. A group of constants or variables may have one comment, and
// Error, Unwrap, Is, Close and what implements an interface go without the second.
func checkComments(file string, src []byte) ([]finding, error) {
	if strings.HasSuffix(file, "_test.go") {
		return nil, nil
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if f.Name.Name == "main" {
		return nil, nil
	}
	var found []finding
	add := func(n ast.Node, format string, args ...any) {
		found = append(found, finding{file, fset.Position(n.Pos()).Line, fmt.Sprintf(format, args...)})
	}
	named := func(n ast.Node, name string, docs ...*ast.CommentGroup) {
		for _, d := range docs {
			if d != nil && beginsWith(d.Text(), name) {
				return
			}
		}
		add(n, "%s has no comment that begins with its name", name)
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !d.Name.IsExported() || !exportedReceiver(d) {
				continue
			}
			if d.Doc == nil && slices.Contains([]string{"Error", "Unwrap", "Is", "String"}, d.Name.Name) {
				continue
			}
			named(d, d.Name.Name, d.Doc)
			if d.Doc != nil && returnsError(d) && !slices.Contains([]string{"Unwrap", "Close"}, d.Name.Name) && !fails.MatchString(d.Doc.Text()) {
				add(d, "the comment of %s does not say how it fails", d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						named(s, s.Name.Name, d.Doc, s.Doc)
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if n.IsExported() && s.Comment == nil && (d.Doc == nil || !d.Lparen.IsValid()) {
							named(s, n.Name, d.Doc, s.Doc)
						}
					}
				}
			}
		}
	}
	return found, nil
}

// beginsWith reports that a comment begins with a name, behind an article or not.
func beginsWith(text, name string) bool {
	for _, article := range []string{"", "A ", "An ", "The "} {
		if rest, ok := strings.CutPrefix(text, article+name); ok && (rest == "" || !token.IsIdentifier("x"+rest[:1])) {
			return true
		}
	}
	return false
}

// exportedReceiver reports that a function is no method of an unexported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func returnsError(d *ast.FuncDecl) bool {
	if d.Type.Results == nil {
		return false
	}
	for _, r := range d.Type.Results.List {
		if id, ok := r.Type.(*ast.Ident); ok && id.Name == "error" {
			return true
		}
	}
	return false
}
