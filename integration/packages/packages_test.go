package packages

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

const (
	top     = "../.."
	version = "7.6.5"
	epoch   = "1700000000" // 2023-11-14 22:13:20 UTC
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command runs a program and returns what it prints.
func command(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// copyTree copies what would be committed of this tree into a new directory.
func copyTree(t *testing.T, to string) {
	t.Helper()
	script := `mkdir -p "$1" && git -c safe.directory=* ls-files -z -co --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x --touch -C "$1"`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", to)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copy the tree: %v\n%s", err, out)
	}
}

// build runs a target in a tree and returns where it has put what it built.
func build(t *testing.T, tree, target, environment string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "dist")
	script := fmt.Sprintf("%s; export SOURCE_DATE_EPOCH=%s; cd '%s' && make --no-print-directory %s VERSION=v%s OUT='%s'", environment, epoch, tree, target, version, out)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, text)
	}
	return out
}

// sums are the sums of all files below a directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for line := range strings.Lines(command(t, "sh", "-c", `cd "$1" && find . -type f -exec sha256sum {} +`, "sh", dir)) {
		sum, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
		all[path] = sum
	}
	return all
}

// one is the file that a pattern names.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		entries, _ := os.ReadDir(dir)
		t.Fatalf("%s: %v, %v among %v", pattern, found, err, entries)
	}
	return found[0]
}

// TestPackages builds the packages twice, in two directories under two environments, the second time as a part of a
// release, and looks at them.
func TestPackages(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is missing: it reads the packages (apt-get install dpkg)")
	}
	target := "release ARCH=" + runtime.GOARCH
	for _, program := range release {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s is missing, so no release is looked at (apt install %s)", program, program)
			target = "packages"
		}
	}
	sign, key := "true", ""
	if _, err := exec.LookPath("gpg"); err == nil && target != "packages" {
		sign, key = signer(t)
		target += " KEY=" + key
	}
	here, there := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another/place for it")
	copyTree(t, here)
	copyTree(t, there)
	command(t, "sh", "-ec", `cd "$1"; git init -q . && git add -A && git -c user.name=t -c user.email=t@example.org commit -qm all`, "sh", there)
	dist := build(t, here, "packages", "umask 022; export TZ=UTC LC_ALL=C")
	again := build(t, there, target, sign+"; umask 077; export TZ=Pacific/Auckland LC_ALL=C.UTF-8 HOSTNAME=elsewhere USER=nobody")
	deb := one(t, dist, "ironwarp_"+version+"_*.deb")

	t.Run("two builds have the same bytes", func(t *testing.T) {
		first, second := sums(t, dist), sums(t, again)
		if len(first) < 3 {
			t.Fatalf("built were %v and %v", first, second)
		}
		for path, sum := range first {
			if second[path] != sum {
				t.Errorf("%s differs", path)
			}
		}
	})
	if target != "packages" {
		t.Run("release", func(t *testing.T) { judgeRelease(t, there, again, sign, key) })
	}
	t.Run("they hold what make install installs", func(t *testing.T) {
		files, link := listed(command(t, "dpkg-deb", "-c", deb)), command(t, "make", "-C", there, "-n", "--no-print-directory", "install-files", "DESTDIR=/DEST")
		for _, m := range regexp.MustCompile(`/DEST(/\S+)`).FindAllStringSubmatch(link, -1) {
			path := m[1]
			if !under(files, path) && !strings.HasPrefix(path, "/usr/lib/ironwarp") {
				t.Errorf("make install has %s, and the package has not", path)
			}
		}
		for path, want := range map[string]string{
			"/etc/ironwarp/":                              "drwx------ root/root",
			"/etc/ironwarp/ironwarp.yaml":                 "-rw------- root/root",
			"/usr/bin/ironwarp":                           "-rwxr-xr-x root/root",
			"/usr/lib/systemd/system/ironwarp.service":    "-rw-r--r-- root/root",
			"/usr/share/man/man8/ironwarp.8.gz":           "-rw-r--r-- root/root",
			"/usr/share/doc/ironwarp/copyright":           "-rw-r--r-- root/root",
			"/usr/share/doc/ironwarp/ironwarp.cdx.json":   "-rw-r--r-- root/root",
			"/usr/share/doc/ironwarp/docs/operations.md":  "-rw-r--r-- root/root",
			"/usr/share/doc/ironwarp/changelog.gz":        "-rw-r--r-- root/root",
			"/usr/share/zsh/site-functions/_ironwarp":     "-rw-r--r-- root/root",
			"/etc/needrestart/conf.d/ironwarp.conf":       "-rw-r--r-- root/root",
			"/usr/lib/udev/rules.d/90-ironwarp.rules":     "-rw-r--r-- root/root",
			"/usr/share/doc/ironwarp/changelog.Debian.gz": "-rw-r--r-- root/root",
		} {
			if files[path] != want {
				t.Errorf("%s is %q, want %q", path, files[path], want)
			}
		}
		conffiles := command(t, "dpkg-deb", "-I", deb, "conffiles")
		for path := range files {
			if etc := strings.HasPrefix(path, "/etc/") && !strings.HasSuffix(path, "/"); etc != slices.Contains(strings.Fields(conffiles), path) {
				t.Errorf("%s is among the conffiles: %v", path, !etc)
			}
		}
	})
	t.Run("the program is static and says its version", func(t *testing.T) {
		root := t.TempDir()
		command(t, "dpkg-deb", "-x", deb, root)
		if out := command(t, filepath.Join(root, "usr/bin/ironwarp"), "--version"); !strings.Contains(out, "v"+version) {
			t.Errorf("--version: %s", out)
		}
		judgeSBOM(t, filepath.Join(root, "usr/bin/ironwarp"), one(t, dist, "ironwarp_*.cdx.json"))
	})
	t.Run("lintian", func(t *testing.T) {
		if _, err := exec.LookPath("lintian"); err != nil {
			t.Skip("lintian is missing (apt install lintian)")
		}
		debs, _ := filepath.Glob(filepath.Join(dist, "*.deb"))
		out, err := exec.CommandContext(t.Context(), "lintian", append([]string{"--allow-root", "--fail-on", "error,warning"}, debs...)...).CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		reasons, err := os.ReadFile("../../packaging/lintian/ironwarp")
		if err != nil {
			t.Fatal(err)
		}
		said := false
		for line := range strings.Lines(string(reasons)) {
			if comment := strings.HasPrefix(line, "#"); !comment && !said {
				t.Errorf("an override without its reason: %s", line)
			} else {
				said = comment
			}
		}
	})
	t.Run("rpm", func(t *testing.T) {
		if _, err := exec.LookPath("rpm"); err != nil {
			t.Skip("rpm is missing (apt install rpm)")
		}
		file := one(t, dist, "*.rpm")
		list := command(t, "rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]", file)
		for _, want := range []string{"drwx------ root root /etc/ironwarp\n", "-rw------- root root /etc/ironwarp/ironwarp.yaml\n", "-rwxr-xr-x root root /usr/bin/ironwarp\n", "-rw-r--r-- root root /usr/share/man/man8/ironwarp.8.gz\n", "-rw-r--r-- root root /usr/share/licenses/ironwarp/LICENSE\n"} {
			if !strings.Contains(list, want) {
				t.Errorf("there is no %q in\n%s", want, list)
			}
		}
		if strings.Contains(list, "needrestart") || strings.Contains(list, "lintian") {
			t.Errorf("what is Debian's is in the rpm:\n%s", list)
		}
		if out := command(t, "rpm", "-qpc", file); strings.TrimSpace(out) != "/etc/ironwarp/ironwarp.yaml" {
			t.Errorf("configuration: %s", out)
		}
		if out := command(t, "rpm", "-qp", "--qf", "%{BUILDHOST} %{BUILDTIME} %{VERSION}-%{RELEASE}", file); out != "reproducible "+epoch+" "+version+"-1" {
			t.Errorf("it says %s", out)
		}
		command(t, "rpm", "-K", "--nosignature", file)
		// As if it were installed: all that could refuse it are its dependencies, which this machine's rpm knows nothing of.
		command(t, "rpm", "--dbpath", t.TempDir(), "-i", "--test", "--nodeps", "--ignorearch", file)
	})
}

