package api

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	measured = regexp.MustCompile(`(^|_)(seconds|microseconds|per_second)(_per_row)?$`)
	// always are the points in time that whoever writes them knows.
	always = []string{"Info.Started", "SAEvent.Time", "Block.Since", "Block.Until"}
	// asked are of requests: what is absent has a default.
	asked = regexp.MustCompile(`(Request|Change|Spec)$`)
)

// Every field of the API that is measured has its unit in its name, and is absent where
// nothing was measured.
func TestFieldsSayTheirUnitAndWhatWasNotMeasuredIsAbsent(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	check := func(owner string, f *ast.Field) {
		if f.Tag == nil || len(f.Names) == 0 {
			return
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			t.Fatal(err)
		}
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		omitted := strings.Contains(options, "omit")
		what := owner + "." + f.Names[0].Name
		n++
		switch x := f.Type.(type) {
		case *ast.Ident:
			switch {
			case x.Name == "float64" && !measured.MatchString(name):
				t.Errorf("%s is %q, which says no unit", what, name)
			case asked.MatchString(owner):
			case strings.HasSuffix(name, "microseconds") && !omitted && what != "PingReply.Micros":
				t.Errorf("%s (%s) is 0 where nothing was measured", what, name)
			case name == "size_bytes" && !omitted && owner != "Offer":
				t.Errorf("%s (%s) is 0 where it is not known", what, name)
			}
		case *ast.SelectorExpr:
			switch pkg, _ := x.X.(*ast.Ident); {
			case pkg.Name == "time" && x.Sel.Name == "Duration":
				t.Errorf("%s (%s) is a number of nanoseconds", what, name)
			case pkg.Name == "time" && x.Sel.Name == "Time" && !omitted && !slices.Contains(always, what):
				t.Errorf("%s (%s) is of the year 1 where it is not known", what, name)
			}
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			if st, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range st.Fields.List {
					check(spec.Name.Name, f)
				}
			}
			return true
		})
	}
	if n < 200 {
		t.Errorf("%d fields were looked at", n)
	}
}

// A list that has nothing is written as [], wherever it stands.
func TestListsAreNeverNull(t *testing.T) {
	guard := &Guard{BlockedIn: 1}
	st := Status{Peers: []Peer{{}}, IKE: &Component{Name: "x", Problem: &Error{Message: "y"}}, Guard: guard}
	for _, v := range []any{st, &st, []IKESA{{}}, []ULP(nil), Resources{}, Reloaded{}, Audit{Requirements: []Requirement{{}}}, BenchResult{}, Export{}, PeerChange{}, Event{Result: json.RawMessage("1")}, nil, &Error{Message: "z"}} {
		data, err := json.Marshal(Lists(v))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "null") != (v == nil) {
			t.Errorf("%T: %s", v, data)
		}
	}
	if st.Streams != nil || st.Peers[0].Exports != nil || st.Guard != guard {
		t.Error("what was to be written has changed")
	}
}
