package policy

import (
	"errors"
	"strings"
	"testing"
)

// head begins the policies of tests.
const head = "module test 1.0;\nrequire { class rdma_partition { modify }; }\n"

// fabric is the example of the package's comment.
const fabric = `module fabric 1.0;

require { class rdma_partition { modify }; }

attribute hpc;
type solver_t, hpc;
type viewer_t;
type research_part_t;

allow hpc research_part_t : rdma_partition { modify };
neverallow viewer_t research_part_t : rdma_partition { modify };

#partcon 0x0012 system_u:object_r:research_part_t
`

func parse(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Parse("test.te", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExampleDecidesAsItReads(t *testing.T) {
	p := parse(t, fabric)
	for _, c := range []struct {
		subject, partition string
		want               bool
	}{
		{"system_u:system_r:solver_t", "system_u:object_r:research_part_t", true},
		{"solver_t", "research_part_t", true},
		{"system_u:system_r:solver_t:s0-s0:c0.c1023", "system_u:object_r:research_part_t:s0", true},
		{"viewer_t", "research_part_t", false},
		{"research_part_t", "solver_t", false},
		{"solver_t", "solver_t", false},
	} {
		if got, err := p.MayModify(c.subject, c.partition); got != c.want || err != nil {
			t.Errorf("%s %s: %v, %v", c.subject, c.partition, got, err)
		}
	}
	if p.Source() != "policy test.te" {
		t.Errorf("source %q", p.Source())
	}
}

func TestLabelsThatAreNoneAreErrors(t *testing.T) {
	p := parse(t, fabric)
	for label, want := range map[string]error{
		"":                         ErrContext,
		"unknown_t":                ErrUnknownType,
		"hpc":                      ErrUnknownType, // an attribute
		"u:r:unknown_t":            ErrUnknownType,
		"u:r:hpc":                  ErrUnknownType,
		"u:r":                      ErrContext,
		"u:r:":                     ErrContext,
		":r:solver_t":              ErrContext,
		"u::solver_t":              ErrContext,
		"u:r:solver_t:":            ErrContext,
		"u:r:solver_t:s0 ":         ErrContext,
		"u:r:solver_t\x00":         ErrContext,
		"u:r:solver_t\n":           ErrContext,
		" solver_t":                ErrContext,
		strings.Repeat("a", 10000): ErrContext,
		"u:r:solver_t:" + strings.Repeat("c", 10000): ErrContext,
	} {
		if ok, err := p.MayModify(label, "research_part_t"); ok || !errors.Is(err, want) {
			t.Errorf("subject %.40q: %v, %v; want %v", label, ok, err, want)
		}
		if ok, err := p.MayModify("solver_t", label); ok || !errors.Is(err, want) {
			t.Errorf("partition %.40q: %v, %v; want %v", label, ok, err, want)
		}
	}
}

func TestPartitionHasItsLabelWithEitherMembership(t *testing.T) {
	p := parse(t, fabric+"type a; #partcon\t32767  u:object_r:solver_t:s0:c1 \n## partcon 0x1 u:object_r:viewer_t\n##partcon 0x1 u:object_r:viewer_t")
	for pkey, want := range map[uint16]string{
		0x0012: "system_u:object_r:research_part_t", 0x8012: "system_u:object_r:research_part_t",
		0x7fff: "u:object_r:solver_t:s0:c1", 0xffff: "u:object_r:solver_t:s0:c1",
		0x0001: "", 0: "", 0x8000: "", 0x1200: "",
	} {
		if got, ok := p.Partition(pkey); got != want || ok != (want != "") {
			t.Errorf("%#04x: %q, %v", pkey, got, ok)
		}
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	p := parse(t, fabric)
	if n := testing.AllocsPerRun(100, func() {
		if ok, err := p.MayModify("system_u:system_r:solver_t:s0", "system_u:object_r:research_part_t"); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
