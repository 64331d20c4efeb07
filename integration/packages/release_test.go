package packages

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// release are the programs that read a release, beside those that read the packages.
var release = []string{"reprepro", "skopeo", "apt-get"}

// signer makes a key of GnuPG's, and returns what a shell takes to use it, and its fingerprint.
func signer(t *testing.T) (environment, key string) {
	t.Helper()
	home, err := os.MkdirTemp("", "gpg") // the agent's socket has a short name in it
	if err != nil {
		t.Fatal(err)
	}
	environment = "export GNUPGHOME='" + home + "'"
	t.Cleanup(func() {
		_ = exec.Command("sh", "-c", environment+"; gpgconf --kill all").Run()
		os.RemoveAll(home)
	})
	out := command(t, "sh", "-ec", environment+`; gpg --batch --quiet --passphrase '' --quick-gen-key 'packages <packages@example.org>' ed25519 sign never
gpg --batch --with-colons --list-keys | awk -F: '/^fpr/ { print "key", $10; exit }'`)
	_, key, _ = strings.Cut(out, "key ")
	return environment, strings.TrimSpace(key)
}

// judgeRelease has others read the release of a tree: sha256sum, apt, git and skopeo.
func judgeRelease(t *testing.T, tree, dist, sign, key string) {
	in := func(script string) string {
		t.Helper()
		return command(t, "sh", "-ec", "cd \"$1\"; "+script, "sh", tree)
	}
	t.Run("sums", func(t *testing.T) {
		command(t, "sh", "-ec", `cd "$1"; sha256sum -c --quiet --strict SHA256SUMS; test $(find . -type f ! -name SHA256SUMS | wc -l) = $(wc -l <SHA256SUMS)`, "sh", dist)
	})
	t.Run("the source is the commit's", func(t *testing.T) {
		to := t.TempDir()
		command(t, "tar", "-xzf", one(t, dist, "*.tar.gz"), "-C", to)
		// With the same names, as a tree of git's has.
		if got, want := command(t, "sh", "-ec", `cd "$1"/ironwarp-*; git init -q .; git add -Af; git write-tree`, "sh", to), in("git rev-parse HEAD:"); got != want {
			t.Errorf("its tree is %s, and the commit's is %s", got, want)
		}
	})
	t.Run("apt finds the packages", func(t *testing.T) {
		root := t.TempDir()
		for _, dir := range []string{"lists/partial", "cache/archives/partial", "state"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		option := "trusted=yes"
		if key != "" {
			option = "signed-by=" + root + "/key.gpg"
			command(t, "sh", "-ec", sign+"; gpg --batch --export "+key+" >'"+root+"/key.gpg'")
		}
		if err := os.WriteFile(filepath.Join(root, "list"), []byte("deb ["+option+"] file:"+dist+"/apt stable main\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "status"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		out := command(t, "sh", "-ec", `cd "$1"; o="-o Dir::State=$1/state -o Dir::State::Lists=$1/lists -o Dir::State::status=$1/status -o Dir::Cache=$1/cache -o Dir::Etc::sourcelist=$1/list -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root"
apt-get $o -q update; apt-get $o -q download ironwarp ironwarp-rdma || apt-get $o -q download ironwarp; sha256sum *.deb`, "sh", root)
		sum := strings.Fields(command(t, "sha256sum", one(t, dist, "ironwarp_"+version+"_*.deb")))[0]
		if !strings.Contains(out, sum) {
			t.Errorf("apt has fetched another package than was built:\n%s", out)
		}
	})
	t.Run("the image runs the program", func(t *testing.T) {
		at := "oci-archive:" + one(t, dist, "*_oci.tar")
		var config struct {
			Architecture, OS string
			Config           struct {
				User            string
				Entrypoint, Cmd []string
				Labels          map[string]string
			}
		}
		if err := json.Unmarshal([]byte(command(t, "skopeo", "inspect", "--config", at)), &config); err != nil {
			t.Fatal(err)
		}
		if config.Architecture != runtime.GOARCH || config.OS != "linux" || config.Config.User != "0:0" || strings.Join(append(config.Config.Entrypoint, config.Config.Cmd...), " ") != "/usr/bin/ironwarp daemon" ||
			config.Config.Labels["org.opencontainers.image.version"] != version {
			t.Errorf("the image's configuration is %+v", config)
		}
		if os.Geteuid() != 0 {
			t.Skip("only root runs a program in another root directory")
		}
		root, layers := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "layers")
		command(t, "skopeo", "copy", "-q", at, "dir:"+layers)
		out := command(t, "sh", "-ec", `mkdir "$1"; for layer in $(tr , '\n' <"$2/manifest.json" | sed -n 's/.*"digest":"sha256:\([0-9a-f]*\)".*/\1/p' | tail -n +2); do tar -xzf "$2/$layer" -C "$1"; done
chroot "$1" /usr/bin/ironwarp --version; stat -c '%a %u:%g %n' "$1"/etc/ironwarp "$1"/var/lib/ironwarp "$1"/tmp; find "$1" -type f | wc -l`, "sh", root, layers)
		for _, want := range []string{"v" + version, "700 0:0 " + root + "/etc/ironwarp\n", "700 0:0 " + root + "/var/lib/ironwarp\n", "1777 0:0 " + root + "/tmp\n", "\n5\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing in what the image shows:\n%s", want, out)
			}
		}
	})
	t.Run("a changed tree is no release", func(t *testing.T) {
		in("echo >>README.md")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "cd '"+tree+"' && make --no-print-directory release ARCH="+runtime.GOARCH+" VERSION=v"+version+" OUT='"+t.TempDir()+"/dist'")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "differs from the last one") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
