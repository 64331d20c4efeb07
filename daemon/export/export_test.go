package export

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is what a test's exports have of a host.
type host struct {
	*Exporter
	ended []transport.Identity // streams
}

// newHost is a host whose peers have their names for identities.
func newHost(t *testing.T, log *slog.Logger) *host {
	t.Helper()
	h := &host{}
	h.Exporter = New(Config{
		Log: log, StateDir: t.TempDir(),
		Identities: func(e config.Export) (ids []transport.Identity) {
			for _, a := range e.Allow {
				ids = append(ids, transport.Identity(a))
			}
			return ids
		},
		NameOf:     func(id transport.Identity) string { return string(id) },
		Trust:      func(config.Export) verbs.TrustModel { return config.Trust("").Model() },
		Offered:    func() {},
		EndStreams: func(id transport.Identity, _ error) { h.ended = append(h.ended, id) },
	})
	t.Cleanup(h.Close)
	return h
}

// image is a file of 1 MiB.
func image(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// apply makes the exports what is declared, and returns them.
func (h *host) apply(exports ...config.Export) map[string]api.Export {
	h.Apply(&config.Config{Exports: exports})
	h.RefreshAllowed()
	h.AwaitStorage()
	out := map[string]api.Export{}
	for _, e := range h.List() {
		out[e.Name] = e
	}
	return out
}

// Exports come, change and go with the configuration, and whoever one does not allow any
// more loses its streams.
func TestExportsAreWhatTheConfigurationSays(t *testing.T) {
	h := newHost(t, slog.New(slog.DiscardHandler))
	one := config.Export{Name: "one", Path: image(t, "one.img"), Allow: []string{"alpha", "beta"}}
	two := config.Export{Name: "two", Path: filepath.Join(t.TempDir(), "none")}
	got := h.apply(one, two)
	if len(got) != 2 || got["one"].State != api.ExportReady || got["one"].Size != 1<<20 || got["two"].State != api.ExportProblem || got["two"].Problem.Code != api.CodeNotFound {
		t.Fatalf("%+v", got)
	}
	if err := os.Rename(image(t, "two.img"), two.Path); err != nil {
		t.Fatal(err)
	}
	h.Retry()
	h.AwaitStorage()
	one.Allow = []string{"alpha"}
	if got = h.apply(one, two); got["two"].State != api.ExportReady || !slices.Equal(got["one"].Allow, one.Allow) {
		t.Errorf("%+v", got)
	}
	if !slices.Equal(h.ended, []transport.Identity{"beta"}) {
		t.Errorf("streams of %v were ended, want beta's", h.ended)
	}
	if got = h.apply(two); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	// What is offered no more is free.
	s, err := backing.Open(one.Path, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// Why peers may go on after a restart, or have to attach an export anew, is in the log.
func TestLogSaysWhyALifeIsNew(t *testing.T) {
	path := image(t, "disk.img")
	log := func() string {
		var out bytes.Buffer
		h := newHost(t, slog.New(slog.NewTextHandler(&out, nil)))
		h.apply(config.Export{Name: "disk", Path: path})
		h.Close()
		return out.String()
	}
	if text := log(); strings.Contains(text, "new life") {
		t.Errorf("a disk that was never offered has another life:\n%s", text)
	}
	if text := log(); !strings.Contains(text, "level=INFO msg=\"the disk begins a new life, which has all writes of the last one") || !strings.Contains(text, "in good order") {
		t.Errorf("after an orderly end:\n%s", text)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := log(); !strings.Contains(text, "level=WARN msg=\"the disk begins a new life: peers") || !strings.Contains(text, "somebody else has written to it") {
		t.Errorf("after the file was changed:\n%s", text)
	}
}

// A peer hears why an export that it may attach is not there, and nothing of the host.
func TestPeersAreToldNoPathOfTheHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk.img")
	_, gone := backing.Open(file, backing.Options{})
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := backing.Open(file, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, used := backing.Open(file, backing.Options{})
	r := &Exporter{exports: map[string]*export{"secret": {cfg: config.Export{Name: "secret", Path: file}}}}
	same := r.reserveDisk(&export{cfg: config.Export{Path: file}}, block.ID{})
	for err, want := range map[error]string{gone: "no such file", used: "in use", same: "another name", fmt.Errorf("open %s: %w", file, errHanging(storageTime)): "may hang", errors.New(file): "cannot be opened"} {
		if got := reasonForPeers(err); !strings.Contains(got, want) || strings.Contains(got, file) || strings.Contains(got, "secret") {
			t.Errorf("of %q peers are told %q", err, got)
		}
	}
}

// A declaration changes while the storage of the one before is being opened: the next one waits for its turn at the storage.
func TestExportThatChangesWhileItIsOpenedIsOffered(t *testing.T) {
	h := newHost(t, slog.New(slog.DiscardHandler))
	c := config.Export{Name: "disk", Path: image(t, "disk.img")}
	for range 50 {
		for range 2 {
			c.ReadOnly = !c.ReadOnly
			h.Apply(&config.Config{Exports: []config.Export{c}})
		}
		h.AwaitOpening(c.Name, OfferTime)
		if v := h.List()[0]; v.State != api.ExportReady {
			t.Fatalf("it is %s: %v", v.State, v.Problem)
		}
	}
}
