package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// copyright is the file of that name of Debian's: the project's licence, and those of all that is linked into the program,
// most of which ask to be there in full. It fails where something has none.
func (b *build) copyright(arch string) ([]byte, error) {
	modules, err := b.modules(arch)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `%s is under the Apache License, version 2.0, which is in
/usr/share/common-licenses/Apache-2.0, on other systems than Debian's in
/usr/share/licenses/%s/LICENSE. Its source is at
%s

Copyright: the contributors of IronWarp

The program is one file, and has these in it, each under its own licence.
`, "IronWarp", name, homepage)
	for _, m := range modules {
		text, err := notice(m.dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.path, err)
		}
		fmt.Fprintf(&out, "\n%s\n%s %s\n\n%s", strings.Repeat("-", 72), m.path, m.version, text)
	}
	return out.Bytes(), nil
}

// module is something that the program is linked with, and where its source is.
type module struct{ path, version, dir string }

// modules are what the program is linked with, in order, and Go's own library.
func (b *build) modules(arch string) ([]module, error) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}", "./cmd/ironwarp")
	cmd.Dir, cmd.Env = b.top, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	cmd = exec.Command("go", "env", "GOVERSION", "GOROOT")
	cmd.Dir = b.top
	goIs, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	is := strings.Fields(string(goIs))
	if len(is) != 2 {
		return nil, fmt.Errorf("go env: %q", goIs)
	}
	all := []module{{"Go's standard library", is[0], is[1]}}
	lines := strings.Split(strings.TrimSpace(string(list)), "\n")
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("go list: %q", line)
		}
		all = append(all, module{f[0], f[1], f[2]})
	}
	return all, nil
}

// notice is what a module says of its licence. The Apache License is named and not repeated.
func notice(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	licensed := false
	for _, e := range entries {
		upper := strings.ToUpper(e.Name())
		isLicense := strings.HasPrefix(upper, "LICENSE") || strings.HasPrefix(upper, "LICENCE") || strings.HasPrefix(upper, "COPYING")
		if e.IsDir() || !isLicense && !strings.HasPrefix(upper, "NOTICE") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		licensed = licensed || isLicense
		if isLicense && bytes.Contains(text, []byte("TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION")) {
			out.WriteString("Apache License, version 2.0, as above\n")
			for line := range strings.Lines(string(text)) {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "Copyright ") && !strings.Contains(line, "[yyyy]") {
					out.WriteString(line + "\n")
				}
			}
			continue
		}
		out.Write(bytes.TrimSpace(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))))
		out.WriteByte('\n')
	}
	if !licensed {
		return "", errors.New("it has no file with its licence: " + dir)
	}
	return out.String(), nil
}
