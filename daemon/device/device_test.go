package device_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/daemon/device/devicetest"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	cmdRead, cmdWrite, cmdFlush = 0, 1, 3
	size                        = 1 << 20
)

// life is one of the daemon's, with a disk in memory.
type life struct {
	*device.Device
	end  context.CancelFunc
	lost atomic.Pointer[api.Error]
}

// begin serves a disk as a device.
func begin(t *testing.T, d *device.Driver, disk *nbdtest.Memory, more ...func(*device.Config)) (*life, error) {
	t.Helper()
	srv := nbd.NewServer(nbd.Config{})
	if err := srv.Export("disk", disk, ""); err != nil {
		t.Fatal(err)
	}
	info, err := srv.Info("disk")
	if err != nil {
		t.Fatal(err)
	}
	l := &life{}
	cfg := device.Config{Name: "beta-disk", Size: info.Size, BlockSize: info.BlockSize, Flags: info.Flags, MultiConn: true, Log: slog.New(slog.DiscardHandler),
		Serve: func(ctx context.Context, nc net.Conn) error { return srv.Transmit(ctx, nc, "disk") }, Lost: func(why *api.Error) { l.lost.Store(why) }}
	for _, f := range more {
		f(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if l.Device, err = d.Open(ctx, cfg); err != nil {
		cancel()
		return nil, err
	}
	l.end = func() {
		cancel()
		l.Wait()
	}
	t.Cleanup(l.end)
	return l, nil
}

func must(t *testing.T, k *devicetest.Kernel, cmd uint16, off uint64, payload []byte) []byte {
	t.Helper()
	b, err := k.Device(0).Do(cmd, off, uint32(len(payload)), payload)
	if err != nil {
		t.Fatalf("command %d: %v", cmd, err)
	}
	return b
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range rate.Ticks(ctx, time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func TestDeviceIsSetUpServedAndRemoved(t *testing.T) {
	k := devicetest.New(t)
	l, err := begin(t, k.Driver(), nbdtest.NewMemory(size))
	if err != nil {
		t.Fatal(err)
	}
	c := k.Commands()[0]
	if c.Cmd != 1 || c.Size != size || c.BlockSize != 512 || c.Flags&0x10d != 0x10d || c.DeadTimeout < 60 || c.Timeout == 0 || c.Timeout > 60 {
		t.Errorf("%+v", c)
	}
	data := bytes.Repeat([]byte("ironwarp"), 512)
	must(t, k, cmdWrite, 4096, data)
	must(t, k, cmdFlush, 0, nil)
	if got, err := k.Device(0).Do(cmdRead, 4096, uint32(len(data)), nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read back: %v", err)
	}
	if l.Path() != filepath.Join(k.Dir(), "dev/nbd0") || l.Link() != filepath.Join(k.Dir(), "dev/disk/by-ironwarp/beta-disk") {
		t.Errorf("it is %s and %s", l.Path(), l.Link())
	}
	if to, err := os.Readlink(l.Link()); err != nil || to != "../../nbd0" {
		t.Errorf("the link leads to %s: %v", to, err)
	}
	l.End()
	if err := k.Driver().Remove("beta-disk"); err != nil {
		t.Fatal(err)
	}
	l.Wait()
	if k.Device(0) != nil || l.lost.Load() != nil {
		t.Errorf("the device is there, or %v", l.lost.Load())
	}
	if _, err := os.Lstat(l.Link()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link: %v", err)
	}
}

func TestDeviceHasSeveralConnectionsOnlyIfAFlushCoversAll(t *testing.T) {
	k := devicetest.New(t)
	if _, err := begin(t, k.Driver(), nbdtest.NewMemory(size), func(c *device.Config) { c.MultiConn = false }); err != nil {
		t.Fatal(err)
	}
	if n := k.Commands()[0].Sockets; n != 1 {
		t.Errorf("%d connections", n)
	}
}

// What a device has under way when its daemon ends is carried out by the next one, which
// finds it.
func TestNextLifeTakesTheDeviceOver(t *testing.T) {
	k, disk := devicetest.New(t), nbdtest.NewMemory(size)
	first, err := begin(t, k.Driver(), disk)
	if err != nil {
		t.Fatal(err)
	}
	must(t, k, cmdWrite, 0, bytes.Repeat([]byte{1}, 512))
	alive := k.Device(0).Alive()
	first.end()
	written := make(chan error, 1)
	go func() {
		_, err := k.Device(0).Do(cmdWrite, 512, 512, bytes.Repeat([]byte{2}, 512))
		written <- err
	}()
	second, err := begin(t, k.Driver(), disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Errorf("the write that waited: %v", err)
	}
	if second.Path() != first.Path() {
		t.Errorf("it is %s: %+v", second.Path(), k.Commands())
	}
	if got := must(t, k, cmdRead, 0, make([]byte, 0)); len(got) != 0 {
		t.Error("a read of nothing")
	}
	eventually(t, "all connections are back", func() bool { return k.Device(0).Alive() == alive })
	disk.Data(func(data []byte) {
		if data[0] != 1 || data[512] != 2 {
			t.Error("the disk lacks a write")
		}
	})
}

// The kernel gives a connection up whose answers take too long, and repeats its requests on another.
func TestConnectionThatTheKernelGivesUpIsReplaced(t *testing.T) {
	k := devicetest.New(t)
	if _, err := begin(t, k.Driver(), nbdtest.NewMemory(size)); err != nil {
		t.Fatal(err)
	}
	d := k.Device(0)
	alive := d.Alive()
	for i := range alive {
		d.Cut(i)
	}
	must(t, k, cmdWrite, 0, make([]byte, 512))
	eventually(t, "all connections are back", func() bool { return d.Alive() == alive })
}

// So it is while what it had requested waits for a peer, which may take longer than the kernel
// waits without any connection.
func TestConnectionIsReplacedWhileItsRequestsWait(t *testing.T) {
	k, disk := devicetest.New(t), nbdtest.NewMemory(size)
	disk.Hold = func(op block.Op, _ uint64) bool { return op == block.OpWrite }
	if _, err := begin(t, k.Driver(), disk); err != nil {
		t.Fatal(err)
	}
	d := k.Device(0)
	alive := d.Alive()
	written := make(chan error, 1)
	go func() {
		_, err := d.Do(cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
		written <- err
	}()
	disk.WaitHeld(1)
	for i := range alive {
		d.Cut(i)
	}
	eventually(t, "all connections are back", func() bool { return d.Alive() == alive })
	disk.Let(0) // whose connection is gone; the kernel has asked again, by one or, as that was cut, by several others
	eventually(t, "the write ends", func() bool { disk.LetAll(); return len(written) > 0 })
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// A device whose disk is not there has connections all the same, and its I/O waits.
func TestDeviceIsHeldUntilItsDiskIsThere(t *testing.T) {
	k, disk := devicetest.New(t), nbdtest.NewMemory(size)
	k.Driver().HoldIO(t.Context(), "beta-disk", slog.New(slog.DiscardHandler))()
	first, err := begin(t, k.Driver(), disk)
	if err != nil {
		t.Fatal(err)
	}
	d := k.Device(0)
	alive := d.Alive()
	first.end()
	written := make(chan error, 1)
	go func() {
		_, err := d.Do(cmdWrite, 0, 512, make([]byte, 512))
		written <- err
	}()
	release := k.Driver().HoldIO(t.Context(), "beta-disk", slog.New(slog.DiscardHandler))
	for range 2 {
		eventually(t, "it has its connections", func() bool { return d.Alive() == alive })
		for i := range alive {
			d.Cut(i)
		}
	}
	release()
	if len(written) > 0 {
		t.Errorf("somebody has answered: %v", <-written)
	}
	if _, err := begin(t, k.Driver(), disk); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func TestDeviceOfAnotherSizeIsResizedWhenItIsTakenOver(t *testing.T) {
	k := devicetest.New(t)
	first, err := begin(t, k.Driver(), nbdtest.NewMemory(size))
	if err != nil {
		t.Fatal(err)
	}
	first.end()
	if _, err := begin(t, k.Driver(), nbdtest.NewMemory(2*size)); err != nil {
		t.Fatal(err)
	}
	if all := k.Commands(); !slices.ContainsFunc(all, func(c devicetest.Command) bool { return c.Cmd == 3 && c.Size == 2*size }) {
		t.Errorf("%+v", all)
	}
}

// A device that is given up at once leaves the kernel no connection on which nobody answers.
func TestDeviceIsGivenUpAtOnce(t *testing.T) {
	k := devicetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, err := k.Driver().Open(ctx, device.Config{Name: "beta-disk", Size: size, Log: slog.New(slog.DiscardHandler), Lost: func(*api.Error) {},
		Serve: func(ctx context.Context, nc net.Conn) error {
			<-ctx.Done()
			return nc.Close()
		}})
	if err != nil {
		t.Fatal(err)
	}
	d.Wait()
	eventually(t, "it has no connection", func() bool { return k.Device(0).Alive() == 0 })
}

func TestDeviceThatAnotherProgramEndsIsReportedLost(t *testing.T) {
	k := devicetest.New(t)
	l, err := begin(t, k.Driver(), nbdtest.NewMemory(size))
	if err != nil {
		t.Fatal(err)
	}
	k.End(0)
	l.Wait()
	if why := l.lost.Load(); why == nil || !strings.Contains(why.Message, "another program has disconnected it") {
		t.Errorf("%v", why)
	}
}

// A device that was ended while somebody had it open is not the next one's.
func TestDeviceThatHasEndedIsNotTakenOver(t *testing.T) {
	k, disk := devicetest.New(t), nbdtest.NewMemory(size)
	first, err := begin(t, k.Driver(), disk)
	if err != nil {
		t.Fatal(err)
	}
	k.Mount(0, true)
	first.End()
	if err := k.Driver().Remove("beta-disk"); err != nil {
		t.Fatal(err)
	}
	first.Wait()
	second, err := begin(t, k.Driver(), disk)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(second.Path()) != "nbd1" {
		t.Errorf("it is %s", second.Path())
	}
	if _, err := k.Device(1).Do(cmdWrite, 0, 512, make([]byte, 512)); err != nil {
		t.Error(err)
	}
}

func TestDeviceInUseIsNotClaimed(t *testing.T) {
	k := devicetest.New(t)
	if _, err := begin(t, k.Driver(), nbdtest.NewMemory(size)); err != nil {
		t.Fatal(err)
	}
	claim := func(words string) {
		t.Helper()
		use, err := k.Driver().Claim(t.Context(), "beta-disk")
		if err == nil {
			use.Close()
		}
		var e *api.Error
		if words == "" && err != nil || words != "" && (!errors.As(err, &e) || e.Code != api.CodeInUse || !strings.Contains(e.Message, words)) {
			t.Errorf("claimed: %v, want %q", err, words)
		}
	}
	claim("")
	k.Mount(0, true)
	claim("has it for itself")
	for name, text := range map[string]string{"sys/block/nbd0/nbd0p1/dev": "43:1\n", "mountinfo": "22 1 43:1 / /mnt rw - ext4 /dev/nbd0p1 rw\n"} {
		path := filepath.Join(k.Dir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	claim("it is mounted on /mnt")
}

func TestRefusalsSayWhatWasTriedAndWhatToDo(t *testing.T) {
	k := devicetest.New(t)
	for _, c := range []struct {
		err   error
		words []string
	}{
		{unix.EPERM, []string{"operation not permitted", "CAP_SYS_ADMIN"}},
		{unix.EBUSY, []string{"set up a block device for beta-disk"}},
	} {
		k.Refuse(c.err)
		_, err := begin(t, k.Driver(), nbdtest.NewMemory(size))
		var e *api.Error
		if !errors.As(err, &e) {
			t.Fatalf("%v: %v", c.err, err)
		}
		for _, w := range c.words {
			if !strings.Contains(e.Error(), w) {
				t.Errorf("%q does not say %q", e.Error(), w)
			}
		}
	}
	k.Refuse(nil)
	k.Forget()
	if _, err := begin(t, k.Driver(), nbdtest.NewMemory(size)); err == nil || !strings.Contains(err.Error(), "Linux 5.14") || k.Device(0) != nil {
		t.Errorf("a kernel that forgets: %v, %v", err, k.Device(0))
	}
}

// A kernel that answers what nobody understands gets no device from this.
func TestOddAnswersAreRefused(t *testing.T) {
	for name, answers := range map[string][][]byte{"none": nil, "of another command": {{5, 1, 0, 0}}, "without an index": {{1, 1, 0, 0}}, "short": {{1}}} {
		d := device.New(device.Access{Exchange: func(uint8, []byte) ([][]byte, error) { return answers, nil }, Sys: t.TempDir(), Dev: t.TempDir(),
			Claim: func(string) (io.Closer, error) { return nil, unix.EBUSY }})
		if _, err := begin(t, d, nbdtest.NewMemory(size)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// This machine's kernel, whatever it has.
func TestKernelSaysWhatItHas(t *testing.T) {
	devices, connected, err := device.Kernel().Probe()
	var e *api.Error
	switch {
	case err == nil && connected > devices:
		t.Errorf("%d of %d devices are connected", connected, devices)
	case err != nil && (!errors.As(err, &e) || e.Message == "" || e.Code == api.CodeUnavailable && e.Fix == ""):
		t.Errorf("%v", err)
	}
	t.Logf("%d devices, %d connected: %v", devices, connected, err)
}
