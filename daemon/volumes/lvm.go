package volumes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// thinPool is a driver whose volumes are thin volumes of a thin pool of LVM. It runs LVM's tools, which keep all of its state.
//
// Its volumes have a name that has nothing but their UUID, and a tag with it. What has not both is somebody else's, and is never
// touched.
type thinPool struct {
	vg, pool string
	// run runs a tool, and returns what it wrote; runTool, but in tests.
	run func(ctx context.Context, args ...string) ([]byte, error)
}

func newThinPool(vg, pool string) *thinPool { return &thinPool{vg: vg, pool: pool, run: runTool} }

const (
	lvPrefix  = "ironwarp-"
	tagPrefix = "ironwarp:"
)

func lvName(v storage) string           { return lvPrefix + v.id.String() }
func lvTag(v storage) string            { return tagPrefix + v.id.String() }
func (t *thinPool) lv(v storage) string { return t.vg + "/" + lvName(v) }
func (t *thinPool) where() string       { return t.vg + "/" + t.pool }
func (t *thinPool) path(v storage) string {
	return "/dev/" + t.vg + "/" + lvName(v)
}

// lvmTool is where LVM's program is that has all its tools.
const lvmTool = "/sbin/lvm"

// runTool runs one of LVM's tools, without a shell and in an environment of its own.
func runTool(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, lvmTool, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1"}
	// In the middle of a change a tool ends when that is done; to kill it could leave a volume suspended.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = commandTime
	var out, errs limitedBuffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "LVM's tools are not installed: there is no " + lvmTool, Fix: "apt-get install lvm2"}
	case ctx.Err() != nil:
		return nil, fmt.Errorf("lvm %s: %w", args[0], ctx.Err())
	case err != nil:
		return nil, toolError(args[0], errs.String(), err)
	}
	return out.Bytes(), nil
}

// limitedBuffer keeps the first maxOutput bytes.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(0, maxOutput-b.Len()))])
	return len(p), nil
}

// toolError is what a tool has said, in one line.
func toolError(tool, said string, err error) error {
	var lines []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "WARNING") {
			lines = append(lines, strings.ToValidUTF8(line, "?"))
		}
	}
	text := cmp.Or(strings.Join(lines, "; "), err.Error())
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("lvm %s: %s", tool, text[:min(len(text), 500)])}
	if strings.Contains(text, "insufficient") || strings.Contains(text, "nsufficient free space") || strings.Contains(text, "No space left") || strings.Contains(text, "reached threshold") {
		e.Code, e.Fix = api.CodeNoSpace, "make room: remove volumes and snapshots, or `lvextend` the thin pool; `ironwarp pool ls` shows how full it is"
	}
	return e
}

// lvReport is a row of `lvs`.
type lvReport struct {
	Name     string `json:"lv_name"`
	UUID     string `json:"lv_uuid"`
	Size     string `json:"lv_size"` // bytes
	Pool     string `json:"pool_lv"`
	Tags     string `json:"lv_tags"`
	Data     string `json:"data_percent"`
	Metadata string `json:"metadata_percent"`
	Segment  string `json:"segtype"`
	Active   string `json:"lv_active"`
}

func (r *lvReport) bytes() int64 {
	n, _ := strconv.ParseInt(r.Size, 10, 64) // an unknown size is 0
	return n
}

func percentOf(s string) float64 {
	v, _ := strconv.ParseFloat(s, 64) // of an inactive volume it is empty
	return min(100, max(0, v))
}

// report reads rows of `lvs`.
func (t *thinPool) report(ctx context.Context, args ...string) ([]lvReport, error) {
	out, err := t.run(ctx, append([]string{"lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-a",
		"-o", "lv_name,lv_uuid,lv_size,pool_lv,lv_tags,data_percent,metadata_percent,segtype,lv_active"}, args...)...)
	if err != nil {
		return nil, err
	}
	return parseReport(out)
}

