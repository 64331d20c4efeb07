package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/hangs"
	"github.com/ironwarp/ironwarp/vhost/vhosttest"
)

// A guest's requests reach a peer's disk through a vhost-user socket, and go on after a restart
// of the daemon, at the same socket and without its guest's doing. Nobody else has the disk
// meanwhile, and only root has its socket.
func TestGuestOnAPeersDisk(t *testing.T) {
	alpha, _, image := pair(t, 8<<20)
	attach := func(req api.AttachRequest) (at api.Attachment, err error) {
		req.Peer, req.Export = "beta", "disk"
		return alpha.api.Attach(t.Context(), req, nil)
	}
	path := filepath.Join(alpha.dir, "guest.sock")
	var at api.Attachment
	alpha.unlessLate("attached", func() (err error) {
		at, err = attach(api.AttachRequest{VhostUser: true, VhostSocket: path})
		return err
	})
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || at.VhostSocket != path || at.Socket != "" {
		t.Fatalf("%+v: %v, %v", at, st, err)
	}
	f, err := vhosttest.New(vhosttest.Options{Features: vhosttest.FeatureEventIndex | vhosttest.FeatureFlush})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Connect(path); err != nil {
		t.Fatal(err)
	}
	q := f.Queues[0]
	do := func(typ uint32, sector uint64, data []byte) {
		t.Helper()
		if result, err := q.Do(typ, sector, data); err != nil || result != vhosttest.OK {
			t.Fatalf("request %d: result %d, %v", typ, result, err)
		}
	}
	content := bytes.Repeat([]byte("guest "), 300<<10)[:1<<20]
	do(vhosttest.Out, 8, content)
	_, err = attach(api.AttachRequest{})
	says(t, err, api.CodeInUse, "attached already", path)
	says(t, alpha.api.Detach(t.Context(), "beta", "disk", false), api.CodeInUse, "in use")

	// What the guest asks for while the daemon is away waits for it.
	alpha.stop()
	late := &vhosttest.Request{Typ: vhosttest.Out, Sector: 4096, Data: content[:512]}
	q.Post(late)
	if err := q.Announce(); err != nil {
		t.Fatal(err)
	}
	alpha.start()
	eventually(t, "the guest is connected again", func() bool { return f.Connect(path) == nil })
	if err := q.Wait(30*time.Second, late); err != nil || late.Status != vhosttest.OK {
		t.Fatalf("result %d, %v", late.Status, err)
	}
	got := make([]byte, len(content))
	do(vhosttest.In, 8, got)
	if !bytes.Equal(got, content) {
		t.Error("the guest reads other data after the daemon's restart")
	}
	do(vhosttest.Flush, 0, nil)
	disk, err := os.ReadFile(image)
	if err != nil || !bytes.Equal(disk[4096:][:len(content)], content) || !bytes.Equal(disk[4096*512:][:512], content[:512]) {
		t.Errorf("the peer's file has other data: %v", err)
	}
	if list, err := alpha.api.Attachments(t.Context()); err != nil || len(list) != 1 || list[0].Clients != 1 || list[0].IO.Writes == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is there after its disk was detached")
	}

	// What it had begun is not carried out after that.
	if _, err := attach(api.AttachRequest{VhostUser: true, VhostSocket: path}); err != nil {
		t.Fatal(err)
	}
	if err := f.Connect(path); !errors.Is(err, vhosttest.ErrRefused) {
		t.Errorf("a guest of the time before: %v", err)
	}
}

// A socket is one disk's, also while that cannot come back yet: otherwise its guest would write
// to another disk.
func TestSocketOfADiskThatIsAwayIsNotAnothers(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	path := filepath.Join(alpha.dir, "guest.sock")
	attach := func(export string) error {
		_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: export, VhostUser: true, VhostSocket: path}, nil)
		return err
	}
	alpha.unlessLate("attached", func() error { return attach("disk") })
	says(t, attach("other"), api.CodeInUse, path+" is the socket of beta/disk", "--vhost-socket")
	beta.stop()
	alpha.stop()
	alpha.start()
	says(t, attach("other"), api.CodeInUse, path+" is the socket of beta/disk", "--vhost-socket")
}

// A monitor that passes what takes for ever to close keeps neither a detach nor the daemon's
// end waiting.
func TestDescriptorThatIsNotClosed(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	path := filepath.Join(alpha.dir, "guest.sock")
	attach := func() {
		t.Helper()
		alpha.unlessLate("attached", func() error {
			_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk", VhostUser: true, VhostSocket: path}, nil)
			return err
		})
		f, err := vhosttest.New(vhosttest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		fd := hangs.Descriptor(t)
		// The daemon's is the last: it has it before it has all of the message.
		if err := errors.Join(f.Connect(path), f.SendRaw(vhosttest.Header(vhosttest.SetVringCall, 0, 8), fd), unix.Close(fd), f.SendRaw(make([]byte, 8))); err != nil {
			t.Fatal(err)
		}
	}
	attach()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := alpha.api.Detach(ctx, "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	attach()
	alpha.stop()
}
