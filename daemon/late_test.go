package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// TestKilledClientsWritesDoNotComeLate: the peer is away, a client asks for writes and is
// killed, another writes one of the blocks again. What the first one asked for never
// reaches the disk.
func TestKilledClientsWritesDoNotComeLate(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	first := alpha.attach("disk")
	ok(t, first, cmdRead, 0, 512, nil)
	beta.stop()
	// What is sent on a path that is being lost may be carried out, and is waited for.
	eventually(t, "the path is lost", func() bool { return alpha.status().Attachments[0].State == api.AttachWaiting })
	for i := range uint64(8) {
		if err := first.Send(0, cmdWrite, i, i*4096, 4096, bytes.Repeat([]byte{1}, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the writes wait", func() bool { return alpha.status().Attachments[0].OldestIOSeconds > 0 })
	first.Close()
	second := alpha.nbd("disk")
	result := make(chan uint32, 1)
	go func() {
		r, err := second.Do(0, cmdWrite, 0, 4096, bytes.Repeat([]byte{2}, 4096))
		if err != nil {
			t.Error(err)
			r = &nbdtest.Reply{}
		}
		result <- r.Error
	}()
	eventually(t, "the first client is gone and the second waits", func() bool {
		at := alpha.status().Attachments[0]
		return at.Clients == 1 && at.OldestIOSeconds > 0
	})
	beta.start()
	if e := <-result; e != 0 {
		t.Errorf("the second client's write: error %d", e)
	}
	ok(t, second, cmdFlush, 0, 0, nil)
	want := append(bytes.Repeat([]byte{2}, 4096), make([]byte, 7*4096)...)
	if got := ok(t, second, cmdRead, 0, 8*4096, nil); !bytes.Equal(got, want) {
		t.Errorf("the first block has %d, the second %d, want 2 and 0", got[0], got[4096])
	}
	if data, err := os.ReadFile(image); err != nil || !bytes.Equal(data[:8*4096], want) {
		t.Errorf("the exported file has something else: %v", err)
	}
}

// TestDetachedDisksWritesGoNowhere: not to that disk, nor to the next one.
func TestDetachedDisksWritesGoNowhere(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	other := beta.image("other.img", 1<<20)
	beta.export("other", other, false)
	c, keep := alpha.attach("disk"), alpha.attach("other")
	ok(t, keep, cmdRead, 0, 512, nil)
	beta.stop()
	if err := c.Send(0, cmdWrite, 1, 0, 4096, bytes.Repeat([]byte{1}, 4096)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the write waits", func() bool {
		for _, at := range alpha.status().Attachments {
			if at.Export == "disk" {
				return at.OldestIOSeconds > 0
			}
		}
		return false
	})
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	beta.start()
	ok(t, keep, cmdWrite, 8192, 512, make([]byte, 512))
	again := alpha.attach("disk")
	for name, c := range map[string]*nbdtest.Client{"disk": again, "other": keep} {
		if got := ok(t, c, cmdRead, 0, 4096, nil); !bytes.Equal(got, make([]byte, 4096)) {
			t.Errorf("disk %s has the write of the detached disk", name)
		}
	}
	for _, path := range []string{image, other} {
		if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data[:4096], make([]byte, 4096)) {
			t.Errorf("%s has the write of the detached disk: %v", filepath.Base(path), err)
		}
	}
}

// TestStuckClientLeavesTheOthersAlone: on its own disk, and on the others of its peer.
func TestStuckClientLeavesTheOthersAlone(t *testing.T) {
	alpha, beta, _ := pair(t, 40<<20)
	beta.export("other", beta.image("other.img", 1<<20), false)
	stuck, other := alpha.attach("disk"), alpha.attach("other")
	for range 4 { // a session has permits for 32 MiB
		c := alpha.nbd("disk")
		if _, err := c.Write(nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 0, 32<<20, []byte{1})); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(32) { // and this asks for as much, and reads nothing
		if err := stuck.Send(0, cmdRead, i, i<<20, 1<<20, nil); err != nil {
			t.Fatal(err)
		}
	}
	data := bytes.Repeat([]byte{7}, 256<<10)
	for _, c := range []*nbdtest.Client{other, alpha.nbd("disk")} {
		ok(t, c, cmdWrite, 0, uint32(len(data)), data)
		if got := ok(t, c, cmdRead, 0, uint32(len(data)), nil); !bytes.Equal(got, data) {
			t.Error("read back differs")
		}
	}
}
