package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestVersionsSortAsTheirCommits(t *testing.T) {
	date := time.Date(2026, 11, 28, 3, 4, 5, 0, time.UTC)
	last := "0"
	for _, v := range []struct{ described, want string }{
		{"abcdef0", "0.0.0+20261128030405.abcdef0"},
		{"abcdef0-dirty", "0.0.0+20261128030405.abcdef0.dirty"},
		{"v1.2.3-rc1", "1.2.3~rc1"},
		{"v1.2.3-rc1-4-gabcdef0", "1.2.3~rc1+4.gabcdef0"},
		{"v1.2.3", "1.2.3"},
		{"1.2.3-dirty", "1.2.3+dirty"},
		{"v1.2.4", "1.2.4"},
		{"v1.2.4-9-gabcdef0", "1.2.4+9.gabcdef0"},
		{"v1.2.4-10-gabcdef0-dirty", "1.2.4+10.gabcdef0.dirty"},
		{"v1.10", "1.10"},
	} {
		got, err := packageVersion(v.described, date)
		if err != nil || got != v.want {
			t.Errorf("%s is %q, %v; want %q", v.described, got, err, v.want)
			continue
		}
		if dpkg, err := exec.LookPath("dpkg"); err == nil {
			if err := exec.Command(dpkg, "--compare-versions", last, "lt", got).Run(); err != nil {
				t.Errorf("dpkg does not hold %s for later than %s", got, last)
			}
		}
		last = got
	}
}

func TestWhatIsNoVersionIsRefused(t *testing.T) {
	for _, described := range []string{"", "devel", "-dirty", "1", "v1.2.3 x", "1.2.3\n", "v1.2.3-Ä", "1.2.3;rm", "../1.2", "v1.2.3-4-gXYZ"} {
		if got, err := packageVersion(described, time.Time{}); err == nil {
			t.Errorf("%q is taken as %q", described, got)
		}
	}
}

func TestOutputIsNeverAnothersDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := clean(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
	if err := clean(dir); err == nil { // it has new in it
		t.Error("a directory with something else in it was emptied")
	}
}

func TestTimeOfTheFiles(t *testing.T) {
	for _, text := range []string{"x", "-1", "1e9"} {
		t.Setenv("SOURCE_DATE_EPOCH", text)
		if got, err := sourceDate("."); err == nil {
			t.Errorf("%q is taken as %v", text, got)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if got, err := sourceDate("."); err != nil || got.Format(time.RFC3339) != "2023-11-14T22:13:20Z" {
		t.Errorf("%v, %v", got, err)
	}
}
