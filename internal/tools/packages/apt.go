package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// aptDir is the apt repository among what is shipped.
const aptDir = "apt"

// apt has reprepro lay out an apt repository of the packages, signed with a key of GnuPG's if one is named. Without
// reprepro it is left out, unless a key was named.
func (b *build) apt(arch []string, key string) error {
	if _, err := exec.LookPath("reprepro"); errors.Is(err, exec.ErrNotFound) && key == "" {
		fmt.Fprintln(os.Stderr, "the apt repository is left out: apt-get install reprepro")
		return nil
	}
	conf := filepath.Join(b.work, "reprepro")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		return err
	}
	distribution := fmt.Sprintf("Codename: stable\nOrigin: IronWarp\nLabel: IronWarp\nComponents: main\nArchitectures: %s\nDescription: %s\n", strings.Join(arch, " "), summary)
	if key != "" {
		distribution += "SignWith: " + key + "\n"
	}
	if err := os.WriteFile(filepath.Join(conf, "distributions"), []byte(distribution), 0o600); err != nil {
		return err
	}
	var debs []string
	for _, file := range b.written {
		if strings.HasSuffix(file, ".deb") {
			debs = append(debs, filepath.Join(b.out, file))
		}
	}
	args := append([]string{"--silent", "--confdir", conf, "--dbdir", filepath.Join(b.work, "reprepro-db"), "--outdir", filepath.Join(b.out, aptDir), "includedeb", "stable"}, debs...)
	if err := b.run(nil, "reprepro", args...); err != nil {
		return err
	}
	b.written = append(b.written, aptDir)
	return nil
}
