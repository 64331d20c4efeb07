package wholefile

import (
	"os"
	"path/filepath"
	"testing"
)

// Another process may be writing.
func TestTemporaryFilesOfTheLivingStay(t *testing.T) {
	dir := t.TempDir()
	for name, stays := range map[string]bool{temporary(os.Getppid()) + "1": true, temporary(os.Getpid()) + "2": false, TemporaryPrefix + "file": false} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := RemoveTemporary(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: stays %v, want %v", name, err == nil, stays)
		}
	}
}
