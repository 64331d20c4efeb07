package driver

import (
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	for _, tc := range []struct {
		id   string
		want volumeID
		ok   bool
	}{
		{"store/fast/pvc-1", volumeID{"store", "fast", "pvc-1"}, true},
		{"./fast/pvc-1", volumeID{".", "fast", "pvc-1"}, true},
		{"store/pvc-1", volumeID{}, false},
		{"store/fast/pvc-1/", volumeID{}, false},
		{"store//pvc-1", volumeID{}, false},
		{"store/../pvc-1", volumeID{}, false},
		{"", volumeID{}, false},
		{"pvc-1", volumeID{}, false},
		{"/pvc-1", volumeID{}, false},
		{"store/", volumeID{}, false},
		{"../pvc-1", volumeID{}, false},
		{"../fast/x", volumeID{}, false},
		{"store/fast/..", volumeID{}, false},
		{"store/fast/.", volumeID{}, false},
		{"store/fast/a\x00", volumeID{}, false},
		{"store/fast/a\n", volumeID{}, false},
		{"st?re/fast/a", volumeID{}, false},
		{"store/fast/a%2e", volumeID{}, false},
		{"store/fast/" + strings.Repeat("a", maxName), volumeID{"store", "fast", strings.Repeat("a", maxName)}, true},
		{"store/fast/" + strings.Repeat("a", maxName+1), volumeID{}, false},
		{strings.Repeat("a", 1<<20), volumeID{}, false},
	} {
		got, err := parseID(tc.id)
		if (err == nil) != tc.ok || got != tc.want {
			t.Errorf("%.40q: %+v, %v", tc.id, got, err)
		}
		if err != nil && len(err.Error()) > 4*maxID {
			t.Errorf("%.40q: an error of %d bytes", tc.id, len(err.Error()))
		}
	}
}

func FuzzID(f *testing.F) {
	for _, s := range []string{"store/fast/pvc-1", "./a/x", "../x", "a/b/c", "", "\xff/\xfe/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseID(s)
		if err == nil && (v.String() != s || strings.ContainsAny(v.name, "/%?#\x00") || len(s) > maxID) {
			t.Errorf("%q is taken for %+v", s, v)
		}
	})
}

// Different names of the orchestrator's are different volumes, whatever they look like.
func TestNamesStayDifferent(t *testing.T) {
	long := strings.Repeat("n", maxID)
	names := []string{"pvc-1", "pvc/1", "pvc 1", "../../etc", "ä", long, long[1:], "csi-x", nameOf("pvc/1"), strings.Repeat("a", maxName), strings.Repeat("a", maxName+1)}
	made := make(map[string]string)
	for _, n := range names {
		got := nameOf(n)
		if !isName(got, maxName) {
			t.Errorf("%q becomes %q, which no export can be called", n, got)
		}
		if other, ok := made[got]; ok {
			t.Errorf("%q and %q are both %q", n, other, got)
		}
		made[got] = n
	}
	if nameOf("pvc-4c2f0f8e-9d8e-4a53-bb1d-5b3f0e2f8f11") != "pvc-4c2f0f8e-9d8e-4a53-bb1d-5b3f0e2f8f11" {
		t.Error("Kubernetes' own names should stay readable")
	}
}
