package ikematrix

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/template"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// ErrDocument means that WriteDocument cannot change the document.
var ErrDocument = errors.New("not the document of the IKE matrix")

// WriteDocument writes the report's part of docs/ipsec-matrix.md and leaves those of
// other data planes alone. It creates a document that does not exist. It fails with
// ErrDocument where the document has no place for that part, and with the file system's
// error.
func WriteDocument(path string, r *Report) error {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		old = []byte(documentHead)
	case err != nil:
		return fmt.Errorf("write the IKE matrix: %w", err)
	}
	begin, end := marks(r.Plane)
	from, to := bytes.Index(old, []byte(begin)), bytes.Index(old, []byte(end))
	if from < 0 || to < from {
		return fmt.Errorf("write the IKE matrix to %s: %w: it has no %s", path, ErrDocument, begin)
	}
	part, err := r.part()
	if err != nil {
		return fmt.Errorf("write the IKE matrix: %w", err)
	}
	now := slices.Concat(old[:from+len(begin)], []byte("\n"+part), old[to:])
	if bytes.Equal(old, now) {
		return nil
	}
	return os.WriteFile(path, now, 0o644)
}

// CheckDocument compares the report's part of the document to what the report would
// have written. It returns the first difference, "" if there is none. It fails with
// ErrDocument where there is no such part, and with the file system's error.
func CheckDocument(path string, r *Report) (string, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the IKE matrix: %w", err)
	}
	part, err := r.part()
	if err != nil {
		return "", err
	}
	begin, end := marks(r.Plane)
	_, rest, ok := strings.Cut(string(doc), begin+"\n")
	has, _, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("%s: %w: it has no %s", path, ErrDocument, begin)
	}
	a, b := strings.Split(has, "\n"), strings.Split(part, "\n")
	for i := range max(len(a), len(b)) {
		x, y := "(nothing)", "(nothing)"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return fmt.Sprintf("it says %q, and the run found %q", x, y), nil
		}
	}
	return "", nil
}

// DocumentVersion is the strongSwan that a data plane's part of the document was
// written with. It fails with ErrDocument where it does not say so, and with the file
// system's error.
func DocumentVersion(path, plane string) (string, error) {
	doc, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the IKE matrix: %w", err)
	}
	begin, end := marks(plane)
	_, rest, _ := strings.Cut(string(doc), begin)
	part, _, _ := strings.Cut(rest, end)
	_, rest, ok := strings.Cut(part, "strongSwan ")
	version, _, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 {
		return "", fmt.Errorf("%s: %w: no version of strongSwan for %s", path, ErrDocument, plane)
	}
	return strings.TrimRight(version, ",."), nil
}

func marks(plane string) (begin, end string) {
	return "<!-- begin " + plane + " -->", "<!-- end " + plane + " -->"
}

var partTemplate = template.Must(template.New("part").Parse(partText))

// part is the report in Markdown. It does not depend on the time or on the machine's
// speed.
func (r *Report) part() (string, error) {
	work, refused, surprises := r.Count()
	var b strings.Builder
	err := partTemplate.Execute(&b, map[string]any{
		"Plane": r.Plane, "StrongSwan": r.StrongSwan, "On": r.machine(), "All": len(r.Results), "Works": work, "Refused": refused, "Surprises": surprises,
		"Clear": r.Clear(), "Control": r.Control > 0, "Cross": r.cross(), "Refusals": r.refusals(), "Asked": r.asked(), "Rows": r.rows(),
	})
	return b.String(), err
}

func (r *Report) machine() string {
	if r.Plane == "kernel ESP" {
		return "under Linux " + r.Kernel + " in a virtual machine"
	}
	return "in network namespaces"
}

