package ikematrix

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

var planes = []esp.Plane{esp.Userland, esp.Kernel}

func TestPlanIsTheSameEachTimeAndHasNoRowTwice(t *testing.T) {
	for _, plane := range planes {
		names := func() (all []string) {
			for _, r := range Plan(plane, false) {
				all = append(all, fmt.Sprint(r.Name(), r.Stream, r.Refusal != nil))
			}
			return all
		}
		a := names()
		if b := names(); !slices.Equal(a, b) {
			t.Errorf("%v: two plans differ", plane)
		}
		seen := map[string]bool{}
		for _, n := range a {
			if seen[n] {
				t.Errorf("%v: %s is there twice", plane, n)
			}
			seen[n] = true
		}
		t.Logf("%v: %d rows", plane, len(a))
	}
}

func TestShortPlanHasEveryValueOfTheWholeOne(t *testing.T) {
	for _, plane := range planes {
		whole, few := Plan(plane, false), Plan(plane, true)
		works := func(rows []Row, part *Case) bool {
			return slices.ContainsFunc(rows, func(r Row) bool {
				return r.Refusal == nil && r.Whole == "" && r.Charon != noOpenSSL && fits(&r.Case, part)
			})
		}
		for _, f := range factors(plane == esp.Kernel) {
			for _, v := range f.values {
				var c Case
				*f.get(&c) = v
				if works(whole, &c) && !works(few, &c) {
					t.Errorf("%v: %s %s is not tried", plane, f.name, v)
				}
			}
		}
		for _, r := range whole {
			if (r.Whole != "" || r.Refusal != nil && slices.ContainsFunc(r.Refusal.Examples, func(c Case) bool { return c.withDefaults() == r.Case })) &&
				!slices.ContainsFunc(few, func(s Row) bool { return s.Case == r.Case }) {
				t.Errorf("%v: %s is left out", plane, r.Name())
			}
		}
		if 2*len(few) > len(whole) && plane == esp.Userland {
			t.Errorf("%v: %d rows of %d are not few", plane, len(few), len(whole))
		}
		t.Logf("%v: %d rows of %d", plane, len(few), len(whole))
	}
}

// Settings that can be combined are in a row that works; those that cannot are in one
// that has to be refused.
func TestPlanCoversWhatItSays(t *testing.T) {
	for _, plane := range planes {
		small := plane == esp.Kernel
		refusals := refusalsOf(plane)
		rows := Plan(plane, false)
		covered := func(c *Case) bool {
			return slices.ContainsFunc(rows, func(r Row) bool { return r.Whole == "" && r.Refusal == nil && fits(&r.Case, c) })
		}
		fs := factors(small)
		for a := range fs {
			for b := a + 1; b < len(fs); b++ {
				for _, x := range fs[a].values {
					for _, y := range fs[b].values {
						var c Case
						*fs[a].get(&c), *fs[b].get(&c) = x, y
						if find(refusals, &c) == nil && !covered(&c) {
							t.Errorf("%v: no row works with %s %s and %s %s", plane, fs[a].name, x, fs[b].name, y)
						}
					}
				}
			}
		}
		for _, esp := range fs[0].values {
			for _, ike := range fs[1].values {
				for _, auth := range fs[2].values {
					c := Case{ESP: esp, Exchange: ike, Auth: auth}
					if !small && !slices.ContainsFunc(rows, func(r Row) bool { return fits(&r.Case, &c) && (r.Refusal == nil) == (find(refusals, &c) == nil) }) {
						t.Errorf("%v: no row has %s, %s and %s, and the outcome that this has", plane, esp, ike, auth)
					}
				}
			}
		}
		for _, f := range refusals {
			if !slices.ContainsFunc(rows, func(r Row) bool { return r.Refusal == f || r.Refusal != nil && r.Refusal.Why == f.Why }) {
				t.Errorf("%v: no row is refused because %s", plane, f.Why)
			}
		}
		for _, key := range []string{ikeV2, main1, aggressive} {
			if !slices.ContainsFunc(rows, func(r Row) bool { return r.Stream && r.Exchange == key }) {
				t.Errorf("%v: no RDMA over %s", plane, key)
			}
		}
		for _, p := range profile.Names() {
			if !slices.ContainsFunc(rows, func(r Row) bool { return r.Whole == p }) {
				t.Errorf("%v: profile %s is not tried as it is", plane, p)
			}
		}
	}
}

