package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image writes a container image for all processors as an archive of an OCI layout. There is nothing in it but the static
// program, its licences and what names users: no shell and no other distribution.
func (b *build) image(arch []string) error {
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, a := range arch {
		img, err := b.imageFor(a)
		if err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: a}}})
	}
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{"org.opencontainers.image.ref.name": b.tag()}}})
	dir := filepath.Join(b.work, "image")
	if _, err := layout.Write(dir, named); err != nil {
		return err
	}
	file := fmt.Sprintf("%s_%s_oci.tar", name, b.version)
	w, err := os.Create(filepath.Join(b.out, file))
	if err != nil {
		return err
	}
	if err := tarDir(w, dir, b.date); err != nil {
		w.Close()
		return err
	}
	b.written = append(b.written, file)
	return w.Close()
}

// tag is the version as a tag of an image, in which there can be no + and no ~.
func (b *build) tag() string {
	return string(bytes.Map(func(r rune) rune {
		if r == '+' || r == '~' {
			return '-'
		}
		return r
	}, []byte(b.version)))
}

// imageFor is the image for a processor.
func (b *build) imageFor(arch string) (v1.Image, error) {
	root := filepath.Join(b.work, "root-"+arch)
	// The daemon is root, with the rights that docs/packages.md has the container given; it keeps secrets where nobody else looks.
	for dir, mode := range map[string]os.FileMode{"usr/bin": 0o755, docDir: 0o755, "etc/ironwarp": 0o700, "var/lib/ironwarp": 0o700, "run": 0o755, "tmp": 0o777 | os.ModeSticky} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
		if err := os.Chmod(filepath.Join(root, dir), mode); err != nil {
			return nil, err
		}
	}
	for file, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n",
		"etc/group":  "root:x:0:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil { // where strongSwan's socket is
		return nil, err
	}
	stage := filepath.Join(b.work, "stage-"+arch)
	for _, file := range []string{"usr/bin/ironwarp", docDir + "/copyright", docDir + "/" + name + ".cdx.json"} {
		if err := copyFile(filepath.Join(stage, file), filepath.Join(root, file)); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(filepath.Join(root, "usr/bin/ironwarp"), 0o755); err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	if err := gzipped(&packed, func(w io.Writer) error { return tarDir(w, root, b.date) }); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: b.date}, CreatedBy: "make release"}, MediaType: types.OCILayer})
	if err != nil {
		return nil, err
	}
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Created = "linux", arch, v1.Time{Time: b.date}
	cfg.Config = v1.Config{
		User: "0:0", Entrypoint: []string{"/usr/bin/ironwarp"}, Cmd: []string{"daemon"}, Env: []string{"PATH=/usr/bin"}, WorkingDir: "/",
		Volumes: map[string]struct{}{"/etc/ironwarp": {}, "/var/lib/ironwarp": {}, "/run": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": name, "org.opencontainers.image.description": summary, "org.opencontainers.image.version": b.version,
			"org.opencontainers.image.source": homepage, "org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.created": b.date.Format("2006-01-02T15:04:05Z07:00"),
		},
	}
	return mutate.ConfigFile(img, cfg)
}