// listed are the permissions and owners by path of what `dpkg-deb -c` lists.
func listed(out string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 6 {
			all[strings.TrimPrefix(f[5], ".")] = f[0] + " " + f[1]
		}
	}
	return all
}

// under tells whether a path is there, or compressed, or a directory that is not empty.
func under(files map[string]string, path string) bool {
	for has := range files {
		if has == path || has == path+".gz" || strings.HasPrefix(has, strings.TrimSuffix(path, "/")+"/") {
			return true
		}
	}
	return false
}

// judgeSBOM compares an SBOM with what the Go command says of the program.
func judgeSBOM(t *testing.T, program, sbom string) {
	t.Helper()
	type component struct {
		Name, Version, Purl string
		Hashes              []struct{ Alg, Content string }
	}
	var bom struct {
		BOMFormat, SpecVersion string
		Metadata               struct{ Component component }
		Components             []component
	}
	text, err := os.ReadFile(sbom)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(body))
	if main := bom.Metadata.Component; bom.BOMFormat != "CycloneDX" || main.Name != "ironwarp" || main.Version != version || len(main.Hashes) != 1 || main.Hashes[0].Content != sum {
		t.Errorf("the SBOM is of %+v, and the program's sum is %s", bom.Metadata.Component, sum)
	}
	listed := make(map[string]bool)
	for _, c := range bom.Components {
		listed[c.Purl] = true
	}
	parts := 0
	for line := range strings.Lines(command(t, "go", "version", "-m", program)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			parts++
			if purl := "pkg:golang/" + f[1] + "@" + f[2]; !listed[purl] {
				t.Errorf("%s is missing from the SBOM", purl)
			}
		}
	}
	if parts < 10 || len(bom.Components) != parts+1 {
		t.Errorf("there are %d parts and Go's library in the program, and %d in the SBOM", parts, len(bom.Components))
	}
}

// TestToolOfItsOwnModule runs the tests of the tool, which no `go test ./...` from the top reaches.
func TestToolOfItsOwnModule(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "./...")
	cmd.Dir = filepath.Join(top, "internal/tools/packages")
	if out, err := cmd.CombinedOutput(); err != nil {
		if bytes.Contains(out, []byte("dial tcp")) {
			t.Skipf("what the tool is made of can't be fetched: %s", out)
		}
		t.Fatalf("%v\n%s", err, out)
	}
}
