package newcomer

import (
	"os"
	"path/filepath"
	"testing"
)

// A path that is not there would never change.
func TestInputsOfEachTestAreThere(t *testing.T) {
	if _, err := git(t, "rev-parse", "HEAD"); err != nil {
		t.Skip(err)
	}
	seen := make(map[string]string)
	for test := range inputs {
		for _, p := range inputsOf(test) {
			if _, err := os.Stat(filepath.Join(top, p)); err != nil {
				t.Errorf("%s: %v", test, err)
			}
		}
		sum, err := digest(t, test)
		if err != nil || seen[sum] != "" {
			t.Errorf("%s: %v, the digest is that of %q", test, err, seen[sum])
		}
		seen[sum] = test
	}
}
