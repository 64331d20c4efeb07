package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := program.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

var program node.Program

const (
	linkPort = 7471     // the daemon's default, for TCP and SCTP
	udpPort  = 9899     // its default for SCTP in UDP
	diskSize = 64 << 20 // bytes
	// flowed is how much has to move to count as flowing, in bytes.
	flowed = 256 << 10
	// healTimeout bounds the wait for a state that has to come. It is much longer than any
	// takes, so that a busy machine does not fail the test.
	healTimeout = 90 * time.Second
)

// scene is alpha with beta's disk attached, and a capture of the wire.
type scene struct {
	lab         *lab.Lab
	alpha, beta *node.Node
	others      []*node.Node   // hosts beside them
	disk        api.Attachment // on alpha
	wire        lab.Captures
	kind        transport.Kind        // what carries the streams
	wires       int                   // how many paths there are, 0 for one
	families    bool                  // every second path is by IPv6
	path        string                // option of peer add for each pair of addresses beyond the first; "": --multihoming
	more        func(wire int) string // what stands behind the pair in it
	options     []string              // of peer add
	charonEnv   []string              // of both strongSwans
	binary      string                // the program of all hosts; "": that of this tree
}

// require skips the test, saying why, where it cannot run.
func require(t *testing.T) {
	t.Helper()
	lab.Require(t)
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skipf("%v: apt install fio", err)
	}
}

// newScene sets everything up; options are those of `peer add`.
func newScene(t *testing.T, options ...string) *scene {
	t.Helper()
	return newSceneOver(t, transport.TCP, options...)
}

// newSceneOver is newScene with streams of another kind.
func newSceneOver(t *testing.T, kind transport.Kind, options ...string) *scene {
	t.Helper()
	s := &scene{kind: kind, options: options}
	if kind != transport.TCP {
		s.options = append(s.options, "--transport", kind.String())
	}
	s.start(t)
	return s
}

// port is the link's port on the wire.
func (s *scene) port() uint16 {
	if s.kind == transport.SCTPUDP {
		return udpPort
	}
	return linkPort
}

func (s *scene) start(t *testing.T, others ...string) {
	t.Helper()
	s.hosts(t, others...)
	s.join(t)
	s.attach(t)
}

// hosts starts alpha, beta and others with a daemon each, which do not know each other, and
// the capture.
func (s *scene) hosts(t *testing.T, others ...string) {
	t.Helper()
	require(t)
	if s.kind == transport.SCTP {
		lab.RequireKernelSCTP(t)
	}
	binary := s.binary
	if binary == "" {
		binary = program.Path(t)
	}
	s.lab = lab.Start(t, lab.Config{CharonEnv: s.charonEnv, Wires: s.wires, Hosts: append([]string{"alpha", "beta"}, others...)})
	s.alpha, s.beta = node.New(s.lab.Host("alpha"), binary), node.New(s.lab.Host("beta"), binary)
	for _, name := range others {
		s.others = append(s.others, node.New(s.lab.Host(name), binary))
	}
	t.Cleanup(func() {
		for _, n := range s.nodes() {
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("the daemon of %s:\n%s", n.Name(), n.LogTail(8000))
			}
		}
	})
	for _, n := range s.nodes() {
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.capture(t, "")
}

func (s *scene) nodes() []*node.Node { return append([]*node.Node{s.alpha, s.beta}, s.others...) }

func (s *scene) other(n *node.Node) *node.Node {
	if n == s.alpha {
		return s.beta
	}
	return s.alpha
}

func (s *scene) join(t *testing.T) {
	t.Helper()
	err := node.JoinWith(t.Context(), s.alpha, s.beta, func(n, peer *node.Node) []string { return append(s.pathOptions(n, peer), s.options...) })
	if err != nil {
		t.Fatal(err)
	}
}

// pathOptions are those of `peer add` for more than one wire.
func (s *scene) pathOptions(n, peer *node.Node) (options []string) {
	if s.wires > 1 {
		options = []string{"--local-address", n.Addr().String()}
	}
	for w := 1; w < s.wires; w++ {
		more := ""
		if s.more != nil {
			more = s.more(w)
		}
		options = append(options, cmp.Or(s.path, "--multihoming"), fmt.Sprintf("%v=%v%s", s.addr(peer, w), s.addr(n, w), more))
	}
	return options
}

