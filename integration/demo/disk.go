package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// diskImage is what beta exports.
type diskImage struct {
	docs, scratch string // paths
	sum           string // SHA-256 of docs
}

// makeDisk makes an ext4 image from a tree of files, and an empty disk.
func makeDisk(ctx context.Context, dir string, size sizes, canary lab.Canary) (*diskImage, error) {
	tree := filepath.Join(dir, "tree")
	if err := makeTree(ctx, tree, size.files, size.tree, canary); err != nil {
		return nil, fmt.Errorf("make the files: %w", err)
	}
	defer os.RemoveAll(tree)
	d := &diskImage{docs: filepath.Join(dir, "docs.img"), scratch: filepath.Join(dir, "scratch.img")}
	out, err := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-L", "docs", "-d", tree,
		d.docs, strconv.FormatInt(size.image>>10, 10)+"k").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("mke2fs: %w: %s", err, bytes.TrimSpace(out))
	}
	f, err := os.Create(d.scratch)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(size.scratch); err != nil {
		return nil, err
	}
	d.sum, err = sha256File(d.docs)
	return d, err
}

// makeTree writes files of many sizes, 128 in a directory, the same in every run
// but for the canary, of which names and contents are full.
func makeTree(ctx context.Context, root string, files int, total int64, canary lab.Canary) error {
	rng := rand.New(rand.NewPCG(5040, 5041))
	source := &document{noise: rand.NewChaCha8([32]byte{}), canary: canary}
	mean := total / int64(files)
	for i := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := filepath.Join(root, fmt.Sprintf("part-%02d", i/128))
		if i%128 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("document-%04d-%s", i, canary)))
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, source, rng.Int64N(2*mean))
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// document is an endless text: 32 random bytes, so that no two places are equal,
// and the canary after them, again and again.
type document struct {
	noise  *rand.ChaCha8
	canary lab.Canary
	record [512]byte
	rest   []byte
}

func (d *document) Read(b []byte) (int, error) {
	if len(d.rest) == 0 {
		d.canary.Fill(d.record[:])
		d.noise.Read(d.record[:32])
		d.rest = d.record[:]
	}
	n := copy(b, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func sha256File(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// fsck checks an image without changing it.
func fsck(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, "e2fsck", "-fn", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("e2fsck -fn %s: %w: %s", path, err, bytes.TrimSpace(out))
	}
	return nil
}
