package netfuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Addresses of the hosts. They identify the peers.
var (
	home    = netip.MustParseAddr("127.0.0.1")
	alice   = netip.MustParseAddr("127.0.0.65") // behaves
	mallory = netip.MustParseAddr("127.0.0.66") // attacks over TCP
	trudy   = netip.MustParseAddr("127.0.0.67") // attacks over SCTP in UDP
)

const (
	patience = 8 * time.Second // go test gives up an input after 10
	diskSize = 1 << 20
	// newcomerEvery: after so many runs the well-behaved peer opens another stream, and
	// memory and goroutines are counted.
	newcomerEvery = 256
	// The most that a daemon has between two attacks.
	maxHeap       = 512 << 20
	maxGoroutines = 300
)

// target is a daemon, and a peer whose disk has to work whatever the attackers do.
type target struct {
	dir  string
	port uint16 // of TCP and SCTP
	udp  uint16
	d    *daemon.Daemon
	api  *api.Client

	dev    *verbs.Device // alice's
	ulp    *verbs.ULP
	client *rnbd.Client
	disk   *rnbd.Disk
	runs   int
}

// newTarget starts a daemon for all inputs of f, with these further lines in its main
// file.
func newTarget(f *testing.F) *target {
	f.Helper()
	dir, err := os.MkdirTemp("", "iw") // a Unix socket's name is short
	if err != nil {
		f.Fatal(err)
	}
	v := &target{dir: dir, port: iwarptest.FreePort(f), udp: iwarptest.FreeUDPPort(f)}
	f.Cleanup(func() { os.RemoveAll(dir) })
	v.write(f, "ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\nlimits: {queue_size: 8}\nblock: off\n", v.port, v.udp))
	for name, carrier := range map[string]string{"alice": "tcp", "mallory": "tcp", "trudy": fmt.Sprintf("sctp-udp\nudp_port: %d", v.udp)} {
		addr := map[string]netip.Addr{"alice": alice, "mallory": mallory, "trudy": trudy}[name]
		v.write(f, "peers.d/"+name+".yaml", fmt.Sprintf("name: %s\naddress: %s\nlocal_address: %s\nprotection: loopback\ntransport: %s\n", name, addr, home, carrier))
	}
	for _, e := range []struct{ name, more string }{
		{"secret", "allow: [alice]"}, {"open", "allow: [alice, mallory, trudy]"}, {"readonly", "allow: [alice, mallory, trudy]\nread_only: true"},
	} {
		v.write(f, e.name+".img", string(content(e.name)))
		v.write(f, "exports.d/"+e.name+".yaml", fmt.Sprintf("name: %s\npath: %s\n%s\n", e.name, filepath.Join(dir, e.name+".img"), e.more))
	}
	v.d, err = daemon.Start(context.Background(), daemon.Options{Config: filepath.Join(dir, "ironwarp.yaml"), Named: true, Version: "fuzz", Log: func(config.Log) *slog.Logger {
		return slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})) // formats everything
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := v.d.Close(); err != nil {
			f.Error(err)
		}
	})
	v.api = api.NewClient(filepath.Join(dir, "run", "ironwarp.sock"))
	f.Cleanup(v.api.Close)
	v.openDisk(f)
	return v
}

