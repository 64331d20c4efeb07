package volumes

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/loopfs"
)

// fill takes all room that a file system has, until the file that it returns is removed.
func fill(t *testing.T, dir string) (file string) {
	t.Helper()
	f, err := os.CreateTemp(dir, "filler")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var end int64
	for size := int64(256 << 20); size >= 512; size /= 2 {
		for unix.Fallocate(int(f.Fd()), 0, end, size) == nil {
			end += size
		}
	}
	for { // what is kept back from fallocate
		one, err := os.CreateTemp(dir, "filler")
		if err != nil {
			break
		}
		_, err = one.Write(make([]byte, 4096))
		if err = errors.Join(err, one.Sync(), one.Close()); err != nil {
			os.Remove(one.Name())
			break
		}
	}
	return f.Name()
}

// makeRoom removes what fill has made.
func makeRoom(t *testing.T, dir string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "filler*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// contents are what the files of a pool hold.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range files(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(data)
	}
	return all
}

// The disk of the pool, of the daemon's state or of both becomes full at any step of any operation: that is said, nothing half made is
// left, no other volume is harmed, the daemon starts again, and there is room as soon as something is removed.
func TestDiskThatBecomesFullAtEachStep(t *testing.T) {
	xfs = loopfs.Mount(t, "xfs", 0)
	all, ctx := steps(t), t.Context()
	delete(all, "unpublish") // it makes nothing
	for _, op := range slices.Sorted(maps.Keys(all)) {
		for at := range len(all[op]) + 1 {
			when := "before " + op
			if at > 0 {
				when = op + " after " + all[op][at-1]
			}
			t.Run(when, func(t *testing.T) {
				state, dir := poolDirOn(t), poolDirOn(t)
				prepare(t, state, dir)
				for name := range contents(t, dir) {
					f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
					if err == nil {
						_, err = f.WriteAt([]byte("of "+name), 4096)
						err = errors.Join(err, f.Sync(), f.Close())
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				before := contents(t, dir)
				defer makeRoom(t, xfs)
				n := 0
				x, _ := newVolumes(t, state, dir, func(string) {
					if n++; n == at {
						fill(t, xfs)
					}
				})
				x.look(ctx)
				if at == 0 {
					fill(t, xfs)
				}
				opErr := operate(x, op)
				switch {
				case opErr != nil:
					says(t, opErr, api.CodeNoSpace, "make room")
					if op == "remove" {
						t.Errorf("what would make room fails: %v", opErr)
					}
				case at == 0 && op != "remove":
					t.Errorf("the disk was not full")
				}
				check := func(when string, x *Volumes) {
					t.Helper()
					want := map[string]bool{"data": true, "old": op != "remove" || opErr != nil, "new": opErr == nil && op != "remove" && op != "expand"}
					known := map[string]bool{}
					for _, v := range x.List(ctx) {
						known[v.Name] = true
						if !want[v.Name] || v.Problem != nil {
							t.Errorf("%s: %+v %v", when, v, v.Problem)
						}
					}
					if left := files(t, dir); len(left) != len(known) {
						t.Errorf("%s: files %v for the volumes %v", when, left, known)
					}
					for name, data := range contents(t, dir) {
						if was, ok := before[name]; ok && data[:len(was)] != was {
							t.Errorf("%s: %s has changed", when, name)
						}
					}
				}
				check("still full", x)
				again, _ := newVolumes(t, state, dir, nil)
				again.look(ctx)
				check("started again, still full", again)
				makeRoom(t, xfs)
				again.look(ctx)
				check("with room", again)
				if err := operate(again, op); err != nil && !errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
					t.Errorf("once more, with room: %v", err)
				}
			})
		}
	}
}
