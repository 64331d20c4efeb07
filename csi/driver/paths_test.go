package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Neither a path nor a link leads the plugin out of the folder that volumes are mounted in.
func TestPathsStayBelowTheBase(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"pods/a", "other"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"pods/out": outside, "pods/a/link": outside, "pods/in": filepath.Join(base, "other"), "pods/loop": filepath.Join(base, "pods/loop")} {
		if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		path string
		ok   bool
	}{
		{base + "/pods/a/mount", true},
		{base + "/pods/new/mount", true},
		{base + "/pods/in/mount", true},
		{base, false},
		{base + "/", false},
		{"", false},
		{"pods/a", false},
		{"/etc/passwd", false},
		{base + "/../x", false},
		{base + "/pods/../../x", false},
		{base + "/pods//a", false},
		{base + "x/y", false},
		{base + "/pods/out/mount", false},
		{base + "/pods/a/link", false},
		{base + "/pods/loop/mount", false},
		{base + "/pods/a/\x00", false},
		{base + "/pods/a/\n", false},
		{base + "/" + strings.Repeat("a", maxPath), false},
	} {
		if err := checkPath(base, tc.path); (err == nil) != tc.ok {
			t.Errorf("%.80q: %v", tc.path, err)
		}
	}
}

// What is noted of a volume is for that volume alone, and whole or not there.
func TestRecords(t *testing.T) {
	r := records{filepath.Join(t.TempDir(), "state")}
	if rec, err := r.load("store/a"); rec != nil || err != nil {
		t.Fatalf("%+v, %v", rec, err)
	}
	want := &record{Volume: "../../etc/passwd", Peer: "store", Export: "a", Targets: []target{{Path: "/x"}}}
	if err := r.save(want); err != nil {
		t.Fatal(err)
	}
	got, err := r.load(want.Volume)
	if err != nil || got.Peer != "store" || len(got.Targets) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	files, err := os.ReadDir(r.dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if st, err := files[0].Info(); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	for name, content := range map[string]string{"cut off": `{"volume":"store/b"`, "of another": `{"volume":"store/c"}`} {
		if err := os.WriteFile(r.path("store/b"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if rec, err := r.load("store/b"); err == nil {
			t.Errorf("%s: %+v", name, rec)
		}
	}
	if err := r.remove("store/none"); err != nil {
		t.Error(err)
	}
}
