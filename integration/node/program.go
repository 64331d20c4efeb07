package node

import (
	"os"
	"sync"
	"testing"
)

// binaryVar names a program that is already built: virtual machines have it, in which
// building takes long.
const binaryVar = "IRONWARP_BINARY"

// Program is `ironwarp`, built when a test first needs it, for all tests of a
// package.
type Program struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Path is where the program is.
func (p *Program) Path(t testing.TB) string {
	t.Helper()
	p.once.Do(func() {
		if p.path = os.Getenv(binaryVar); p.path != "" {
			return
		}
		if p.dir, p.err = os.MkdirTemp("", "ironwarp"); p.err == nil {
			p.path, p.err = Build(t.Context(), p.dir)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.path
}

// Remove removes it, in TestMain. It fails with the file system's error.
func (p *Program) Remove() error {
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}
