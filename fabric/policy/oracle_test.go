package policy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/fabric/policy/policytest"
)

// randomPolicies is how many policies are compared; a hundred take SELinux' programs five seconds.
const randomPolicies = 80

// TestRandomPoliciesDecideAsSELinuxDoes: what a policy says of each pair of types is what
// SELinux' compilers and sesearch make of the same file, and what is refused as
// violating a neverallow rule is refused by them.
func TestRandomPoliciesDecideAsSELinuxDoes(t *testing.T) {
	policytest.Need(t)
	policies := make(map[string]*policy.Policy)
	texts := make(map[string]string)
	violated := 0
	for seed := range uint64(randomPolicies) {
		text := policytest.Draw(seed)
		p, err := policy.Parse("policy.te", []byte(text))
		dir := filepath.Join(t.TempDir(), strconv.FormatUint(seed, 10))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		binary, cerr := policytest.Compile(t.Context(), dir, text, policytest.Options{})
		switch {
		case (err == nil) != (cerr == nil):
			t.Errorf("seed %d: %v; SELinux: %v\n%s", seed, err, cerr, text)
		case err == nil:
			policies[binary], texts[binary] = p, text
		case errors.Is(err, policy.ErrNeverAllowed):
			violated++
		default:
			t.Errorf("seed %d: %v\n%s", seed, err, text)
		}
	}
	if t.Failed() {
		return
	}
	var binaries []string
	for b := range policies {
		binaries = append(binaries, b)
	}
	found, err := policytest.Search(t.Context(), binaries...)
	if err != nil {
		t.Fatal(err)
	}
	pairs, allowed := 0, 0
	for binary, p := range policies {
		for pair, want := range found[binary] {
			got, err := p.MayModify(pair[0], pair[1])
			if errors.Is(err, policy.ErrUnknownType) && isBase(pair) && !want {
				continue
			}
			if got != want || err != nil {
				t.Errorf("%s may modify %s: %v, %v; SELinux: %v\n%s", pair[0], pair[1], got, err, want, texts[binary])
			}
			pairs++
			if want {
				allowed++
			}
		}
	}
	t.Logf("%d policies, %d pairs of types, %d of them allowed; %d more policies violated themselves", len(policies), pairs, allowed, violated)
	if allowed < 100 || pairs < 2*allowed || violated < 5 {
		t.Error("the policies are too much alike to prove anything")
	}
}

// isBase reports whether one of the types is of the policy around the module.
func isBase(pair [2]string) bool {
	for _, t := range pair {
		if t == "kernel_t" || t == "required_t" {
			return true
		}
	}
	return false
}

// damagedPolicies is how many damaged ones are; a thousand take two seconds.
const damagedPolicies = 400

// TestWhatIsAcceptedCompiles: checkmodule accepts each file that is accepted here, and
// what is refused here for another reason than that it is beyond the subset is refused
// by SELinux' programs too.
func TestWhatIsAcceptedCompiles(t *testing.T) {
	policytest.Need(t)
	var accepted, refused, beyond int
	for seed := range uint64(damagedPolicies) {
		text := policytest.Damage(policytest.Draw(seed), seed)
		_, err := policy.Parse("policy.te", []byte(text))
		switch {
		case errors.Is(err, policy.ErrBeyondSubset):
			beyond++
			continue
		case err == nil:
			accepted++
		case errors.Is(err, policy.ErrNeverAllowed): // which checkmodule does not look at
			continue
		default:
			refused++
		}
		if cerr := policytest.Check(t.Context(), t.TempDir(), text); (err == nil) != (cerr == nil) {
			t.Errorf("seed %d: %v; checkmodule: %v\n%s", seed, err, cerr, text)
		}
	}
	t.Logf("%d accepted, %d refused, %d beyond the subset", accepted, refused, beyond)
	if accepted < 20 || refused < 100 {
		t.Error("the files are too much alike to prove anything")
	}
}

