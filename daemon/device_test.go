package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/device/devicetest"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// devicePair is pair, whose alpha has a kernel with nbd.
func devicePair(t *testing.T) (alpha, beta *host, k *devicetest.Kernel) {
	t.Helper()
	k = devicetest.New(t)
	alpha, beta = &host{t: t, devices: k.Driver()}, newHost(t, "")
	alpha.begin("")
	link(t, alpha, beta)
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	return alpha, beta, k
}

func (h *host) attachDevice(name string) (api.Attachment, error) {
	return h.api.Attach(h.t.Context(), api.AttachRequest{Peer: "beta", Export: "disk", Device: true, Name: name}, nil)
}

func TestDiskIsAttachedAsABlockDevice(t *testing.T) {
	alpha, _, k := devicePair(t)
	at, err := alpha.attachDevice("")
	if err != nil {
		t.Fatal(err)
	}
	if at.Device != filepath.Join(k.Dir(), "dev/nbd0") || filepath.Base(at.DeviceLink) != "beta-disk" || at.Socket != "" || at.URI != "" || at.State != api.AttachReady {
		t.Errorf("%+v", at)
	}
	data := bytes.Repeat([]byte{7}, 4096)
	if _, err := k.Device(0).Do(cmdWrite, 8192, 4096, data); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Device(0).Do(cmdRead, 8192, 4096, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read back: %v", err)
	}
	if st := alpha.status().Attachments[0]; st.Device != at.Device || st.IO.WriteBytes != 4096 || st.Clients == 0 {
		t.Errorf("%+v", st)
	}
	if again, err := alpha.attachDevice(""); err != nil || again.Device != at.Device {
		t.Errorf("attached again: %+v, %v", again, err)
	}
	_, err = alpha.attachDevice("other")
	says(t, err, api.CodeInUse, "attached already, as the device beta-disk", "ironwarp detach beta/disk")
	_, err = alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
	says(t, err, api.CodeInUse, "attached already")
	k.Mount(0, true)
	says(t, alpha.api.Detach(t.Context(), "beta", "disk", false), api.CodeInUse, "nbd0 is in use", "--force")
	k.Mount(0, false)
	if err := alpha.api.Detach(t.Context(), "beta", "disk", false); err != nil || k.Device(0) != nil {
		t.Errorf("detached: %v, %v", err, k.Device(0))
	}
	if at, err = alpha.attachDevice("docs"); err != nil || filepath.Base(at.DeviceLink) != "docs" {
		t.Errorf("by another name: %+v, %v", at, err)
	}
	k.Mount(0, true)
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil || k.Device(0) != nil {
		t.Errorf("detached by force: %v, %v", err, k.Device(0))
	}
}

// A disk's link is not that of a partition of another disk, whatever its export is called.
func TestDeviceIsNotCalledLikeAPartition(t *testing.T) {
	alpha, beta, k := devicePair(t)
	beta.export("disk-part1", beta.image("part.img", 1<<20), false)
	attach := func(name string) error {
		_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk-part1", Device: true, Name: name}, nil)
		return err
	}
	says(t, attach(""), api.CodeInvalid, "beta-disk-part1", "--name")
	says(t, attach("other-part12"), api.CodeInvalid, "other-part12", "--name")
	if err := attach("part1"); err != nil || k.Device(0) == nil {
		t.Error(err)
	}
}

// A daemon is ready when the devices are there that its earlier life has left, whose I/O has
// waited, and those that a boot has taken away.
func TestDevicesAreThereWhenTheDaemonIsReady(t *testing.T) {
	alpha, _, k := devicePair(t)
	if _, err := alpha.attachDevice(""); err != nil {
		t.Fatal(err)
	}
	alpha.stop()
	written := make(chan error, 1)
	go func() {
		_, err := k.Device(0).Do(cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
		written <- err
	}()
	alpha.start()
	if at := alpha.status().Attachments[0]; at.Device == "" || at.State != api.AttachReady {
		t.Errorf("after a restart: %+v", at)
	}
	if err := <-written; err != nil {
		t.Errorf("the write that waited: %v", err)
	}
	alpha.stop()
	k.End(0)
	alpha.start()
	if at := alpha.status().Attachments[0]; at.Device == "" || k.Device(0) == nil {
		t.Errorf("after a boot: %+v", at)
	}
	if got, err := k.Device(0).Do(cmdRead, 0, 512, nil); err != nil || got[0] != 1 {
		t.Errorf("read back: %v", err)
	}
}

// A device that an earlier life has left ends with its disk, also when the disk is not
// there.
func TestDetachEndsADeviceWhoseDiskIsAway(t *testing.T) {
	alpha, beta, k := devicePair(t)
	if _, err := alpha.attachDevice(""); err != nil {
		t.Fatal(err)
	}
	alpha.stop()
	beta.stop()
	alpha.api = api.NewClient(filepath.Join(alpha.dir, "run", "ironwarp.sock"))
	// Who answers waits for nothing but the device; before, there is no daemon if the context ends.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := alpha.api.Status(ctx); err == nil || ctx.Err() != nil {
				return
			}
		}
	}()
	d, err := Start(ctx, alpha.options())
	if err != nil {
		t.Fatal(err)
	}
	alpha.d = d
	if k.Device(0) == nil {
		t.Error("the device has not waited")
	}
	if err := alpha.api.Detach(t.Context(), "beta", "disk", false); err != nil || k.Device(0) != nil {
		t.Errorf("detached: %v, %v", err, k.Device(0))
	}
}

