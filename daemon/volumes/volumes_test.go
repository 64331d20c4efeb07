package volumes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/loopfs"
)

// asVictim is set in a process that a test starts to be killed.
const asVictim = "IRONWARP_VOLUMES_VICTIM"

func TestMain(m *testing.M) {
	if plan := os.Getenv(asVictim); plan != "" {
		beVictim(plan)
	}
	goleak.VerifyTestMain(m)
}

// host is what volumes have in a test: all peers are known, and storage is open at once.
type host struct {
	x       *Volumes
	mu      sync.Mutex // guards the fields below it
	fences  []string
	grown   []string
	frozen  int
	refuses error // what Fence returns

	identities map[string]string // of peers whose name is not their identity
}

func (*host) Apply(context.Context, string) {}
func (*host) Await(string)                  {}
func (*host) AwaitClosed()                  {}
func (*host) IsDeclared(name string) bool   { return name == "declared" }

func (h *host) Grown(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grown = append(h.grown, name)
}

func (h *host) Freeze(context.Context, string) (func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frozen++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.frozen--
	}, nil
}

func (h *host) Fence(_ context.Context, name string, q api.FenceRequest) (api.Fenced, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fences = append(h.fences, name+" "+q.Peer)
	return api.Fenced{Export: name, Peer: q.Peer, Generation: uint64(len(h.fences))}, h.refuses
}

func (h *host) Describe(name string) (api.Export, bool) {
	e, ok := h.x.Export(name)
	return api.Export{UUID: "u", State: api.ExportReady, Size: 1 << 20, ExportSpec: api.ExportSpec{Name: e.Name}}, ok
}

func (h *host) Peer(s string) (name, allow string, ok bool) {
	name, _ = strings.CutPrefix(s, config.AllowIdentity)
	return name, config.AllowIdentity + cmp.Or(h.identities[name], name), name != "" && name != "stranger"
}

// newVolumes are the volumes of a state directory, with one pool of files.
func newVolumes(t testing.TB, state, dir string, step func(string)) (*Volumes, *host) {
	t.Helper()
	h := &host{}
	x, err := New(Config{Log: slog.New(slog.DiscardHandler), StateDir: state, Host: h, step: step})
	if err != nil {
		t.Fatal(err)
	}
	h.x = x
	x.SetPools([]config.Pool{{Name: "pool", Driver: api.DriverFile, Path: dir, MaxVolumes: 100, Alarms: config.DefaultAlarms()}})
	t.Cleanup(x.Close)
	return x, h
}

// poolDir is a directory that a pool may have.
func poolDir(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "pool")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func says(t *testing.T, err error, code string, words ...string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%v, want code %s", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("%q does not say %q", e, w)
		}
	}
}

// What a pool has half made belongs to it: a request for another pool with the same name takes nothing of it away.
func TestHalfMadeVolumeOfAnotherPoolIsLeftAlone(t *testing.T) {
	dir, other, ctx := poolDir(t), poolDir(t), t.Context()
	x, _ := newVolumes(t, t.TempDir(), dir, nil)
	x.SetPools([]config.Pool{{Name: "pool", Driver: api.DriverFile, Path: dir, MaxVolumes: 100}, {Name: "other", Driver: api.DriverFile, Path: other, MaxVolumes: 100}})
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	half := x.find("data").clone()
	half.State = creating
	if err := x.store(half); err != nil {
		t.Fatal(err)
	}
	_, err := x.Create(ctx, api.VolumeCreate{Pool: "other", Name: "data", Size: 512})
	says(t, err, api.CodeExists, "data")
	if names := files(t, dir); len(names) != 1 || x.find("data") == nil {
		t.Errorf("left of it: %v, record %+v", names, x.find("data"))
	}
	if v, err := x.Create(ctx, create("data", 1024)); err != nil || v.Size != 1024 {
		t.Errorf("its own pool makes it anew: %+v, %v", v, err)
	}
}

// files are the files of a directory, but for the pool's marker.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != marker {
			names = append(names, e.Name())
		}
	}
	return names
}

func create(name string, size int64) api.VolumeCreate {
	return api.VolumeCreate{Pool: "pool", Name: name, Size: size}
}

