package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopiesOfAnAttachedDiskSkipHoles: what clients of the socket copy is the data of the
// exported file. Its holes are not read at the exporting host.
func TestCopiesOfAnAttachedDiskSkipHoles(t *testing.T) {
	const size, data = 1 << 30, 1 << 20
	alpha, beta, _ := pair(t, size)
	c := alpha.attach("disk")
	content := make([]byte, data)
	for i := range content {
		content[i] = byte(i*7 + i>>12 + 1)
	}
	ok(t, c, cmdWrite, size/2, data, content)
	socket := filepath.Join(alpha.dir, "run", "nbd", "beta-disk.sock")
	uri := "nbd+unix:///disk?socket=" + socket
	read := func() uint64 {
		for _, e := range beta.status().Exports {
			if e.Name == "disk" {
				return e.IO.ReadBytes
			}
		}
		t.Fatal("the export is gone")
		return 0
	}
	for name, args := range map[string][]string{
		"nbdcopy":    {"nbdcopy", uri, "OUT"},
		"qemu-img":   {"qemu-img", "convert", "-f", "raw", "-O", "raw", uri, "OUT"},
		"nbdkit-nbd": {"nbdkit", "-U", "-", "nbd", "uri=" + uri, "--run", "nbdcopy $uri OUT"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skipf("needs %s: %v", args[0], err)
			}
			out := filepath.Join(t.TempDir(), "copy")
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "OUT", out)
			}
			before := read()
			if b, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", args, err, b)
			}
			if n := read() - before; n < data || n > 2*data {
				t.Errorf("%d bytes were read at the exporting host, of a disk with %d bytes of data", n, data)
			}
			f, err := os.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got := make([]byte, data)
			if _, err := f.ReadAt(got, size/2); err != nil || string(got) != string(content) {
				t.Errorf("the copy is not the disk: %v", err)
			}
			if fi, err := f.Stat(); err != nil || fi.Size() != size {
				t.Errorf("the copy has %d bytes: %v", fi.Size(), err)
			}
		})
	}
}
