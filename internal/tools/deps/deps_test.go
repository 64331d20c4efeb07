package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissingNamesOnlyWhatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	have := filepath.Join(dir, "have.so")
	if err := os.WriteFile(have, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	set := []debPackage{
		{name: "complete", files: []string{have}},
		{name: "globbed", files: []string{filepath.Join(dir, "*.so")}},
		{name: "partial", files: []string{have, filepath.Join(dir, "lacks.so")}},
		{name: "absent", files: []string{"no-such-command-anywhere"}},
	}
	if got, want := names(missingOf(set)), "partial absent"; got != want {
		t.Errorf("missing packages: got %q, want %q", got, want)
	}
}

func TestEveryPackageSaysWhatItIsForAndHowItIsRecognised(t *testing.T) {
	for target, set := range sets {
		for _, p := range set {
			if p.name == "" || p.why == "" || len(p.files) == 0 {
				t.Errorf("set %q has an incomplete entry: %+v", target, p)
			}
		}
	}
}

func TestReportNamesPackageAndReason(t *testing.T) {
	var b strings.Builder
	report(&b, "demo", []debPackage{fio})
	for _, want := range []string{"make demo", "fio", fio.why} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, b.String())
		}
	}
}
