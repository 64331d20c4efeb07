package daemon

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) {
	if os.Getenv(asUser) != "" {
		os.Exit(askAsUser())
	}
	if os.Getenv(asDaemon) != "" {
		os.Exit(beDaemon())
	}
	goleak.VerifyTestMain(m)
}

// testRetry is how often a test's daemon tries again what does not work.
const testRetry = 20 * time.Millisecond

// testTrial is how long a test's daemon tries a carrier that is not to work.
const testTrial = 300 * time.Millisecond

// waitTime bounds waiting for what takes milliseconds; a busy machine is no failure.
const waitTime = 2 * time.Minute

// host is a daemon of a test.
type host struct {
	t    *testing.T
	dir  string
	port uint16
	udp  uint16 // of SCTP in UDP
	conf string
	log  *safeBuffer

	kernel   func() error  // tells whether the kernel has SCTP; nil: the real one
	retry    time.Duration // 0: testRetry
	stuck    time.Duration
	offering time.Duration // Options.offer
	parting  time.Duration // Options.closing
	drain    time.Duration // Options.drain
	// removeGuard is Options.removeGuard.
	removeGuard func(guard.Spec) error
	devices     *device.Driver // Options.devices
	avoid       time.Duration  // 0: that of a daemon
	trial       time.Duration  // 0: testTrial
	rate        func(context.Context, *local.Consumer, carrier.Peer, transport.Kind) (float64, error)

	passed []*os.File // Options.passed
	before func()     // what it is started after, when there is its directory; nil: nothing

	d   *Daemon
	api *api.Client
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// shortDir is a directory whose name is short enough for Unix sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "iw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// rated are carriers of known rates.
func rated(rates map[transport.Kind]float64) func(context.Context, *local.Consumer, carrier.Peer, transport.Kind) (float64, error) {
	return func(_ context.Context, _ *local.Consumer, _ carrier.Peer, k transport.Kind) (float64, error) {
		return rates[k], nil
	}
}

// newHost starts a daemon; more is added to its main file.
func newHost(t *testing.T, more string) *host {
	t.Helper()
	h := &host{t: t}
	h.begin(more)
	return h
}

func (h *host) begin(more string) {
	t := h.t
	t.Helper()
	if h.rate == nil {
		h.rate = rated(map[transport.Kind]float64{transport.SCTPUDP: 2e9, transport.TCP: 1e9})
	}
	h.dir, h.port, h.udp, h.log = shortDir(t), iwarptest.FreePort(t), iwarptest.FreeUDPPort(t), new(safeBuffer)
	h.conf = filepath.Join(h.dir, "ironwarp.yaml")
	if h.before != nil {
		h.before()
	}
	h.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n%s", h.port, h.udp, more))
	h.start()
	t.Cleanup(h.stop)
}

func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) options() Options {
	return Options{Config: h.conf, Named: true, Version: "test", retry: cmp.Or(h.retry, testRetry), trial: cmp.Or(h.trial, testTrial), avoid: h.avoid, kernel: h.kernel, stuck: h.stuck, offer: h.offering, closing: h.parting, drain: h.drain, removeGuard: h.removeGuard, devices: h.devices, rate: h.rate, passed: h.passed, Log: func(config.Log) *slog.Logger {
		return slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}}
}

func (h *host) start() {
	h.t.Helper()
	d, err := Start(h.t.Context(), h.options())
	if err != nil {
		h.t.Fatal(err)
	}
	h.d, h.api = d, api.NewClient(filepath.Join(h.dir, "run", "ironwarp.sock"))
}

func (h *host) stop() {
	if h.d == nil {
		return
	}
	h.api.Close()
	if err := h.d.Close(); err != nil {
		h.t.Errorf("close the daemon: %v", err)
	}
	if u := h.d.dev.Usage(); u.Streams != 0 || u.MRs != 0 || u.PDs != 0 {
		h.t.Errorf("the RNIC is not empty after Close: %+v", u)
	}
	h.d = nil
}

// link declares two hosts to each other.
func link(t *testing.T, a, b *host) {
	t.Helper()
	for _, x := range []struct {
		on, other *host
		name      string
	}{{a, b, "beta"}, {b, a, "alpha"}} {
		if _, err := x.on.api.AddPeer(t.Context(), api.PeerSpec{Name: x.name, Address: "127.0.0.1", Port: x.other.port, Protection: "loopback"}); err != nil {
			t.Fatal(err)
		}
	}
}