// TestNames: what can't be a type's name here can't be one to checkmodule, and the other way round.
func TestNames(t *testing.T) {
	policytest.Need(t)
	for _, name := range strings.Fields(`type TYPE Type tYPE role r1 R1 r4 t1 t3 t4 h2 h3 low high low-high LOW-HIGH Low-high self SELF
		modify rdma_partition class object_r names version define ibpkeycon portcon partcon glblub default_type default permissive
		typebounds typealias expandattribute allowxperm true True false eq dom not notify and or xor a-b a- a_ a--b a1 a_1 on off
		_a -a 1a 9 a..b a. a.1 , ; a/b a+b a@b é "a" a:b /a`) {
		text := "module fabric 1;\nrequire { class rdma_partition modify; }\ntype a;\ntype " + name + ";\n"
		if name == "a" {
			continue
		}
		_, err := policy.Parse("policy.te", []byte(text))
		cerr := policytest.Check(t.Context(), t.TempDir(), text)
		if (err == nil) != (cerr == nil) && !errors.Is(err, policy.ErrBeyondSubset) {
			t.Errorf("%s: %v; checkmodule: %v", name, err, cerr)
		}
	}
}

// TestLinesAndDepthsFitCheckmodule: a file at the limits of this package is within those of checkmodule.
func TestLinesAndDepthsFitCheckmodule(t *testing.T) {
	policytest.Need(t)
	const head = "module fabric 1;\nrequire { class rdma_partition modify; }\ntype a;\n"
	for _, text := range []string{
		head + "#" + strings.Repeat("x", 4094) + "\n",
		"#" + strings.Repeat("x", 4094) + "\n" + head,
		head + "allow " + strings.Repeat("{", 32) + "a" + strings.Repeat("}", 32) + " a:rdma_partition modify;",
		head + "type " + strings.Repeat("a", 128) + ";",
		head + strings.Repeat("allow a a:rdma_partition modify;\n", 4096),
	} {
		if _, err := policy.Parse("policy.te", []byte(text)); err != nil {
			t.Error(err)
		}
		if err := policytest.Check(t.Context(), t.TempDir(), text); err != nil {
			t.Error(err)
		}
	}
}

// TestSesearchFindsTheRule: sesearch itself, for the example of the documents.
func TestSesearchFindsTheRule(t *testing.T) {
	policytest.Need(t)
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var example strings.Builder // of the package's comment
	for line := range strings.Lines(string(text)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			example.WriteString(code)
		} else if line == "//\n" {
			example.WriteString("\n")
		}
	}
	p, err := policy.Parse("policy.te", []byte(strings.TrimSpace(example.String())))
	if err != nil {
		t.Fatal(err)
	}
	binary, err := policytest.Compile(t.Context(), t.TempDir(), example.String(), policytest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for subject, want := range map[string]bool{"solver_t": true, "viewer_t": false} {
		got, err := p.MayModify(subject, "research_part_t")
		rule, serr := policytest.Sesearch(t.Context(), binary, subject, "research_part_t")
		if got != want || err != nil || strings.Contains(rule, "research_part_t:rdma_partition modify;") != want || serr != nil {
			t.Errorf("%s: %v, %v; sesearch: %q, %v", subject, got, err, rule, serr)
		}
	}
}

// TestPolicyOfTheDocuments: the example and the class of docs/fabric.md compile, together.
func TestPolicyOfTheDocuments(t *testing.T) {
	policytest.Need(t)
	document, err := os.ReadFile("../../docs/fabric.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string) string {
		_, rest, _ := strings.Cut(string(document), "\n```"+kind+"\n")
		text, _, ok := strings.Cut(rest, "```\n")
		if !ok {
			t.Fatalf("the document has no %s", kind)
		}
		return text
	}
	p, err := policy.Parse("fabric.te", []byte(block("te")))
	if err != nil {
		t.Fatal(err)
	}
	label, _ := p.Partition(0x8012)
	if ok, err := p.MayModify("solver_t", label); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if _, err := policytest.Compile(t.Context(), t.TempDir(), block("te"), policytest.Options{Without: true, More: block("cil")}); err != nil {
		t.Error(err)
	}
}
