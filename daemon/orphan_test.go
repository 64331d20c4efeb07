package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// orphan waits until the host's only disk stays down, with words.
func (h *host) orphan(words ...string) {
	h.t.Helper()
	eventually(h.t, "the disk is an orphan", func() bool {
		at := h.status().Attachments
		return len(at) == 1 && at[0].State == api.AttachOrphaned
	})
	at := h.status().Attachments[0]
	says(h.t, at.Problem, at.Problem.Code, words...)
	eventually(h.t, "it has no socket", func() bool {
		_, err := os.Lstat(filepath.Join(h.dir, "run/nbd/beta-disk.sock"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

func (h *host) isReady(disk string) func() bool {
	return func() bool {
		at := h.status().Attachments
		return len(at) == 1 && at[0].Name() == disk && at[0].State == api.AttachReady
	}
}

// TestDiskOfAPeerThatAReloadRemovesIsForgotten: it does not come back with the next
// start, nor with a peer of that name.
func TestDiskOfAPeerThatAReloadRemovesIsForgotten(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	alpha.attach("disk")
	file := filepath.Join(alpha.dir, "peers.d/beta.yaml")
	declared, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r, err := alpha.api.Reload(t.Context())
	if err != nil || fmt.Sprint(r.Changed) != "[beta/disk detached, since its peer is removed peer beta removed]" {
		t.Errorf("%+v, %v", r, err)
	}
	alpha.stop()
	alpha.write("peers.d/beta.yaml", string(declared))
	alpha.start()
	if at := alpha.status().Attachments; len(at) != 0 {
		t.Errorf("a ghost: %+v", at)
	}
}

// TestDiskIsNotAttachedFromAnotherPeerOfTheName: a remembered disk belongs to the peer
// that it was attached from, by its identity. It stays down while that one is not
// there, comes back with it, and is another peer's only if somebody says so.
func TestDiskIsNotAttachedFromAnotherPeerOfTheName(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	alpha.attach("disk")
	alpha.stop()
	file := filepath.Join(alpha.dir, "peers.d/beta.yaml")
	declared, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	alpha.start()
	alpha.orphan("beta/disk stays down: peer beta is not configured any more", "ironwarp detach beta/disk")

	alpha.write("peers.d/beta.yaml", string(declared))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it comes back with its peer", alpha.isReady("beta/disk"))
	ok(t, alpha.nbd("disk"), cmdRead, 0, 512, nil)

	// Another host takes the name, while the daemon runs and while it does not.
	other := newHost(t, "")
	if _, err := other.api.AddPeer(t.Context(), api.PeerSpec{Name: "alpha", Address: "127.0.0.1", LocalAddress: "127.0.0.9", Port: alpha.port, Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.9\nport: %d\nprotection: loopback\n", other.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	words := []string{"attached from the peer with the identity loopback:127.0.0.1, and beta is loopback:127.0.0.9 now", "ironwarp attach beta/disk"}
	alpha.orphan(words...)
	if _, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil); err == nil {
		t.Error("a disk is attached that its peer does not offer")
	}
	alpha.orphan(words...) // what could not be attached in its place has not taken it
	other.export("disk", other.image("other.img", 1<<20), false)
	alpha.stop()
	alpha.start()
	alpha.orphan(words...)
	if e := other.status().Exports[0]; e.Opens != 0 {
		t.Errorf("the other peer's disk is open: %+v", e)
	}
	alpha.attach("disk")
	eventually(t, "it is attached on demand", alpha.isReady("beta/disk"))
	alpha.stop()
	alpha.start()
	eventually(t, "and remembered so", alpha.isReady("beta/disk"))
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Error(err)
	}
	_ = beta
}

// TestPeerThatMovesWhileItIsAsked: whoever waits for a peer at its old address waits no
// more, and the next session leads to the new one.
func TestPeerThatMovesWhileItIsAsked(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	// At the old address connections are taken and nothing is said.
	silent, err := net.Listen("tcp", fmt.Sprintf("127.0.0.5:%d", beta.port))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	asked := make(chan net.Conn)
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				close(asked)
				return
			}
			asked <- c
		}
	}()
	defer func() {
		silent.Close()
		for c := range asked {
			c.Close()
		}
	}()
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.5\nport: %d\nprotection: loopback\n", beta.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := alpha.api.Offers(t.Context(), "beta")
		ended <- err
	}()
	defer (<-asked).Close()
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.0.1\nport: %d\nprotection: loopback\n", beta.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(t, <-ended, api.CodeUnavailable, "peer beta has changed meanwhile")
	offers, err := alpha.api.Offers(t.Context(), "beta")
	if err != nil || len(offers) != 1 {
		t.Errorf("%v, %v", offers, err)
	}
	alpha.attach("disk")
	for _, s := range alpha.status().Streams {
		if strings.Contains(s.Flow, "127.0.0.5") {
			t.Errorf("a stream to the old address: %s", s.Flow)
		}
	}
}

// TestStartRemovesWhatKilledProcessesHaveLeft beside the files of the configuration and
// of the state.
func TestStartRemovesWhatKilledProcessesHaveLeft(t *testing.T) {
	h := newHost(t, "")
	h.stop()
	var left []string
	for _, dir := range []string{"", "peers.d", "exports.d", "secrets", "state", "state/disks"} {
		name := filepath.Join(dir, ".new-2147483647-1") // no process has that number
		h.write(name, "secret")
		left = append(left, filepath.Join(h.dir, name))
	}
	h.start()
	for _, path := range left {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is there still", path)
		}
	}
}
