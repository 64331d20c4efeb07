package daemon

import (
	"context"
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/transport"
)

// withoutStrongSwan protects as another does, once strongSwan can be reached.
type withoutStrongSwan struct {
	transport.Protector
	tries chan struct{} // that fail; closed
}

func (w *withoutStrongSwan) Prepare(ctx context.Context, f transport.Flow) error {
	if _, ok := <-w.tries; ok {
		return fmt.Errorf("%w: the connection was closed", ipsec.ErrNotConnected)
	}
	return w.Protector.Prepare(ctx, f)
}

// loseStrongSwan has the next tries to reach beta fail for want of strongSwan.
func (h *host) loseStrongSwan(tries int) {
	h.t.Helper()
	p, err := h.d.findPeer("beta")
	if err != nil {
		h.t.Fatal(err)
	}
	w := &withoutStrongSwan{tries: make(chan struct{}, tries)}
	for range tries {
		w.tries <- struct{}{}
	}
	close(w.tries)
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Protector = p.protector
	p.protector = w
}

// Who attaches a disk waits while the connection to strongSwan is lost, which the daemon
// makes again, and is told so when it takes too long.
func TestAttachWaitsForStrongSwan(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	alpha.loseStrongSwan(2)
	if _, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := alpha.api.Detach(t.Context(), "beta", "disk", false); err != nil {
		t.Fatal(err)
	}
	alpha.loseStrongSwan(1000)
	_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk", TimeoutSeconds: 5}, nil)
	says(t, err, api.CodeUnavailable, "cannot attach beta/disk", "not connected to strongSwan", "ironwarp doctor")
}