// fits reports whether a case has part's settings.
func fits(c, part *Case) bool {
	for _, f := range factors(false) {
		if want := *f.get(part); want != "" && want != *f.get(c) {
			return false
		}
	}
	return true
}

func TestOneRefusalDoesNotHideAnother(t *testing.T) {
	for _, plane := range planes {
		refusals := refusalsOf(plane)
		for _, r := range refusals {
			for _, c := range r.Examples {
				c = c.withDefaults()
				for _, other := range refusals {
					if other != r && other.Holds(&c) {
						t.Errorf("%v: the example %s of %q is refused for another reason, too: %s", plane, c.Name(), r.Why, other.Why)
					}
				}
			}
		}
	}
}

func TestCoverLeavesOutWhatConflictsAndSaysSo(t *testing.T) {
	fs := factors(true)[:4]
	conflict := func(c *Case) bool { return c.Exchange == ikeV2 && c.Auth == rsa }
	cases, left := cover(fs, []int{0, 1}, conflict)
	if slices.ContainsFunc(cases, func(c Case) bool { return conflict(&c) }) {
		t.Error("a case has what conflicts")
	}
	if len(left) != 1 || left[0] != (Case{Exchange: ikeV2, Auth: rsa}) {
		t.Errorf("left out: %+v", left)
	}
	// Where one value excludes all of another setting, going back does not help.
	none := func(c *Case) bool { return c.Exchange == aggressive && c.Auth != "" }
	cases, left = cover(fs, nil, none)
	if len(cases) == 0 || slices.ContainsFunc(cases, func(c Case) bool { return c.Exchange == aggressive }) || len(left) == 0 {
		t.Errorf("%d cases, left out: %+v", len(cases), left)
	}
	// A conflict of the last setting with an earlier one is found by going back.
	back := func(c *Case) bool { return c.Identity != "" && c.Auth == psk && c.Exchange == ikeV2 }
	cases, _ = cover(fs, []int{0, 1}, back)
	for _, esp := range fs[0].values {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.ESP == esp && c.Exchange == ikeV2 }) {
			t.Errorf("no case with %s and %s, though other authentication would do", esp, ikeV2)
		}
	}
}

func TestCasesMakeTheProfileTheyName(t *testing.T) {
	c := Case{Exchange: main1, Suite: "3des-sha1", Group: "modp2048", ESP: "null-sha1", PFS: on, ESN: off, Mode: modeTransport}.withDefaults()
	p, err := c.profile()
	if err != nil {
		t.Fatal(err)
	}
	if c.ProfileName() != "rfc3723-null" || p.Name != c.ProfileName() || p.Version != 1 || p.Aggressive || p.Mode != profile.Transport || p.ESN || !p.PFS ||
		!slices.Equal(p.IKE, []string{"3des-sha1-modp2048"}) || !slices.Equal(p.ESP, []string{"null-sha1-modp2048"}) {
		t.Errorf("%s: %+v", c.ProfileName(), p)
	}
	c = Case{Exchange: aggressive, PFS: off, Identity: userFQDN}.withDefaults()
	if p, err = c.profile(); err != nil || !p.Aggressive || p.Version != 1 || p.ESP[0] != c.ESP || c.Charon != careless {
		t.Errorf("%+v, %v", p, err)
	}
	if a, b := c.identities("1", "2"); a == b || !strings.Contains(a, "@") {
		t.Errorf("identities %s and %s", a, b)
	}
	c = Case{ESP: "3des-sha1"}.withDefaults()
	if p, err = c.profile(); err != nil || p.RekeyBytes == 0 || p.Validate() != nil {
		t.Errorf("%+v, %v, %v", p, err, p.Validate())
	}
}