func parseReport(out []byte) ([]lvReport, error) {
	var doc struct {
		Report []struct {
			LV []lvReport `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, fmt.Errorf("lvm lvs has written something else than a report: %w", err)
	}
	var all []lvReport
	for _, r := range doc.Report {
		all = append(all, r.LV...)
	}
	return all, nil
}

func (t *thinPool) thinPool(ctx context.Context) (r lvReport, err error) {
	all, err := t.report(ctx, t.where())
	if err != nil {
		return r, err
	}
	if len(all) != 1 || all[0].Segment != "thin-pool" {
		return r, &api.Error{Code: api.CodeNotFound, Message: t.where() + " is no thin pool", Fix: fmt.Sprintf("`lvcreate --type thin-pool -L SIZE -n %s %s` makes one", t.pool, t.vg)}
	}
	return all[0], nil
}

func (t *thinPool) open(ctx context.Context, known block.ID) (id block.ID, features []string, err error) {
	r, err := t.thinPool(ctx)
	if err != nil {
		return id, nil, storageError("thin pool "+t.where(), err)
	}
	id = block.NamedID("lvm", r.UUID)
	if !known.IsZero() && id != known {
		return id, nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s is another thin pool than it was", t.where()), Fix: "name the one that has this pool's volumes"}
	}
	return id, []string{api.FeatureExpand, api.FeatureThin, api.FeatureSnapshots, api.FeatureClones}, nil
}

func (t *thinPool) usage(ctx context.Context) (u usage, err error) {
	r, err := t.thinPool(ctx)
	if err != nil {
		return u, storageError("thin pool "+t.where(), err)
	}
	u.size, u.metadata = r.bytes(), percentOf(r.Metadata)
	u.free = u.size - int64(float64(u.size)*percentOf(r.Data)/100)
	return u, nil
}

// find is the report of one of our volumes; ok is false if it is not there. It fails for a volume that has its name and is not ours.
func (t *thinPool) find(ctx context.Context, v storage) (r lvReport, ok bool, err error) {
	all, err := t.report(ctx, "-S", "lv_name="+lvName(v), t.vg)
	if err != nil {
		return r, false, err
	}
	if len(all) == 0 {
		return r, false, nil
	}
	if r = all[0]; !t.isOurs(r, v) {
		return r, false, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("%s is not a volume of this pool: it lies in %q, and has the tags %q", t.lv(v), r.Pool, r.Tags), Fix: "it is left alone; `lvs -o +tags` shows it"}
	}
	return r, true, nil
}

func (t *thinPool) create(ctx context.Context, v storage, size int64) error {
	_, err := t.run(ctx, "lvcreate", "--yes", "--type", "thin", "--thinpool", t.where(), "--virtualsize", bytesOf(size), "--name", lvName(v), "--addtag", lvTag(v),
		"--wipesignatures", "n", "--setactivationskip", "n")
	return t.made(ctx, v, err)
}

func (t *thinPool) clone(ctx context.Context, from, to storage) error {
	if _, ok, err := t.find(ctx, from); err != nil || !ok {
		return storageError("copy "+t.lv(from), cmp.Or(err, error(unix.ENOENT)))
	}
	// A snapshot is not used as a device. LVM makes none then, and the volume's writes wait for one command less.
	skip := "n"
	if to.kind == api.KindSnapshot {
		skip = "y"
	}
	_, err := t.run(ctx, "lvcreate", "--yes", "--snapshot", "--name", lvName(to), "--addtag", lvTag(to), "--setactivationskip", skip, t.lv(from))
	return t.made(ctx, to, err)
}

// made waits until a volume's device is there. A snapshot has none.
func (t *thinPool) made(ctx context.Context, v storage, err error) error {
	if err == nil && v.kind != api.KindSnapshot {
		_, err = t.run(ctx, "lvchange", "--activate", "y", t.lv(v))
	}
	if err != nil {
		return storageError("make "+t.lv(v), err)
	}
	return nil
}

func (t *thinPool) expand(ctx context.Context, v storage, size int64) error {
	r, ok, err := t.find(ctx, v)
	switch {
	case err != nil || !ok:
		return storageError("expand "+t.lv(v), cmp.Or(err, error(unix.ENOENT)))
	case r.bytes() >= size:
		return nil
	}
	if _, err := t.run(ctx, "lvextend", "--yes", "--size", bytesOf(size), t.lv(v)); err != nil {
		return storageError("expand "+t.lv(v), err)
	}
	return nil
}

func (t *thinPool) remove(ctx context.Context, v storage) error {
	_, ok, err := t.find(ctx, v)
	if err == nil && ok {
		_, err = t.run(ctx, "lvremove", "--yes", t.lv(v))
	}
	if err != nil {
		return storageError("remove "+t.lv(v), err)
	}
	return nil
}

func (t *thinPool) measure(ctx context.Context, v storage) (measure, error) {
	r, ok, err := t.find(ctx, v)
	switch {
	case err != nil:
		return measure{}, storageError("volume "+t.lv(v), err)
	case !ok:
		return measure{}, &api.Error{Code: api.CodeNotFound, Message: t.lv(v) + " is not there", Fix: "was it removed by hand?"}
	}
	if v.kind == api.KindVolume && r.Active == "" {
		// After a start of the host nobody else has activated it.
		if _, err := t.run(ctx, "lvchange", "--activate", "y", t.lv(v)); err != nil {
			return measure{}, storageError("activate "+t.lv(v), err)
		}
	}
	return r.measure(), nil
}

func (r *lvReport) measure() measure {
	return measure{size: r.bytes(), used: int64(float64(r.bytes()) * percentOf(r.Data) / 100)}
}

func (t *thinPool) measureAll(ctx context.Context, all []storage) (map[block.ID]measure, error) {
	rows, err := t.report(ctx, t.vg)
	if err != nil {
		return nil, storageError("volume group "+t.vg, err)
	}
	byName := map[string]lvReport{}
	for _, r := range rows {
		byName[r.Name] = r
	}
	found := map[block.ID]measure{}
	for _, v := range all {
		if r, ok := byName[lvName(v)]; ok && t.isOurs(r, v) {
			found[v.id] = r.measure()
		}
	}
	return found, nil
}

// hasTag reports whether a row has a tag.
func (r *lvReport) hasTag(tag string) bool { return slices.Contains(strings.Split(r.Tags, ","), tag) }

func bytesOf(n int64) string { return strconv.FormatInt(n, 10) + "b" }

// isOurs reports whether a row is of a volume that this pool has made.
func (t *thinPool) isOurs(r lvReport, v storage) bool { return r.Pool == t.pool && r.hasTag(lvTag(v)) }
