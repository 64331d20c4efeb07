package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed source/*.c source/*.h
var sources embed.FS

// Packages are the Debian packages that the agent is built from.
var Packages = []string{"gcc", "libibverbs-dev", "librdmacm-dev"}

// WriteSource writes the agent's source into a directory, which it makes, and returns the command that compiles it there. It fails
// as writing does, and with fs.ErrExist where another file of such a name is there.
func WriteSource(dir string) (compile string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	files, err := sources.ReadDir("source")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		b, err := sources.ReadFile("source/" + f.Name())
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, f.Name())
		if there, err := os.ReadFile(path); err == nil && !bytes.Equal(there, b) {
			return "", fmt.Errorf("%s is another file: name an empty directory: %w", path, fs.ErrExist)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return "", err
		}
	}
	return "cc -std=gnu11 -O2 -o iwarp-agent *.c -lrdmacm -libverbs", nil
}

// Build returns the path of the agent, compiled for the Debian packages that are
// installed, from the cache directory if it is there. Those of other versions are
// removed. It fails where a package is not installed, and with the compiler's output.
func Build(ctx context.Context, cache string) (path string, err error) {
	versions, err := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f", "${Package} ${Version}\n"}, Packages...)...).Output()
	if err != nil {
		return "", fmt.Errorf("build the agent: ask dpkg for the versions of %s: %w", strings.Join(Packages, ", "), err)
	}
	files, err := sources.ReadDir("source")
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp("", "ironwarp-agent-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	h := sha256.New()
	h.Write(versions)
	args := []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", "agent"}
	for _, f := range files {
		b, err := sources.ReadFile("source/" + f.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", f.Name(), len(b))
		h.Write(b)
		if err := os.WriteFile(filepath.Join(work, f.Name()), b, 0o644); err != nil {
			return "", err
		}
		if strings.HasSuffix(f.Name(), ".c") {
			args = append(args, f.Name())
		}
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return "", err
	}
	path = filepath.Join(cache, "agent-"+hex.EncodeToString(h.Sum(nil))[:12])
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "gcc", append(args, "-lrdmacm", "-libverbs")...)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent with gcc: %w\n%s", err, bytes.TrimSpace(out))
	}
	return path, install(filepath.Join(work, "agent"), path)
}

// install moves a program into the cache in place of its predecessors.
func install(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(filepath.Dir(to), "agent-*"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", b, 0o755); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}