// On file systems that share extents a snapshot keeps what the volume held, and a clone begins with it; on others both are
// refused in words, and everything else works.
func TestSnapshotsAndClonesOfFiles(t *testing.T) {
	for kind, shares := range map[string]bool{"xfs": true, "btrfs": true, "ext4": false} {
		t.Run(kind, func(t *testing.T) {
			dir, ctx := loopfs.Mount(t, kind, 0), t.Context()
			x, _ := newVolumes(t, t.TempDir(), dir, nil)
			v, err := x.Create(ctx, create("data", 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			e, _ := x.Export("data")
			if err := os.WriteFile(e.Path, []byte("first"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(e.Path, v.Size); err != nil {
				t.Fatal(err)
			}
			_, err = x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "snap"})
			if !shares {
				says(t, err, api.CodeUnsupported, "cannot share extents", "mkfs.xfs")
				_, err = x.Create(ctx, api.VolumeCreate{Pool: "pool", Name: "copy", From: "data"})
				says(t, err, api.CodeUnsupported)
				if all := x.List(ctx); len(all) != 1 {
					t.Errorf("%+v", all)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(e.Path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte("second"), 0); err != nil {
				t.Fatal(err)
			}
			c, err := x.Create(ctx, api.VolumeCreate{Pool: "pool", Name: "copy", From: "snap", Size: 2 << 20})
			if err != nil || c.Size != 2<<20 || c.Source != "snap" {
				t.Fatalf("%+v, %v", c, err)
			}
			e, _ = x.Export("copy")
			if data, err := os.ReadFile(e.Path); err != nil || len(data) != 2<<20 || !strings.HasPrefix(string(data), "first\x00") {
				t.Errorf("%.10q of %d bytes, %v", data, len(data), err)
			}
			_, err = x.Create(ctx, api.VolumeCreate{Pool: "pool", Name: "small", From: "snap", Size: 512})
			says(t, err, api.CodeInvalid, "cannot begin with it")
			if _, ok := x.Export("snap"); ok {
				t.Error("a snapshot is offered")
			}
			_, err = x.Publish(ctx, "snap", api.VolumePublish{Peer: "alpha"})
			says(t, err, api.CodeInvalid)
			// What a snapshot was made of may go before it.
			if err := errors.Join(x.Remove(ctx, "data"), x.Remove(ctx, "snap"), x.Remove(ctx, "copy")); err != nil {
				t.Error(err)
			}
			if left := files(t, dir); len(left) != 0 {
				t.Errorf("left in the pool: %v", left)
			}
		})
	}
}

// A pool that has no room says so, at each step, and leaves nothing.
func TestFullPool(t *testing.T) {
	dir, ctx := loopfs.Mount(t, "ext4", 0), t.Context()
	x, _ := newVolumes(t, t.TempDir(), dir, nil)
	_, err := x.Create(ctx, create("giant", 1<<40))
	says(t, err, api.CodeNoSpace, "larger than pool")
	if _, err := x.Create(ctx, create("data", 1<<20)); err != nil {
		t.Fatal(err)
	}
	_, err = x.Expand(ctx, "data", api.VolumeExpand{Size: 1 << 40})
	says(t, err, api.CodeNoSpace)
	full, _ := newVolumes(t, dir, poolDir(t), nil)
	filler := filepath.Join(dir, "filler")
	for size := 1 << 20; size >= 512; size /= 2 { // until not a byte fits any more
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		f.Close()
	}
	p := x.Pools(ctx)[0]
	if p.Alarm != 95 {
		t.Errorf("a full pool: %+v", p)
	}
	if v, err := x.Expand(ctx, "data", api.VolumeExpand{Size: 2 << 20}); err != nil || v.Size != 2<<20 {
		t.Errorf("a hole takes no room: %+v, %v", v, err)
	}
	if err := x.Remove(ctx, "data"); err != nil {
		t.Error(err)
	}
	// The records themselves have no room.
	if _, err = full.Create(ctx, create("data", 1<<20)); err != nil {
		says(t, err, api.CodeNoSpace)
	}
}

// Requests are answered the same again, and others are refused.
func TestRequestsAreIdempotent(t *testing.T) {
	ctx := t.Context()
	x, h := newVolumes(t, t.TempDir(), poolDir(t), nil)
	v, err := x.Create(ctx, create("data", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := x.Create(ctx, create("data", 1<<20)); err != nil || again.UUID != v.UUID {
		t.Errorf("%+v, %v", again, err)
	}
	for _, q := range []api.VolumeCreate{create("data", 2<<20), {Pool: "pool", Name: "data", Size: 1 << 20, Writers: "shared"}, create("declared", 512)} {
		_, err := x.Create(ctx, q)
		says(t, err, api.CodeExists)
	}
	for range 2 {
		if v, err := x.Expand(ctx, "data", api.VolumeExpand{Size: 2 << 20}); err != nil || v.Size != 2<<20 {
			t.Errorf("%+v, %v", v, err)
		}
		if p, err := x.Publish(ctx, "data", api.VolumePublish{Peer: "alpha"}); err != nil || p.Export != "data" {
			t.Errorf("%+v, %v", p, err)
		}
	}
	_, err = x.Publish(ctx, "data", api.VolumePublish{Peer: "alpha", ReadOnly: true})
	says(t, err, api.CodeExists, "another mode")
	_, err = x.Publish(ctx, "data", api.VolumePublish{Peer: "beta"})
	says(t, err, api.CodeInUse, "published to peer alpha")
	_, err = x.Publish(ctx, "data", api.VolumePublish{Peer: "stranger"})
	says(t, err, api.CodeNotFound)
	says(t, x.Remove(ctx, "data"), api.CodeInUse)
	// A fence that does not come to its end keeps others out.
	h.refuses = &api.Error{Code: api.CodeTimeout, Message: "I/O has not ended"}
	_, err = x.Unpublish(ctx, "data", api.VolumeUnpublish{Peer: "alpha"})
	says(t, err, api.CodeTimeout)
	if e, _ := x.Export("data"); len(e.Allow) != 0 {
		t.Errorf("a peer that is being fenced may still attach it: %v", e.Allow)
	}
	for _, peer := range []string{"alpha", "beta"} {
		_, err = x.Publish(ctx, "data", api.VolumePublish{Peer: peer})
		says(t, err, api.CodeInUse)
	}
	says(t, x.Remove(ctx, "data"), api.CodeInUse)
	h.refuses = nil
	for range 2 {
		if _, err := x.Unpublish(ctx, "data", api.VolumeUnpublish{Peer: "alpha"}); err != nil {
			t.Error(err)
		}
	}
	if _, err := x.Publish(ctx, "data", api.VolumePublish{Peer: "beta"}); err != nil {
		t.Error(err)
	}
	if _, err := x.Unpublish(ctx, "data", api.VolumeUnpublish{Peer: "id:beta"}); err != nil {
		t.Error(err)
	}
	if err := x.Remove(ctx, "data"); err != nil {
		t.Error(err)
	}
	says(t, x.Remove(ctx, "data"), api.CodeNotFound)
}

// Two that share a volume both say so, readers disturb nobody, and a reader only reads.
func TestWhoMayHaveAVolumeTogether(t *testing.T) {
	for _, tc := range []struct {
		writers string
		a, b    api.VolumePublish
		want    bool
	}{
		{"", api.VolumePublish{}, api.VolumePublish{}, false},
		{"", api.VolumePublish{Shared: true}, api.VolumePublish{}, false},
		{"", api.VolumePublish{Shared: true}, api.VolumePublish{Shared: true}, true},
		{"", api.VolumePublish{ReadOnly: true}, api.VolumePublish{ReadOnly: true}, true},
		{"", api.VolumePublish{}, api.VolumePublish{ReadOnly: true}, false},
		{"migration", api.VolumePublish{}, api.VolumePublish{}, true},
		{"shared", api.VolumePublish{}, api.VolumePublish{}, true},
	} {
		x, _ := newVolumes(t, t.TempDir(), poolDir(t), nil)
		if _, err := x.Create(t.Context(), api.VolumeCreate{Pool: "pool", Name: "data", Size: 512, Writers: tc.writers}); err != nil {
			t.Fatal(err)
		}
		tc.a.Peer, tc.b.Peer = "alpha", "beta"
		if _, err := x.Publish(t.Context(), "data", tc.a); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Publish(t.Context(), "data", tc.b); (err == nil) != tc.want {
			t.Errorf("%+v: %v", tc, err)
		}
		if e, _ := x.Export("data"); tc.want && len(e.Allow) != 2 || len(e.Readers) > 0 != (tc.a.ReadOnly || tc.b.ReadOnly && tc.want) {
			t.Errorf("%+v: %+v", tc, e)
		}
	}
}

// A node that was replaced by another of its name has another identity. Its lease is that of the old one, which is fenced: to answer
// that the name has nothing to be fenced from would leave the old one let in, and the volume with nobody who can give it away.
func TestLeaseOfAHostThatAnotherOneOfItsNameReplaces(t *testing.T) {
	x, h := newVolumes(t, t.TempDir(), poolDir(t), nil)
	if _, err := x.Create(t.Context(), api.VolumeCreate{Pool: "pool", Name: "data", Size: 512}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Publish(t.Context(), "data", api.VolumePublish{Peer: "node"}); err != nil {
		t.Fatal(err)
	}
	h.identities = map[string]string{"node": "192.0.2.12", "renamed": "node"}
	_, err := x.Publish(t.Context(), "data", api.VolumePublish{Peer: "node"})
	says(t, err, api.CodeInUse, "unpublish data node")
	if _, err := x.Unpublish(t.Context(), "data", api.VolumeUnpublish{Peer: "node"}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"data id:node"}; !slices.Equal(h.fences, want) {
		t.Errorf("fenced: %q, want %q", h.fences, want)
	}
	if e, _ := x.Export("data"); len(e.Allow) > 0 {
		t.Errorf("%v may still attach it", e.Allow)
	}
	// Of two leases that could be meant, that of the name's identity of today is.
	for _, peer := range []string{"node", "renamed"} {
		if _, err := x.Publish(t.Context(), "data", api.VolumePublish{Peer: peer, Shared: true}); err != nil {
			t.Fatal(err)
		}
	}
	h.identities = map[string]string{"node": "node", "renamed": "192.0.2.12"}
	if _, err := x.Unpublish(t.Context(), "data", api.VolumeUnpublish{Peer: "node"}); err != nil {
		t.Fatal(err)
	}
	if e, _ := x.Export("data"); !slices.Equal(e.Allow, []string{"id:192.0.2.12"}) {
		t.Errorf("%v may attach it", e.Allow)
	}
}

// The directory that is there while the pool's file system is not mounted gets no volume, and loses none.
func TestPoolThatIsNotMounted(t *testing.T) {
	state, dir, ctx := t.TempDir(), poolDir(t), t.Context()
	x, _ := newVolumes(t, state, dir, nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	mounted := dir + ".mounted"
	if err := errors.Join(os.Rename(dir, mounted), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	_, err := x.Create(ctx, create("more", 512))
	says(t, err, api.CodeUnavailable, "is its file system mounted?")
	says(t, x.Remove(ctx, "data"), api.CodeUnavailable)
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("made in the directory below: %v", names)
	}
	// Nor does that of another pool.
	other, _ := newVolumes(t, t.TempDir(), dir, nil)
	if _, err := other.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	_, err = x.Create(ctx, create("more", 512))
	says(t, err, api.CodeUnavailable, "and not of")
	if err := errors.Join(os.RemoveAll(dir), os.Rename(mounted, dir)); err != nil {
		t.Fatal(err)
	}
	if err := x.Remove(ctx, "data"); err != nil {
		t.Error(err)
	}
}

// A record that is not understood keeps its volume and its name.
func TestRecordThatIsNotUnderstood(t *testing.T) {
	state, dir, ctx := t.TempDir(), poolDir(t), t.Context()
	x, _ := newVolumes(t, state, dir, nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"version": 2}`, `{"version": 1, "name": "other"}`, strings.Repeat(" ", maxRecord+1)} {
		if err := os.WriteFile(recordFile(recordsDir(state), "data"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		x, _ := newVolumes(t, state, dir, nil)
		x.look(ctx)
		_, err := x.Create(ctx, create("data", 512))
		says(t, err, api.CodeExists)
		says(t, x.Remove(ctx, "data"), api.CodeUnavailable, "not understood")
		if names := files(t, dir); len(names) != 1 {
			t.Errorf("%v", names)
		}
	}
}

func TestManyRequestsForOneVolumeMakeOne(t *testing.T) {
	dir, ctx := poolDir(t), t.Context()
	x, _ := newVolumes(t, t.TempDir(), dir, nil)
	var wg sync.WaitGroup
	ids := make([]string, 16)
	for i := range ids {
		wg.Go(func() {
			v, err := x.Create(ctx, create("data", 1<<20))
			if err != nil {
				t.Error(err)
			}
			ids[i] = v.UUID
			if i%4 == 0 {
				_, _ = x.Expand(ctx, "data", api.VolumeExpand{Size: int64(1+i) << 20})
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("%s and %s", id, ids[0])
		}
	}
	if names := files(t, dir); len(names) != 1 {
		t.Errorf("%v", names)
	}
}

// A threshold is reported once when it is crossed, and again after there was room.
func TestAlarmIsLoggedOncePerCrossing(t *testing.T) {
	var log strings.Builder
	x := &Volumes{log: slog.New(slog.NewTextHandler(&log, nil))}
	p := &pool{cfg: config.Pool{Name: "pool", Alarms: config.DefaultAlarms()}}
	for _, free := range []int64{50, 21, 20, 15, 10, 4, 3, 60, 12} {
		x.noteUsage(p, usage{size: 100, free: free})
	}
	if warned, eased := strings.Count(log.String(), "becomes full"), strings.Count(log.String(), "has room again"); warned != 4 || eased != 1 {
		t.Errorf("%d warnings and %d of room:\n%s", warned, eased, &log)
	}
	x.noteUsage(p, usage{size: 100, free: 90, metadata: 96})
	if !strings.Contains(log.String(), "metadata_percent=96") {
		t.Errorf("metadata that are full are not reported:\n%s", &log)
	}
}

// steps are all steps of the operations below, at each of which a victim is killed.
func steps(t *testing.T) map[string][]string {
	all := map[string][]string{}
	for _, op := range []string{"create", "clone", "snapshot", "expand", "remove", "unpublish"} {
		state, dir := t.TempDir(), poolDirOn(t)
		prepare(t, state, dir)
		x, _ := newVolumes(t, state, dir, func(s string) { all[op] = append(all[op], s) })
		if err := operate(x, op); err != nil {
			t.Fatal(op, err)
		}
	}
	return all
}

var xfs string // where steps and victims have their pools

func poolDirOn(t *testing.T) string {
	dir, err := os.MkdirTemp(xfs, "pool")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// prepare makes what operations work on.
func prepare(t testing.TB, state, dir string) {
	x, _ := newVolumes(t, state, dir, nil)
	_, err := x.Create(t.Context(), create("data", 1<<20))
	if err == nil {
		_, err = x.Create(t.Context(), create("old", 1<<20))
	}
	if err == nil {
		_, err = x.Publish(t.Context(), "data", api.VolumePublish{Peer: "alpha"})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func operate(x *Volumes, op string) (err error) {
	ctx := context.Background()
	switch op {
	case "create":
		_, err = x.Create(ctx, create("new", 1<<20))
	case "clone":
		_, err = x.Create(ctx, api.VolumeCreate{Pool: "pool", Name: "new", From: "data", Size: 2 << 20})
	case "snapshot":
		_, err = x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "new"})
	case "expand":
		_, err = x.Expand(ctx, "old", api.VolumeExpand{Size: 4 << 20})
	case "remove":
		err = x.Remove(ctx, "old")
	case "unpublish":
		_, err = x.Unpublish(ctx, "data", api.VolumeUnpublish{Peer: "alpha"})
	}
	return err
}

// plan is what a victim does, and at which step of it it kills itself.
type plan struct {
	State, Dir, Op string
	Step           int
}

func beVictim(text string) {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(err)
	}
	h, n := &host{}, 0
	x, err := New(Config{Log: slog.New(slog.DiscardHandler), StateDir: p.State, Host: h, step: func(string) {
		if n++; n == p.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}})
	if err != nil {
		panic(err)
	}
	h.x = x
	x.SetPools([]config.Pool{{Name: "pool", Driver: api.DriverFile, Path: p.Dir, MaxVolumes: 100}})
	fmt.Println(operate(x, p.Op))
	os.Exit(3) // it was not killed
}

// A daemon that is killed at any step leaves nothing half made: the next one has the volume as it was, or as it was to be, and the same
// request comes to its end.
func TestKilledAtEachStep(t *testing.T) {
	xfs = loopfs.Mount(t, "xfs", 0)
	ctx := t.Context()
	killed := 0
	for op, all := range steps(t) {
		for i, step := range all {
			t.Run(op+" after "+step, func(t *testing.T) {
				state, dir := t.TempDir(), poolDirOn(t)
				prepare(t, state, dir)
				text, err := json.Marshal(plan{state, dir, op, i + 1})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Env = append(os.Environ(), asVictim+"="+string(text))
				out, err := cmd.CombinedOutput()
				if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() {
					t.Fatalf("it was not killed: %v, %s", err, out)
				}
				killed++
				x, h := newVolumes(t, state, dir, nil)
				x.look(ctx)
				known := map[string]bool{}
				for _, v := range x.List(ctx) {
					known[v.Name] = true
					if v.Problem != nil || v.Name == "old" && v.Size != 1<<20 && v.Size != 4<<20 {
						t.Errorf("%+v", v)
					}
				}
				if !known["data"] || op != "remove" && !known["old"] {
					t.Errorf("there is no more than %v", known)
				}
				if names := files(t, dir); len(names) != len(known) {
					t.Errorf("files %v for the volumes %v", names, known)
				}
				if op == "unpublish" && i == 0 {
					if e, _ := x.Export("data"); len(e.Allow) != 0 {
						t.Error("the peer may attach it again")
					}
					_, err := x.Publish(ctx, "data", api.VolumePublish{Peer: "beta"})
					says(t, err, api.CodeInUse)
				}
				if err := operate(x, op); err != nil && !errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
					t.Errorf("once more: %v", err)
				}
				if op == "unpublish" && len(h.fences) == 0 {
					t.Error("the peer was not fenced again")
				}
			})
		}
	}
	if killed < 15 {
		t.Errorf("it was killed %d times", killed)
	}
}

// fakeLVM answers as LVM's tools, and keeps what it was asked to do.
type fakeLVM struct {
	rows  []lvReport
	calls []string
	fails error
}

func (f *fakeLVM) run(_ context.Context, args ...string) ([]byte, error) {
	f.calls = append(f.calls, strings.Join(args, " "))
	if args[0] != "lvs" {
		return nil, f.fails
	}
	var rows []lvReport
	last := args[len(args)-1]
	for _, r := range f.rows {
		name := "lv_name=" + r.Name
		if last == "vg/"+r.Name || last == "vg" && (args[len(args)-3] != "-S" || args[len(args)-2] == name) {
			rows = append(rows, r)
		}
	}
	return json.Marshal(map[string]any{"report": []any{map[string]any{"lv": rows}}})
}

// Of LVM's volumes only those are touched that have the name, the pool and the tag of one of ours.
func TestForeignVolumesOfLVMAreLeftAlone(t *testing.T) {
	v := storage{id: block.NewID(), name: "data", kind: api.KindVolume}
	f := &fakeLVM{rows: []lvReport{{Name: "pool", UUID: "abc", Size: "1000", Segment: "thin-pool", Data: "85.0", Metadata: "10.00"}}}
	p := &thinPool{vg: "vg", pool: "pool", run: f.run}
	if u, err := p.usage(t.Context()); err != nil || u.size != 1000 || u.free != 150 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, r := range []lvReport{
		{Name: lvName(v), Pool: "pool", Size: "512"}, {Name: lvName(v), Pool: "pool", Size: "512", Tags: "x," + lvTag(v) + "0"}, {Name: lvName(v), Pool: "other", Size: "512", Tags: lvTag(v)},
	} {
		f.rows, f.calls = append(f.rows[:1:1], r), nil
		says(t, p.remove(t.Context(), v), api.CodeForbidden, "not a volume of this pool")
		says(t, p.expand(t.Context(), v, 1<<20), api.CodeForbidden)
		says(t, p.clone(t.Context(), v, storage{id: block.NewID()}), api.CodeForbidden)
		for _, c := range f.calls {
			if !strings.HasPrefix(c, "lvs ") {
				t.Errorf("%+v: %s", r, c)
			}
		}
	}
	f.rows, f.calls = append(f.rows[:1:1], lvReport{Name: lvName(v), Pool: "pool", Size: "512", Tags: "x," + lvTag(v)}), nil
	if err := errors.Join(p.expand(t.Context(), v, 1<<20), p.remove(t.Context(), v)); err != nil {
		t.Fatal(err)
	}
	if want := "lvremove --yes vg/" + lvName(v); f.calls[len(f.calls)-1] != want {
		t.Errorf("%q, want %q", f.calls, want)
	}
	f.rows = f.rows[:1]
	if err := p.remove(t.Context(), v); err != nil {
		t.Errorf("one that is not there: %v", err)
	}
	if _, err := parseReport([]byte("lvs: no such device")); err == nil {
		t.Error("what is no report is understood")
	}
	says(t, toolError("lvcreate", "  Volume group \"vg\" has insufficient free space (0 extents): 1 required.\n", errors.New("exit status 5")), api.CodeNoSpace)
	says(t, storageError("x", unix.EDQUOT), api.CodeNoSpace)
}

// BenchmarkCreate is a volume from the request until it can be published.
func BenchmarkCreate(b *testing.B) {
	x, _ := newVolumes(b, b.TempDir(), poolDir(b), nil)
	p, _ := x.pool("pool")
	p.setConfig(config.Pool{Name: "pool", Driver: api.DriverFile, Path: p.config().Path, MaxVolumes: config.MaxVolumes})
	for i := 0; b.Loop(); i++ {
		if _, err := x.Create(b.Context(), create("v"+strconv.Itoa(i), 1<<30)); err != nil {
			b.Fatal(err)
		}
	}
}
