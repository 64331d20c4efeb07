package ikematrix

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write what was found into the document")

var document = filepath.Join("..", "..", "docs", "ipsec-matrix.md")

func TestEveryCombinationWorksOrIsRefusedAsTheDocumentSays(t *testing.T) {
	r := Run(t, false)
	t.Log(r.Summary())
	if !r.Complete {
		t.Skip("rows were left out, so that there is nothing to compare to the document")
	}
	if *update && len(r.Failed()) == 0 {
		if err := WriteDocument(document, r); err != nil {
			t.Fatal(err)
		}
	}
	version, err := DocumentVersion(document, r.Plane)
	if err != nil {
		t.Fatal(err)
	}
	if version != r.StrongSwan {
		t.Skipf("the combinations went as expected; the document is about strongSwan %s, and this is %s", version, r.StrongSwan)
	}
	if diff, err := CheckDocument(document, r); err != nil || diff != "" {
		t.Errorf("%s: %v %s; go test ./integration/ikematrix -update writes it", document, err, diff)
	}
}

// The kernel's part comes from a virtual machine, but can be checked anywhere.
func TestDocumentHasTheRowsOfThePlanAndTheirOutcomes(t *testing.T) {
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(documentHead, "<!--")
	if !strings.HasPrefix(string(b), head) {
		t.Errorf("%s does not begin as a new one would", document)
	}
	for _, plane := range planes {
		begin, end := marks(plane.String())
		_, rest, _ := strings.Cut(string(b), begin)
		part, _, ok := strings.Cut(rest, end)
		if !ok {
			t.Fatalf("%s has no part for %v", document, plane)
		}
		_, table, _ := strings.Cut(part, "All rows")
		rows := Plan(plane, false)
		for _, r := range rows {
			if t.Failed() {
				break // the others are wrong in the same way
			}
			want := "| " + strings.Join(r.cells(), " | ") + " | "
			_, result, ok := strings.Cut(table, want)
			switch {
			case !ok:
				t.Errorf("%v: no row %s", plane, want)
			case strings.HasPrefix(result, "**surprise"), strings.HasPrefix(result, "refused: ") != (r.Refusal != nil):
				t.Errorf("%v: %s %.60s", plane, want, result)
			}
		}
		if n := strings.Count(table, "\n| ") - 2; n != len(rows) {
			t.Errorf("%v: %d rows, the plan has %d", plane, n, len(rows))
		}
		if !strings.Contains(part, "; 0 packets in clear. The control row found its packets in clear.") {
			t.Errorf("%v: it does not say that nothing was in clear", plane)
		}
	}
}