// pair is two linked hosts, of which beta exports a disk of size bytes to alpha.
func pair(t *testing.T, size int) (alpha, beta *host, image string) {
	t.Helper()
	alpha, beta = newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	image = beta.image("disk.img", size)
	beta.export("disk", image, false)
	return alpha, beta, image
}

func (h *host) image(name string, size int) string {
	h.t.Helper()
	h.write(name, "")
	path := filepath.Join(h.dir, name)
	if err := os.Truncate(path, int64(size)); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *host) export(name, path string, readOnly bool) {
	h.t.Helper()
	h.offer(api.ExportSpec{Name: name, Path: path, ReadOnly: readOnly})
}

// offer exports something to alpha.
func (h *host) offer(spec api.ExportSpec) {
	h.t.Helper()
	name := spec.Name
	spec.Allow = []string{"alpha"}
	var e api.Export
	h.unlessLate("offered", func() (err error) {
		e, err = h.api.AddExport(h.t.Context(), spec)
		return err
	})
	if e.State != api.ExportReady {
		h.t.Logf("export %s is not offered at once: %v", name, e.Problem)
		h.opened(name)
	}
}

// opened waits until the storage of an export is open, which a busy machine may do later than a start or a reload waits for it.
func (h *host) opened(name string) {
	h.t.Helper()
	eventually(h.t, "the storage of the export is open", func() bool {
		return slices.ContainsFunc(h.status().Exports, func(e api.Export) bool { return e.Name == name && e.UUID != "" })
	})
}

// attach attaches a disk and connects an NBD client to it.
func (h *host) attach(disk string) *nbdtest.Client {
	h.t.Helper()
	h.unlessLate("attached", func() error {
		_, err := h.api.Attach(h.t.Context(), api.AttachRequest{Peer: "beta", Export: disk}, nil)
		return err
	})
	return h.nbd(disk)
}

// unlessLate does something to storage that works, which on a busy machine may answer too
// late for one call of the daemon, and be in use for a moment by that.
func (h *host) unlessLate(what string, do func() error) {
	h.t.Helper()
	var err error
	late := false
	eventually(h.t, what, func() bool {
		err = do()
		late = late || err != nil && strings.Contains(err.Error(), "may hang")
		return err == nil || !late
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) nbd(disk string) *nbdtest.Client {
	h.t.Helper()
	c, err := net.Dial("unix", filepath.Join(h.dir, "run", "nbd", "beta-"+disk+".sock"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	cl, err := nbdtest.Connect(c, disk, false)
	if err != nil {
		h.t.Fatal(err)
	}
	return cl
}

// NBD commands and errors, as the protocol document numbers them.
const (
	cmdRead, cmdWrite, cmdFlush, cmdTrim, cmdZeroes = 0, 1, 3, 4, 6
	nbdEPERM, nbdEIO, nbdENOSPC                     = 1, 5, 28
)

// do makes one request and returns its error number and data.
func do(t *testing.T, c *nbdtest.Client, cmd uint16, off uint64, n uint32, payload []byte) (uint32, []byte) {
	t.Helper()
	r, err := c.Do(0, cmd, off, n, payload)
	if err != nil {
		t.Fatalf("NBD command %d at %d: the connection broke: %v", cmd, off, err)
	}
	return r.Error, r.Data
}

func ok(t *testing.T, c *nbdtest.Client, cmd uint16, off uint64, n uint32, payload []byte) []byte {
	t.Helper()
	e, data := do(t, c, cmd, off, n, payload)
	if e != 0 {
		t.Fatalf("NBD command %d at %d: error %d", cmd, off, e)
	}
	return data
}

// eventually waits until f is true. It looks less and less often: f may make streams, and who makes more than 50 a second for long is
// blocked.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	for pause := 5 * time.Millisecond; !f(); pause = min(pause+pause/20, 100*time.Millisecond) {
		select {
		case <-ctx.Done():
			t.Fatalf("never happened: %s", what)
		case <-time.After(pause):
		}
	}
}

func (h *host) status() api.Status {
	h.t.Helper()
	st, err := h.api.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

// says checks an error's code and that it names what it should.
func says(t *testing.T, err error, code string, words ...string) {
	t.Helper()
	e := apiError(err)
	if e == nil {
		t.Fatalf("no error, want %s", code)
	}
	if e.Code != code {
		t.Errorf("code %s, want %s: %v", e.Code, code, err)
	}
	for _, w := range words {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("%q does not say %q", e.Error(), w)
		}
	}
}
