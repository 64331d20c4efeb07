package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// README and the package's page show the program that the example runs.
func TestDocumentsShowTheExample(t *testing.T) {
	src, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "example_test.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	var body *ast.BlockStmt
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "Example" {
			body = f.Body
		}
	}
	program, _, _ := strings.Cut(string(src[fset.Position(body.Lbrace).Offset+2:fset.Position(body.Rbrace).Offset]), "\t// Output:")
	lines := strings.Split(strings.TrimRight(program, "\n"), "\n")
	for doc, prefix := range map[string]string{"../README.md": "", "doc.go": "//\t\t"} {
		var want strings.Builder
		for _, l := range lines {
			if l = strings.TrimPrefix(l, "\t"); l == "" {
				want.WriteString(strings.TrimRight(prefix, "\t") + "\n")
			} else {
				want.WriteString(prefix + l + "\n")
			}
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n"+want.String()) {
			t.Errorf("%s does not have the program of example_test.go:\n%s", doc, want.String())
		}
	}
}

// The first thing on the package's page is a program that runs as it stands there.
func TestProgramOfThePageRuns(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile(`(?m)(^//(\t.*)?\n)+`).Find(page)
	program = regexp.MustCompile(`(?m)^//\t?`).ReplaceAll(program, nil)
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, program, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
	const want = "read back \"hello, RDMA\"\nthe server holds \"hello, RDMA\" and received \"RDMA\"\n"
	if err != nil || string(out) != want {
		t.Errorf("%v: it says %q, want %q", err, out, want)
	}
}

// Who dials and listens needs no package below this one. Adopt is for those who bring
// an LLP of their own.
func TestSetUpNeedsNoPackageBelow(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	foreign := func(of string, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok && len(f.Names) > 0 && !slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
				return false
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"ddp", "mpa", "rdmap", "sctpadapt"}, sel.X.(*ast.Ident).Name) {
				t.Errorf("%v: who uses %s has to import package %s for %s", fset.Position(n.Pos()), of, sel.X, sel.Sel)
			}
			return true
		})
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Name.Name != "AdoptMPA" && (d.Recv == nil || exported(d.Recv.List[0].Type)) {
					for _, params := range []*ast.FieldList{d.Type.Params, d.Type.Results} {
						for i := 0; params != nil && i < len(params.List); i++ {
							foreign(d.Name.Name, params.List[i].Type)
						}
					}
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() && !ts.Assign.IsValid() && ts.Name.Name != "AdoptConfig" {
						foreign(ts.Name.Name, ts.Type)
					}
				}
			}
		}
	}
}

// exported reports that a receiver's type is.
func exported(t ast.Expr) bool {
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	id, ok := t.(*ast.Ident)
	return ok && id.IsExported()
}