// addr is the address of a host by which a path goes.
func (s *scene) addr(n *node.Node, wire int) netip.Addr {
	if s.families && wire%2 == 1 {
		return n.AddrOn6(wire)
	}
	return n.AddrOn(wire)
}

// export is the disk's name.
func (s *scene) export() string { return "disk-" + string(s.lab.Canary()) }

// image is the disk's file.
func (s *scene) image() string { return filepath.Join(s.beta.Dir(), "disk.img") }

// attach makes the disk; options are those of `attach`.
func (s *scene) attach(t *testing.T, options ...string) {
	t.Helper()
	f, err := os.Create(s.image())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(diskSize); err != nil {
		t.Fatal(err)
	}
	if _, err := s.beta.Ironwarp(t.Context(), nil, "export", "add", "--allow", "alpha", s.export(), s.image()); err != nil {
		t.Fatal(err)
	}
	if err := s.alpha.Query(t.Context(), &s.disk, append([]string{"attach", "beta/" + s.export()}, options...)...); err != nil {
		t.Fatal(err)
	}
}

// capture starts a capture of all that crosses the wires; unjudged, if set, says why
// any packet is allowed on them.
func (s *scene) capture(t *testing.T, unjudged string) {
	t.Helper()
	at := s.alpha
	if len(s.others) > 0 {
		at = s.beta // with whom all of them talk
	}
	var err error
	if s.wire, err = at.CaptureAll(t.Context(), lab.CaptureOptions{Unjudged: unjudged}); err != nil {
		t.Fatal(err)
	}
}

// load is verified I/O on the disk until it is ended.
type load struct {
	stop    func()
	ended   chan struct{}
	done    node.Done
	err     error
	at      *node.Node // where it runs
	moved   func(context.Context) (bytes uint64, err error)
	began   time.Time
	streams []api.Stream // at the beginning
}

// begin starts the load on alpha and waits until data flows.
func (s *scene) begin(t *testing.T, how node.Load) *load {
	t.Helper()
	return s.beginAt(t, s.alpha, s.disk, how)
}

// beginAt is begin on another host that has the disk attached.
func (s *scene) beginAt(t *testing.T, at *node.Node, disk api.Attachment, how node.Load) *load {
	t.Helper()
	how.URI = disk.URI
	streams := s.streams(t, at)
	l := s.beginCounted(t, at, how, s.diskMoved(at))
	l.streams = streams
	return l
}

// diskMoved counts the bytes that the disk attached on a host has moved.
func (s *scene) diskMoved(at *node.Node) func(context.Context) (uint64, error) {
	return func(ctx context.Context) (uint64, error) {
		io, err := at.DiskIO(ctx, s.export())
		return io.ReadBytes + io.WriteBytes, err
	}
}

