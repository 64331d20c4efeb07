package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// rest builds what a release has beside the packages, and last the sums of all of it.
func (b *build) rest(arch []string, key string) error {
	if err := b.source(); err != nil {
		return fmt.Errorf("the source: %w", err)
	}
	if err := b.image(arch); err != nil {
		return fmt.Errorf("the container image: %w", err)
	}
	if err := b.apt(arch, key); err != nil {
		return fmt.Errorf("the apt repository: %w", err)
	}
	return b.sums()
}

func (b *build) git(args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", b.top}, args...)...)
}

// committed fails where the work tree, of which the packages are built, differs from the commit, which is the source of
// the release.
func (b *build) committed() error {
	if changed, err := b.git("status", "--porcelain").Output(); err != nil || len(changed) > 0 {
		return errors.Join(err, fmt.Errorf("a release is built of a commit, and this differs from the last one:\n%s", changed))
	}
	return nil
}

// source writes what git has of the commit.
func (b *build) source() error {
	cmd := b.git("archive", "--format=tar", fmt.Sprintf("--prefix=%s-%s/", name, b.version), "HEAD")
	cmd.Stderr = os.Stderr
	tree, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("git archive: %w", err)
	}
	return b.ship(fmt.Sprintf("%s-%s.tar.gz", name, b.version), compress(tree))
}

// sums writes the SHA-256 of all files, as sha256sum does.
func (b *build) sums() error {
	var out strings.Builder
	err := filepath.WalkDir(b.out, func(full string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		body, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		path, err := filepath.Rel(b.out, full)
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(body), path)
		return err
	})
	if err != nil {
		return err
	}
	return b.ship("SHA256SUMS", []byte(out.String()))
}

// tarDir writes the files of a directory in the order of their names, owned by root, with one time.
func tarDir(w io.Writer, dir string, date time.Time) error {
	var paths []string
	if err := filepath.WalkDir(dir, func(full string, _ fs.DirEntry, err error) error {
		if err == nil && full != dir {
			paths = append(paths, full)
		}
		return err
	}); err != nil {
		return err
	}
	slices.Sort(paths)
	out := tar.NewWriter(w)
	for _, full := range paths {
		st, err := os.Lstat(full)
		if err != nil {
			return err
		}
		path, err := filepath.Rel(dir, full)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path, Mode: int64(st.Mode().Perm()), ModTime: date, Typeflag: tar.TypeReg, Size: st.Size(), Format: tar.FormatPAX}
		switch {
		case st.IsDir():
			h.Typeflag, h.Size, h.Name = tar.TypeDir, 0, path+"/"
			if st.Mode()&os.ModeSticky != 0 {
				h.Mode |= 0o1000
			}
		case st.Mode()&fs.ModeSymlink != 0:
			h.Typeflag, h.Size, h.Mode = tar.TypeSymlink, 0, 0o777
			if h.Linkname, err = os.Readlink(full); err != nil {
				return err
			}
		case !st.Mode().IsRegular():
			return fmt.Errorf("%s is neither a file, a directory nor a link", full)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		body, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		if _, err := out.Write(body); err != nil {
			return err
		}
	}
	return out.Close()
}

// gzipped compresses a file into memory.
func gzipped(w io.Writer, write func(io.Writer) error) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close())
}
