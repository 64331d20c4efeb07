package target_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi/target"
)

// tool runs a program of the machine and returns what it says, and whether it succeeded.
func tool(t testing.TB, name string) func(args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
	dir := t.TempDir()
	return func(args ...string) (string, error) {
		cmd := exec.Command(path, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// TestLibiscsiFindsAndReadsUnits: discovery, login, INQUIRY and capacity by another's initiator.
func TestLibiscsiFindsAndReadsUnits(t *testing.T) {
	ls, inq, capacity := tool(t, "iscsi-ls"), tool(t, "iscsi-inq"), tool(t, "iscsi-readcapacity16")
	s := serve(t, target.Config{}, nil, unit{size: 64 << 20}, unit{size: 8 << 20, removable: true})
	out, err := ls("-s", "iscsi://"+s.address)
	if err != nil || !strings.Contains(out, "Target:"+targetName+" Portal:"+s.address+",1") || strings.Count(out, "Lun:") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	url := "iscsi://" + s.address + "/" + targetName + "/0"
	if out, err := inq(url); err != nil || !strings.Contains(out, "Vendor:IronWarp") || !strings.Contains(out, "SPC-4") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := capacity(url); err != nil || !strings.Contains(out, "Total size:67108864") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestQEMUWritesWhatAnotherReads: 256 MiB written by QEMU are read by another QEMU, in the file, and
// by the target's own bytes.
func TestQEMUWritesWhatAnotherReads(t *testing.T) {
	img, io := tool(t, "qemu-img"), tool(t, "qemu-io")
	if out, _ := img("--help"); !strings.Contains(out, "iscsi") {
		s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
		if out, err := img("info", "iscsi://"+s.address+"/"+targetName+"/0"); err != nil {
			t.Skipf("this QEMU has no iSCSI (Debian: qemu-block-extra): %s", out)
		}
	}
	const size = 256 << 20
	s := serve(t, target.Config{}, nil, unit{size: size})
	url := "iscsi://" + s.address + "/" + targetName + "/0"
	source := filepath.Join(t.TempDir(), "source")
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(content)
	clear(content[20<<20 : 90<<20])
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"convert", "-n", "-f", "raw", "-O", "raw", source, url},
		{"compare", "-f", "raw", "-F", "raw", source, url},
	} {
		if out, err := img(args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	out, err := io("-f", "raw", "-c", "write -P 0x11 1000k 64k", "-c", "write -f -P 0x22 3M 4k", "-c", "flush", "-c", "write -z 10M 64k", "-c", "discard 11M 1M",
		"-c", "aio_write -P 0x33 30M 3M", "-c", "aio_flush", "-c", "read -P 0x11 1000k 64k", "-c", "read -P 0x33 30M 3M", "-c", "read -P 0 10M 64k", url)
	if err != nil || strings.Contains(out, "failed") || strings.Contains(out, "error") {
		t.Errorf("%v\n%s", err, out)
	}
	fill := func(off, n int, b byte) { copy(content[off:], bytes.Repeat([]byte{b}, n)) }
	fill(1000<<10, 64<<10, 0x11)
	fill(3<<20, 4<<10, 0x22)
	fill(10<<20, 64<<10, 0)
	fill(11<<20, 1<<20, 0)
	fill(30<<20, 3<<20, 0x33)
	s.stop()
	if got, err := os.ReadFile(s.files[0]); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file is not what was written: %v", err)
	}
}

func TestLibiscsiAuthenticatesByCHAP(t *testing.T) {
	inq := tool(t, "iscsi-inq")
	s := serve(t, target.Config{}, []chap.Credentials{{Name: "alice", Secret: []byte("initiators_secret"), OwnName: "target", OwnSecret: []byte("the_targets_secret")}}, unit{size: 1 << 20})
	at := "@" + s.address + "/" + targetName + "/0"
	for user, want := range map[string]bool{
		"alice%initiators_secret": true, "alice%initiators_secrex": false, "bob%initiators_secret": false, "": false,
	} {
		url := "iscsi://" + user + at
		if user == "" {
			url = "iscsi://" + at[1:]
		}
		if out, err := inq(url); (err == nil) != want || want != strings.Contains(out, "Vendor:IronWarp") {
			t.Errorf("%q: %v\n%s", user, err, out)
		}
	}
	for secret, want := range map[string]bool{"the_targets_secret": true, "another_secret__": false} {
		url := "iscsi://alice%initiators_secret" + at + "?target_user=target&target_password=" + secret
		if out, err := inq(url); (err == nil) != want {
			t.Errorf("target's secret %q: %v\n%s", secret, err, out)
		}
	}
}

func TestLibiscsiWithHeaderDigests(t *testing.T) {
	inq := tool(t, "iscsi-inq")
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	if out, err := inq("iscsi://" + s.address + "/" + targetName + "/0?header_digest=crc32c"); err != nil || !strings.Contains(out, "Vendor:IronWarp") {
		t.Errorf("%v\n%s", err, out)
	}
}
