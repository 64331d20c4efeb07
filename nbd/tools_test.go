package nbd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// serveEnv makes this test binary a server: its value is "FILE:SOCKET".
const serveEnv = "NBD_TEST_SERVE"

func serveDisk() {
	file, socket, _ := strings.Cut(os.Getenv(serveEnv), ":")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := func() error {
		st, err := backing.Open(file, backing.Options{})
		if err != nil {
			return err
		}
		defer st.Close()
		d := nbdtest.NewDisk(st)
		defer d.Close()
		s := nbd.NewServer(nbd.Config{})
		if err := s.Export("disk", d, ""); err != nil {
			return err
		}
		ln, err := nbd.ListenUnix(ctx, socket, 0o600)
		if err != nil {
			return err
		}
		return s.Serve(ctx, ln)
	}()
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// tool returns a function that runs a program of the machine to its success.
func tool(t testing.TB, name string) func(args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
	dir := t.TempDir() // some leave files behind
	return func(args ...string) string {
		t.Helper()
		cmd := exec.Command(path, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}

// fileServer serves a file of random bytes.
func fileServer(t testing.TB, size int) (uri, path string, content []byte) {
	t.Helper()
	content = randomBytes(size)
	path = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, uri = serveFile(t, path)
	return uri, path, content
}

// serveFile serves a file as the export disk.
func serveFile(t testing.TB, path string) (s *server, uri string) {
	t.Helper()
	st, err := backing.Open(path, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := nbdtest.NewDisk(st)
	t.Cleanup(func() { d.Close(); st.Close() })
	s = serve(t, d, nbd.Config{})
	return s, "nbd+unix:///disk?socket=" + url.QueryEscape(s.path)
}

// sparseServer serves a file of n bytes with data, random, only in the middle.
func sparseServer(t testing.TB, n, from, to int) (s *server, uri string, content []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content = make([]byte, n)
	copy(content[from:to], randomBytes(to-from))
	_, err = f.WriteAt(content[from:to], int64(from))
	if err := errors.Join(err, f.Truncate(int64(n))); err != nil {
		t.Fatal(err)
	}
	s, uri = serveFile(t, path)
	return s, uri, content
}

// wantRead fails unless clients have read about n bytes.
func (s *server) wantRead(n uint64) {
	s.t.Helper()
	if st, _ := s.Stats("disk"); st.ReadBytes < n || st.ReadBytes > n+1<<20 {
		s.t.Errorf("%d bytes were read of a disk with %d bytes of data", st.ReadBytes, n)
	}
}

// TestClientsSeeHoles: they list them, and do not read them when they copy.
func TestClientsSeeHoles(t *testing.T) {
	const size, from, to = 256 << 20, 64 << 20, 65 << 20
	t.Run("nbdinfo --map", func(t *testing.T) {
		run := tool(t, "nbdinfo")
		_, uri, _ := sparseServer(t, size, from, to)
		var extents []struct{ Offset, Length, Type int }
		if err := json.Unmarshal([]byte(run("--map", "--json", uri)), &extents); err != nil {
			t.Fatal(err)
		}
		if len(extents) != 3 || extents[0].Length != from || extents[0].Type != holeAndZero || extents[1].Length != to-from || extents[1].Type != 0 || extents[2].Type != holeAndZero {
			t.Errorf("%+v", extents)
		}
	})
	t.Run("nbdcopy", func(t *testing.T) {
		run := tool(t, "nbdcopy")
		s, uri, content := sparseServer(t, size, from, to)
		out := filepath.Join(t.TempDir(), "copy")
		run(uri, out)
		sameFile(t, out, content)
		s.wantRead(to - from)
	})
	t.Run("qemu-img map", func(t *testing.T) {
		run := tool(t, "qemu-img")
		_, uri, _ := sparseServer(t, size, from, to)
		var extents []struct {
			Start, Length int
			Zero, Data    bool
		}
		if err := json.Unmarshal([]byte(run("map", "--output=json", "-f", "raw", uri)), &extents); err != nil {
			t.Fatal(err)
		}
		if len(extents) != 3 || extents[1].Start != from || !extents[1].Data || extents[1].Length != to-from || !extents[0].Zero || extents[0].Data {
			t.Errorf("%+v", extents)
		}
	})
	t.Run("qemu-img convert", func(t *testing.T) {
		run := tool(t, "qemu-img")
		s, uri, content := sparseServer(t, size, from, to)
		out := filepath.Join(t.TempDir(), "copy")
		run("convert", "-f", "raw", "-O", "raw", uri, out)
		sameFile(t, out, content)
		s.wantRead(to - from)
	})
}

func sameFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, %v: not what it should be", path, len(got), err)
	}
}

func TestNbdinfo(t *testing.T) {
	run := tool(t, "nbdinfo")
	uri, _, _ := fileServer(t, 1<<20)
	var info struct {
		Protocol   string
		Structured bool
		Extended   *bool // libnbd 1.18 and later
		Exports    []struct {
			Name  string `json:"export-name"`
			Size  int64  `json:"export-size"`
			FUA   bool   `json:"can_fua"`
			Multi bool   `json:"can_multi_conn"`
			Zero  bool   `json:"can_zero"`
			Fast  bool   `json:"can_fast_zero"`
			Cache bool   `json:"can_cache"`

			Contexts []string
		}
	}
	if err := json.Unmarshal([]byte(run("--json", uri)), &info); err != nil {
		t.Fatal(err)
	}
	if len(info.Exports) != 1 || info.Protocol != "newstyle-fixed" || !info.Structured || info.Extended != nil && !*info.Extended {
		t.Fatalf("%+v", info)
	}
	if e := info.Exports[0]; e.Name != "disk" || e.Size != 1<<20 || !e.FUA || !e.Multi || !e.Zero || !e.Fast || !e.Cache || !slices.Equal(e.Contexts, []string{"base:allocation"}) {
		t.Errorf("%+v", e)
	}
	if out := run("--list", uri); !strings.Contains(out, `export="disk"`) {
		t.Error(out)
	}
}

func TestNbdcopy(t *testing.T) {
	run := tool(t, "nbdcopy")
	uri, path, content := fileServer(t, 64<<20+24*512)
	out := filepath.Join(t.TempDir(), "copy")
	run(uri, out)
	sameFile(t, out, content)
	for i := range content {
		content[i] ^= 0x5a
	}
	clear(content[5<<20 : 9<<20])
	if err := os.WriteFile(out, content, 0o600); err != nil {
		t.Fatal(err)
	}
	run("--flush", out, uri)
	sameFile(t, path, content)
}

func TestQemuImg(t *testing.T) {
	run := tool(t, "qemu-img")
	uri, path, content := fileServer(t, 32<<20)
	out := filepath.Join(t.TempDir(), "copy")
	run("convert", "-f", "raw", "-O", "raw", uri, out)
	sameFile(t, out, content)
	run("compare", "-f", "raw", "-F", "raw", uri, path)
	clear(content[1<<20 : 30<<20])
	if err := os.WriteFile(out, content, 0o600); err != nil {
		t.Fatal(err)
	}
	run("convert", "-n", "-f", "raw", "-O", "raw", out, uri)
	sameFile(t, path, content)
}

func TestQemuIO(t *testing.T) {
	run := tool(t, "qemu-io")
	uri, path, content := fileServer(t, 8<<20)
	out := run("-f", "raw",
		"-c", "write -P 0x11 0 64k", "-c", "write -f -P 0x22 100k 4k", "-c", "flush", "-c", "write -z 200k 64k",
		"-c", "write -z -u 300k 64k", "-c", "discard 512k 1M", "-c", "aio_write -P 0x33 4M 2M", "-c", "aio_flush",
		"-c", "read -P 0x11 0 64k", "-c", "read -P 0x33 4M 2M", "-c", "read -P 0 200k 64k", uri)
	if strings.Contains(strings.ToLower(out), "failed") || strings.Contains(out, "error") {
		t.Error(out)
	}
	fill := func(off, n int, b byte) { copy(content[off:], bytes.Repeat([]byte{b}, n)) }
	fill(0, 64<<10, 0x11)
	fill(100<<10, 4<<10, 0x22)
	fill(200<<10, 64<<10, 0)
	fill(300<<10, 64<<10, 0)
	fill(4<<20, 2<<20, 0x33)
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(content[512<<10:512<<10+1<<20], got[512<<10:]) // discarded: may be anything
	if !bytes.Equal(got, content) {
		t.Error("the disk is not what it should be")
	}
}

func TestFioVerify(t *testing.T) {
	run := tool(t, "fio")
	if !strings.Contains(run("--enghelp"), "nbd") {
		t.Skip("this fio has no nbd engine")
	}
	uri, _, _ := fileServer(t, 32<<20)
	run("--name=verify", "--ioengine=nbd", "--uri="+uri, "--rw=randrw", "--bsrange=4k-256k", "--iodepth=32",
		"--size=32m", "--verify=crc32c", "--do_verify=1", "--verify_state_save=0", "--fsync=64", "--output="+filepath.Join(t.TempDir(), "out"))
}

func TestEveryClientOfAMultiConnExportSeesTheOthersWrites(t *testing.T) {
	uri, _, _ := fileServer(t, 1<<20)
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, by: toSocket(u.Query().Get("socket"))}
	a, b := s.connect(false), s.connect(true)
	p := randomBytes(4096)
	want(t, a, "write", 0, cmdWrite, 4096, 4096, p, 0)
	want(t, b, "flush", 0, cmdFlush, 0, 0, nil, 0)
	if r := want(t, b, "read", 0, cmdRead, 4096, 4096, nil, 0); !bytes.Equal(r.Data, p) {
		t.Error("the other client's write is not seen")
	}
}

// TestErrorsOfRealStorageReachTheClient shrinks the file under a client and
// fills its file system.
func TestErrorsOfRealStorageReachTheClient(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("nbd-test", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("needs root to mount a small tmpfs: %v", err)
	}
	path := filepath.Join(dir, "disk")
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4<<20); err != nil {
		t.Fatal(err)
	}
	s, _ := serveFile(t, path)
	c := s.connect(true)
	want(t, c, "write that fits", 0, cmdWrite, 0, 64<<10, make([]byte, 64<<10), 0)
	want(t, c, "write that does not", 0, cmdWrite, 1<<20, 1<<20, make([]byte, 1<<20), 28)
	want(t, c, "trim", 0, cmdTrim, 1<<20, 1<<20, nil, 0)
	want(t, c, "write that fits again", fua, cmdWrite, 0, 64<<10, make([]byte, 64<<10), 0)
	if err := os.Truncate(path, 64<<10); err != nil {
		t.Fatal(err)
	}
	want(t, c, "read where the file has shrunk", 0, cmdRead, 1<<20, 4096, nil, 5)
	want(t, c, "write where the file has shrunk", 0, cmdWrite, 1<<20, 4096, make([]byte, 4096), 5)
	want(t, c, "read what is left", 0, cmdRead, 0, 4096, nil, 0)
}