// cross is the table of ESP algorithms by kind of IKE and authentication.
func (r *Report) cross() string {
	type cell struct{ esp, exchange, auth string }
	found := map[cell][]Result{}
	for _, res := range r.Results {
		if res.Whole == "" {
			k := cell{res.ESP, res.Exchange, res.Auth}
			found[k] = append(found[k], res)
		}
	}
	f := factors(false)
	var b strings.Builder
	head, line := []string{"ESP"}, []string{"---"}
	for _, x := range f[1].values {
		for _, a := range f[2].values {
			head, line = append(head, x+" "+a), append(line, "---")
		}
	}
	row(&b, head...)
	row(&b, line...)
	for _, esp := range f[0].values {
		cells := []string{esp}
		for _, x := range f[1].values {
			for _, a := range f[2].values {
				cells = append(cells, r.cell(found[cell{esp, x, a}], Case{ESP: esp, Exchange: x, Auth: a}))
			}
		}
		row(&b, cells...)
	}
	return b.String()
}

// cell is the result of the rows with these three settings; "" where there are none, or
// only some that are refused for another setting.
func (r *Report) cell(of []Result, c Case) string {
	switch f := find(r.reasons(), &c); {
	case slices.ContainsFunc(of, func(res Result) bool { return res.Surprise != "" }):
		return "**surprise**"
	case slices.ContainsFunc(of, func(res Result) bool { return res.Works }):
		return "works"
	case len(of) > 0 && f != nil:
		return fmt.Sprintf("no: %d", r.numbers()[f.Why])
	}
	return ""
}

func (r *Report) reasons() []*Refusal {
	if plane, err := esp.ParsePlane(r.Plane); err == nil {
		return refusalsOf(plane)
	}
	return nil
}

// numbers numbers the reasons for refusals, in the order of the rows.
func (r *Report) numbers() map[string]int {
	n := map[string]int{}
	for _, res := range r.Results {
		if res.Why != "" && n[res.Why] == 0 {
			n[res.Why] = len(n) + 1
		}
	}
	return n
}

func (r *Report) refusals() string {
	var b strings.Builder
	row(&b, "", "why", "who refuses", "words", "rows")
	row(&b, "---", "---", "---", "---", "---")
	n := r.numbers()
	for i := range len(n) {
		rows := 0
		var first *Result
		for j := range r.Results {
			if res := &r.Results[j]; n[res.Why] == i+1 {
				rows++
				if first == nil {
					first = res
				}
			}
		}
		row(&b, fmt.Sprint(i+1), first.Why, first.By, fmt.Sprintf("`%s`", first.Words), fmt.Sprint(rows))
	}
	return b.String()
}

func (r *Report) asked() string {
	var b strings.Builder
	row(&b, "asked for", "IKE", "words")
	row(&b, "---", "---", "---")
	for _, a := range r.Asked {
		words := fmt.Sprintf("`%s`", a.Words)
		if a.Surprise != "" {
			words = "**surprise**: " + a.Surprise
		}
		row(&b, a.What, a.IKE, words)
	}
	return b.String()
}

func (r *Report) rows() string {
	var b strings.Builder
	head := []string{"profile", "IKE", "authentication", "identity", "IKE proposal", "ESP proposal", "PFS", "ESN", "mode", "network", "strongSwan", "result"}
	row(&b, head...)
	row(&b, slices.Repeat([]string{"---"}, len(head))...)
	n := r.numbers()
	for i := range r.Results {
		res := &r.Results[i]
		row(&b, append(res.cells(), res.text(n))...)
	}
	return b.String()
}

// cells are the cells of the case's row.
func (c *Case) cells() []string {
	ike, esp := c.Suite+"-"+c.Group, c.ESP
	if c.Whole != "" {
		ike, esp = "the profile's", "the profile's"
	}
	return []string{c.ProfileName(), c.Exchange, c.Auth, c.Identity, ike, esp, c.PFS, c.ESN, c.Mode, c.Network, c.Charon}
}

func (res *Result) text(numbers map[string]int) string {
	switch {
	case res.Surprise != "":
		return "**surprise**: " + res.Surprise
	case !res.Works:
		return fmt.Sprintf("refused: %d", numbers[res.Why])
	}
	s := res.Agreed.ESP
	if res.Whole != "" {
		s = res.Agreed.IKE + ", " + s
	}
	if res.Agreed.ESN {
		s += ", ESN"
	}
	if res.Stream {
		s += ", RDMA"
	}
	return s
}

func row(b *strings.Builder, cells ...string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
