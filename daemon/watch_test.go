package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// TestWatchOfSAsMayBeginBeforeThereAreAny: a watcher needs no strongSwan and
// makes none to be looked for; it ends with its caller and with the daemon.
func TestWatchOfSAsMayBeginBeforeThereAreAny(t *testing.T) {
	h := newHost(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, ended := make(chan api.SAEvent, 16), make(chan error, 1)
	go func() { ended <- h.api.WatchSAs(ctx, "", func(ev api.SAEvent) { events <- ev }) }()
	if h.d.sas.Current() != nil || h.status().IKE != nil {
		t.Error("a watcher alone has the daemon look for strongSwan")
	}
	if _, err := h.d.sas.Manager(t.Context(), config.IPsec{VICI: "unix://" + h.dir + "/none", DataPlane: "auto"}); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the caller's end: %v", err)
		}
	case <-time.After(waitTime):
		t.Fatal("it does not end with its caller")
	}

	go func() { ended <- h.api.WatchSAs(t.Context(), "", func(api.SAEvent) {}) }()
	h.stop()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the daemon ended and the watcher did not notice")
		}
	case <-time.After(waitTime):
		t.Fatal("it does not end with the daemon")
	}
	says(t, h.watchOf("nobody"), api.CodeUnavailable, "no daemon")
	h.start()
	says(t, h.watchOf("nobody"), api.CodeNotFound, `unknown peer "nobody"`)
}

func (h *host) watchOf(peer string) error {
	return h.api.WatchSAs(h.t.Context(), peer, nil)
}