// The kernel sees that a disk has grown, while it is in use.
func TestDeviceGrowsWithItsDisk(t *testing.T) {
	alpha, beta, k := devicePair(t)
	if _, err := alpha.attachDevice(""); err != nil {
		t.Fatal(err)
	}
	beta.stop()
	if err := os.Truncate(filepath.Join(beta.dir, "disk.img"), 2<<20); err != nil {
		t.Fatal(err)
	}
	beta.start()
	eventually(t, "the kernel is told", func() bool {
		return slices.ContainsFunc(k.Commands(), func(c devicetest.Command) bool { return c.Cmd == 3 && c.Size == 2<<20 })
	})
	if _, err := k.Device(0).Do(cmdWrite, 2<<20-512, 512, make([]byte, 512)); err != nil {
		t.Errorf("a write at the new end: %v", err)
	}
}

// A peer that is removed takes its devices along; one that changes has them back.
func TestDeviceFollowsItsPeer(t *testing.T) {
	alpha, beta, k := devicePair(t)
	if _, err := alpha.attachDevice(""); err != nil {
		t.Fatal(err)
	}
	d := k.Device(0)
	for _, port := range []uint16{iwarptest.FreePort(t), beta.port} {
		if _, err := alpha.api.SetPeer(t.Context(), api.PeerChange{PeerSpec: api.PeerSpec{Name: "beta", Port: port}, Set: []string{"port"}}); err != nil {
			t.Fatal(err)
		}
		if k.Device(0) != d {
			t.Fatal("its peer's change has ended it")
		}
	}
	if _, err := d.Do(cmdWrite, 0, 512, make([]byte, 512)); err != nil {
		t.Errorf("a write while its peer changes: %v", err)
	}
	if _, err := alpha.api.RemovePeer(t.Context(), "beta", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the device ends", func() bool { return k.Device(0) == nil })
}

// What the kernel had requested of a disk does not reach another one that is attached under
// the name of its device.
func TestDeviceIsNotTakenOverForAnotherDisk(t *testing.T) {
	alpha, beta, k := devicePair(t)
	if _, err := alpha.attachDevice(""); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(alpha.dir, "peers.d/beta.yaml")
	declared, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := k.Device(0)
	k.Mount(0, true)
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.9\nport: %d\nprotection: loopback\n", beta.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	alpha.orphan("attached from the peer with the identity")
	other := newHost(t, "")
	if _, err := other.api.AddPeer(t.Context(), api.PeerSpec{Name: "alpha", Address: "127.0.0.1", LocalAddress: "127.0.0.9", Port: alpha.port, Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	image := other.image("other.img", 1<<20)
	other.export("disk", image, false)
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.9\nport: %d\nprotection: loopback\n", other.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := d.Do(cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
		written <- err
	}()
	if at, err := alpha.attachDevice(""); err == nil || k.Device(0) != d {
		t.Errorf("the device is that of another disk now: %+v, %v", at, err)
	}
	_, err = alpha.attachDevice("other")
	says(t, err, api.CodeInUse, "attached already, as the device beta-disk", "ironwarp detach beta/disk")
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err == nil {
		t.Error("what was requested of the other disk was carried out")
	}
	alpha.write("peers.d/beta.yaml", string(declared))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}

	// A daemon that has lost its state knows nothing of a device, which is the second: the
	// first one is still mounted.
	if _, err := alpha.attachDevice(""); err != nil {
		t.Fatal(err)
	}
	left := k.Device(1)
	alpha.stop()
	if err := os.Remove(filepath.Join(alpha.dir, "state/attachments.json")); err != nil {
		t.Fatal(err)
	}
	alpha.start()
	k.Mount(1, true)
	_, err = alpha.attachDevice("")
	says(t, err, api.CodeInUse, "nbd1 is in use")
	if k.Device(1) != left {
		t.Error("a device in use has ended")
	}
	k.Mount(1, false)
	if _, err := alpha.attachDevice(""); err != nil || k.Device(1) == left {
		t.Errorf("%v, it has the device of before: %t", err, k.Device(1) == left)
	}
}