// openDisk opens alice's disk.
func (v *target) openDisk(f *testing.F) {
	f.Helper()
	var err error
	if v.dev, err = verbs.Open(verbs.Config{}); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { v.dev.Close() })
	if v.ulp, err = v.dev.NewULP("alice", verbs.ULPConfig{Trust: verbs.SLT}); err != nil {
		f.Fatal(err)
	}
	if v.client, err = v.connect("alice"); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { v.client.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if v.disk, err = v.client.Open(ctx, "secret", rnbd.OpenOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (v *target) connect(session string) (*rnbd.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	path := rtrs.PathConfig{Remote: netip.AddrPortFrom(home, v.port), Transport: &transport.Config{Protector: transport.LoopbackOnly(), Local: alice}}
	return rnbd.Connect(ctx, rnbd.ClientConfig{RTRS: rtrs.ClientConfig{
		ULP: v.ulp, Name: session, Paths: []rtrs.PathConfig{path}, Conns: 1, QueueDepth: 8, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU},
	}})
}

func (v *target) write(f *testing.F, name, text string) {
	f.Helper()
	path := filepath.Join(v.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		f.Fatal(err)
	}
}

// content is a disk's content at the start.
func content(name string) []byte {
	line := bytes.Repeat([]byte(name+" "), 512/len(name+" ")+1)[:512]
	return bytes.Repeat(line, diskSize/512)
}

// survived checks after an attack that the attackers' streams have ended, that the
// other peer's disk works, and that what nobody may write to was not written to.
func (v *target) survived(t *testing.T) {
	t.Helper()
	v.runs++
	v.wantDisk(t)
	v.wantQuiet(t)
	if v.runs%newcomerEvery != 0 {
		return
	}
	for _, name := range []string{"secret", "readonly"} {
		if b, err := os.ReadFile(filepath.Join(v.dir, name+".img")); err != nil || !bytes.Equal(b, content(name)) {
			t.Fatalf("the disk %s was changed (%d bytes, %v)", name, len(b), err)
		}
	}
	if st, err := os.Stat(filepath.Join(v.dir, "open.img")); err != nil || st.Size() != diskSize {
		t.Fatalf("the file of the disk open: %v, %v", st, err)
	}
	c, err := v.connect("newcomer")
	if err != nil {
		t.Fatalf("a newcomer is not let in: %v", err)
	}
	c.Close()
	v.wantSmall(t)
}

// wantDisk reads from the well-behaved peer's disk.
func (v *target) wantDisk(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	off := uint64(v.runs*4096) % diskSize
	x, err := v.disk.Get(ctx, block.OpRead, off, 4096, 0)
	if err != nil {
		t.Fatalf("the other peer's disk: %v", err)
	}
	defer x.Release()
	done := make(completion, 1)
	x.Submit(done, false)
	select {
	case errno := <-done:
		if errno != 0 {
			t.Fatalf("the other peer's disk: %v", errno)
		}
	case <-ctx.Done():
		t.Fatalf("the other peer's disk stands still\n%s", stacks())
	}
	if got := bytes.Join(x.Buffers(), nil); !bytes.Equal(got, content("secret")[off:off+4096]) {
		t.Fatal("the other peer reads what is not on its disk")
	}
}

type completion chan syscall.Errno

func (c completion) Complete(errno syscall.Errno) { c <- errno }

// wantQuiet waits until the attackers have no stream any more.
func (v *target) wantQuiet(t *testing.T) {
	t.Helper()
	var left []api.Stream
	if !eventually(func() bool {
		st, err := v.api.Status(context.Background())
		if err != nil {
			t.Fatalf("the control socket: %v", err)
		}
		left = left[:0]
		for _, s := range st.Streams {
			if s.Peer != "alice" {
				left = append(left, s)
			}
		}
		return len(left) == 0
	}) {
		t.Fatalf("streams outlive their connections: %+v\n%s", left, stacks())
	}
}

// wantSmall checks what the daemon has in use between two attacks.
func (v *target) wantSmall(t *testing.T) {
	t.Helper()
	var m runtime.MemStats
	if !eventually(func() bool {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc < maxHeap && runtime.NumGoroutine() < maxGoroutines
	}) {
		t.Fatalf("%d bytes of heap and %d goroutines are left over\n%s", m.HeapAlloc, runtime.NumGoroutine(), stacks())
	}
}

// eventually waits until f is true.
func eventually(f func() bool) bool {
	limit := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(limit) {
			return false
		}
		<-tick.C
	}
	return true
}

// isClosed reports whether a socket was closed here. On loopback a UDP socket reports
// that of the other end, too, as a refused connection.
func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }

func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}
