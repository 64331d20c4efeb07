package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const docDir = "usr/share/doc/" + name

// packages builds the packages for a processor.
func (b *build) packages(arch string) error {
	stage, program := filepath.Join(b.work, "stage-"+arch), filepath.Join(b.work, "ironwarp-"+arch)
	if program != b.hostBin {
		if err := b.program(arch, program); err != nil {
			return err
		}
	}
	libs := filepath.Join(b.work, "rdma-"+arch)
	missing, err := b.rdma(arch, libs)
	if err != nil {
		return err
	}
	if missing != "" {
		fmt.Fprintf(os.Stderr, "%s-rdma for %s is left out: %s\n", name, arch, missing)
	}
	if err := b.run(nil, "make", "--no-print-directory", "install-files", "DESTDIR="+stage, "PROGRAM="+program, "HOST_PROGRAM="+b.hostBin, "RDMA="+libs); err != nil {
		return err
	}
	if err := compressManual(filepath.Join(stage, "usr/share/man")); err != nil {
		return err
	}
	if err := b.documents(stage, arch); err != nil {
		return err
	}
	all := []*described{b.main(stage, arch)}
	if missing == "" {
		rdma, err := b.rdmaPackage(stage, arch)
		if err != nil {
			return err
		}
		all = append(all, rdma)
	}
	for _, d := range all {
		if err := b.write(d); err != nil {
			return err
		}
	}
	return nil
}

// documents adds the documents, the licences and the SBOM to what a host gets.
func (b *build) documents(stage, arch string) error {
	doc := filepath.Join(stage, docDir)
	// As in the source, so that README's links lead to them.
	if err := os.CopyFS(filepath.Join(doc, "docs"), os.DirFS(filepath.Join(b.top, "docs"))); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(b.top, "README.md"), filepath.Join(doc, "README.md")); err != nil {
		return err
	}
	changes, err := os.ReadFile(filepath.Join(b.top, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	debian := fmt.Sprintf("%s (%s) unstable; urgency=medium\n\n  * What has changed is in changelog.gz.\n\n -- %s  %s\n", name, b.version, maintainer, b.date.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	copyright, err := b.copyright(arch)
	if err != nil {
		return err
	}
	sboms := map[string][]byte{}
	for of, file := range map[string]string{name: "/usr/bin/ironwarp", name + rdmaSuffix: "/" + libraries + "/libironwarp-rnic.so"} {
		if _, err := os.Stat(stage + file); err != nil {
			continue // there are no libraries for this processor
		}
		if sboms[of], err = b.sbom(of, file, stage+file, arch); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{"LICENSE": "usr/share/licenses/" + name + "/LICENSE", "packaging/needrestart.conf": "etc/needrestart/conf.d/" + name + ".conf"} {
		to = filepath.Join(stage, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(b.top, from), to); err != nil {
			return err
		}
	}
	for file, text := range map[string][]byte{"changelog.gz": compress(changes), "changelog.Debian.gz": compress([]byte(debian)), "copyright": copyright} {
		if err := os.WriteFile(filepath.Join(doc, file), text, 0o644); err != nil {
			return err
		}
	}
	for _, of := range slices.Sorted(maps.Keys(sboms)) {
		if err := os.WriteFile(filepath.Join(doc, of+".cdx.json"), sboms[of], 0o644); err != nil {
			return err
		}
		if err := b.ship(fmt.Sprintf("%s_%s_%s.cdx.json", of, b.version, arch), sboms[of]); err != nil {
			return err
		}
	}
	return nil
}

// ship writes a file beside the packages.
func (b *build) ship(file string, text []byte) error {
	b.written = append(b.written, file)
	return os.WriteFile(filepath.Join(b.out, file), text, 0o644)
}

// compressManual replaces the manual's pages by compressed ones, as both kinds of distribution have them.
func compressManual(dir string) error {
	pages, err := filepath.Glob(filepath.Join(dir, "man*/*.[1-9]"))
	if err != nil || len(pages) == 0 {
		return fmt.Errorf("there is no manual in %s: %w", dir, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		if err := os.WriteFile(page+".gz", compress(text), 0o644); err != nil {
			return err
		}
		if err := os.Remove(page); err != nil {
			return err
		}
	}
	return nil
}

// compress compresses as gzip -9n does: without a name and a time.
func compress(text []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // it fails for other levels alone
	_, _ = w.Write(text)                                    // a buffer takes all
	_ = w.Close()
	return out.Bytes()
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// under tells whether a path is dir or below it.
func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
