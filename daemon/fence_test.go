package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// A peer that was fenced gets EPERM for all that it does, whatever is restarted, until it
// attaches the disk anew.
func TestFencedPeerGetsEPERMUntilItAttachesAnew(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	f, err := beta.api.FenceExport(t.Context(), "disk", api.FenceRequest{Peer: "alpha"})
	if err != nil || f.Generation != 1 || len(f.Tokens) != 1 || f.Tokens[0].Name != "alpha" || f.Tokens[0].Identity == "" {
		t.Fatalf("%+v, %v", f, err)
	}
	if data, err := os.ReadFile(filepath.Join(beta.dir, "state", "writers.json")); err != nil || !bytes.Contains(data, []byte(f.Tokens[0].Attachment)) {
		t.Errorf("the fence is not written down: %s, %v", data, err)
	}
	refused := func(when string) {
		t.Helper()
		for cmd, payload := range map[uint16][]byte{cmdWrite: bytes.Repeat([]byte{9}, 512), cmdRead: nil} {
			if e, _ := do(t, c, cmd, 0, 512, payload); e != nbdEPERM {
				t.Errorf("%s: NBD command %d: error %d, want EPERM", when, cmd, e)
			}
		}
		if b, err := os.ReadFile(image); err != nil || b[0] != 1 {
			t.Errorf("%s: the file has %d: %v", when, b[0], err)
		}
	}
	refused("at once")
	eventually(t, "its state says why", func() bool {
		at := alpha.status().Attachments[0]
		return at.State == api.AttachFailed && at.Problem != nil
	})
	says(t, alpha.status().Attachments[0].Problem, api.CodeForbidden, "fenced this host", "ironwarp attach beta/disk")
	beta.stop()
	beta.start()
	refused("the exporting daemon was restarted")
	alpha.stop()
	alpha.start()
	eventually(t, "the disk is back", func() bool { return alpha.status().Attachments[0].State == api.AttachFailed })
	c = alpha.nbd("disk")
	refused("the attaching daemon was restarted")
	says(t, alpha.status().Attachments[0].Problem, api.CodeForbidden, "in generation 1")
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	c = alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
	if e := beta.status().Exports[0]; e.Generation != 1 {
		t.Errorf("%+v", e)
	}
	_, err = beta.api.FenceExport(t.Context(), "none", api.FenceRequest{Peer: "alpha"})
	says(t, err, api.CodeNotFound, "no export none")
	_, err = beta.api.FenceExport(t.Context(), "disk", api.FenceRequest{Peer: "gamma"})
	says(t, err, api.CodeNotFound, "no peer is called gamma")
	_, err = beta.api.FenceExport(t.Context(), "disk", api.FenceRequest{Peer: "alpha", TimeoutSeconds: -1})
	says(t, err, api.CodeInvalid)
	// By the identity, as of a peer that is not configured any more.
	if f, err = beta.api.FenceExport(t.Context(), "disk", api.FenceRequest{Peer: f.Tokens[0].Identity}); err != nil || f.Generation != 2 || len(f.Tokens) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}
