package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironwarp/ironwarp/internal/printable"
)

// checkPath returns why a path of the orchestrator's is refused: it has to be absolute, clean, and below base, also after the symbolic
// links of the folder that it is in. So neither a name that somebody smuggled into it nor a link in a pod's folder has the plugin, which
// is root, mount or remove anything elsewhere.
func checkPath(base, path string) error {
	switch {
	case path == "":
		return errors.New("it is empty")
	case len(path) > maxPath:
		return fmt.Errorf("it has %d bytes; %d are allowed", len(path), maxPath)
	case printable.Check(path) != nil:
		return printable.Check(path)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return fmt.Errorf("%q is not absolute and clean", path)
	case !within(base, path):
		return fmt.Errorf("%s is not below %s", path, base)
	}
	realBase, err := filepath.EvalSymlinks(base)
	if err != nil {
		return err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing is there, so no link leads elsewhere; who makes something there makes the folder first
	}
	if err != nil {
		return err
	}
	if real := filepath.Join(parent, filepath.Base(path)); !within(realBase, real) {
		return fmt.Errorf("%s leads to %s by a symbolic link, which is not below %s", path, real, base)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("%s is a symbolic link", path)
	}
	return nil
}

// within reports whether a clean path is below base.
func within(base, path string) bool {
	rel, err := filepath.Rel(base, path)
	return err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../")
}
