package howlong

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func said(file, what string, first time.Duration) (string, *Run) {
	var b strings.Builder
	r := Begin(&b, file, what, first)
	return b.String(), r
}

func TestTheLastRunIsReportedAtTheBeginning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cache", "times.json")
	if s, _ := said(file, "make test", 10*time.Minute); !strings.Contains(s, "make test takes some 10 minutes") {
		t.Errorf("a first run: %q", s)
	}
	s, r := said(file, "make test PKG=./ddp", 0)
	if !strings.Contains(s, "has never finished here") {
		t.Errorf("a run that has not finished yet: %q", s)
	}
	r.began = r.began.Add(-9 * time.Minute)
	if err := r.End(); err != nil {
		t.Fatal(err)
	}
	if s, _ := said(file, "make test PKG=./ddp", 0); !strings.Contains(s, "took 9 minutes here the last time, on "+time.Now().Format(time.DateOnly)) {
		t.Errorf("the second: %q", s)
	}
	if s, _ := said(file, "make test", 40*time.Second); !strings.Contains(s, "some 40 seconds") {
		t.Errorf("another: %q", s)
	}
	for _, content := range []string{"", "null", "[]", `{"make test": 3}`} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s, r := said(file, "make test", time.Minute)
		if !strings.Contains(s, "some 60 seconds") {
			t.Errorf("%q: %q", content, s)
		}
		if err := r.End(); err != nil {
			t.Errorf("%q: %v", content, err)
		}
	}
}