// beginCounted is begin on a host, of a disk whose bytes that were moved somebody counts.
func (s *scene) beginCounted(t *testing.T, at *node.Node, how node.Load, moved func(context.Context) (uint64, error)) *load {
	t.Helper()
	if how.Size == 0 {
		how.Size = 16 << 20
	}
	if how.Timeout == 0 {
		how.Timeout = loadTimeout
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stop := make(chan struct{})
	l := &load{stop: sync.OnceFunc(func() { close(stop) }), ended: make(chan struct{}), began: time.Now(), at: at, moved: moved}
	go func() {
		defer close(l.ended)
		l.done, l.err = how.Run(ctx, at, stop)
	}()
	t.Cleanup(func() { cancel(); <-l.ended })
	s.mustFlow(t, l)
	return l
}

// loadTimeout bounds a load of unknown length.
const loadTimeout = 4 * time.Minute

func (s *scene) streams(t *testing.T, at *node.Node) []api.Stream {
	t.Helper()
	list, err := at.Streams(t.Context(), "beta")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// end finishes the pass that runs, and fails the test if an I/O did.
func (l *load) end(t *testing.T) node.Done {
	t.Helper()
	l.stop()
	<-l.ended
	if l.err != nil {
		t.Fatalf("verified I/O: %v", l.err)
	}
	t.Logf("fio: %d passes, %d MiB written, %d MiB read back and verified, no error", l.done.Passes, l.done.Written>>20, l.done.Read>>20)
	return l.done
}

// mustFlow waits until I/O makes progress.
func (s *scene) mustFlow(t *testing.T, l *load) {
	t.Helper()
	if err := s.awaitFlow(t.Context(), l); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) awaitFlow(ctx context.Context, l *load) error {
	var base uint64
	known := false
	return s.await(ctx, "verified I/O goes on", l, func(ctx context.Context) bool {
		moved, err := l.moved(ctx)
		switch {
		case err != nil:
			return false // the daemon may be away for the moment
		case !known || moved < base: // a restarted daemon counts from zero
			base, known = moved, true
		}
		return moved >= base+flowed
	})
}

// await waits for a state. A load that fails ends the wait.
func (s *scene) await(ctx context.Context, what string, l *load, ask func(context.Context) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, healTimeout, &never{what})
	defer cancel()
	return node.Until(ctx, func() (bool, error) {
		if l != nil {
			select {
			case <-l.ended:
				return false, l.err
			default:
			}
		}
		return ask(ctx), nil
	})
}

type never struct{ what string }

func (n *never) Error() string { return "never happened: " + n.what }

// eventually is await for a test's own goroutine.
func (s *scene) eventually(t *testing.T, what string, l *load, ask func(context.Context) bool) {
	t.Helper()
	if err := s.await(t.Context(), what, l, ask); err != nil {
		t.Fatal(err)
	}
}

// sameStreams fails the test unless the streams are those from when the load began.
func (s *scene) sameStreams(t *testing.T, l *load) {
	t.Helper()
	same, text := node.SameStreams(l.streams, s.streams(t, l.at), time.Since(l.began))
	if !same {
		t.Errorf("the streams are not the same: %s", text)
		return
	}
	t.Logf("the same streams: %s", text)
}

// judge ends the capture: not one packet of the link may have crossed the wire in
// clear, and the data must have crossed it. Then the control run shows that this
// check can fail.
func (s *scene) judge(t *testing.T, carried int64) {
	t.Helper()
	counts, err := s.wire.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("on the wire: %v", counts)
	for _, fault := range s.faults(counts, carried) {
		t.Error(fault)
	}
	for i, wire := range s.wire {
		if c, err := wire.Stop(); err != nil || c.ESP == 0 {
			t.Errorf("nothing of the link crossed wire %d, so that nothing is known of it: %v, %v", i, c, err)
		}
	}
	s.control(t)
}

// faults lists what is wrong with a capture of the wire.
func (s *scene) faults(c lab.Counts, carried int64) (all []string) {
	if n := c.ClearOf(s.kind.Protocol(), s.port()); n != 0 {
		all = append(all, "packets of the link crossed the wire in clear: "+c.String())
	}
	all = append(all, c.Faults(lab.CaptureOptions{})...)
	if c.ESP == 0 || int64(c.Bytes) < carried {
		all = append(all, "the data did not cross this wire: "+c.String())
	}
	return all
}

// control overrides the guard and kills both strongSwans: now the same I/O has to
// show up in clear. Nothing can be done with the scene afterwards.
func (s *scene) control(t *testing.T) {
	t.Helper()
	s.capture(t, "the control: without guard and SA everything is in clear")
	if s.path == "--path" { // I/O may wait for the other paths' SAs, behind guards that stay
		for wire := 1; wire < s.wires; wire++ {
			_, err := s.alpha.Ironwarp(t.Context(), nil, "path", "disconnect", "beta", s.pathBy(t, wire).Name)
			must(t, err)
		}
	}
	a, b := s.alpha.Host, s.beta.Host
	for _, err := range []error{a.OverrideGuardOf(s.kind.Protocol(), b, s.port()), b.OverrideGuardOf(s.kind.Protocol(), a, s.port())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a.KillCharon()
	b.KillCharon()
	ctx, cancel := context.WithCancel(t.Context())
	var fio sync.WaitGroup
	fio.Go(func() { _, _ = node.Load{URI: s.disk.URI, Size: 1 << 20, Timeout: healTimeout}.Run(ctx, s.alpha, nil) })
	found := s.await(ctx, "clear packets without a guard", nil, func(context.Context) bool {
		c, err := s.wire.Count()
		faults := strings.Join(s.faults(c, 0), "\n")
		return err == nil && strings.Contains(faults, "in clear") && strings.Contains(faults, "have the canary")
	})
	cancel()
	fio.Wait()
	counts, err := s.wire.Stop()
	if err != nil || found != nil {
		t.Fatalf("the check of the wire finds nothing even without a guard: %v, %v; %v", found, err, counts)
	}
	t.Logf("control, guard overridden and strongSwan dead: %v", counts)
}
