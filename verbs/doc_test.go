package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
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
	for doc, prefix := range map[string]string{"../README.md": "", "doc.go": "//\t"} {
		var want strings.Builder
		for _, l := range lines {
			want.WriteString(strings.TrimRight(prefix+strings.TrimPrefix(l, "\t"), "\t") + "\n")
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
