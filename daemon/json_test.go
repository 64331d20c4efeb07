package daemon

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// What programs read has no null and no year 1, whether the daemon has something or not.
func TestAnswersHaveListsAndNoUnknownTimes(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	alpha.attach("disk")
	beta.export("gone", beta.image("gone.img", 1<<20), false)
	for _, h := range []*host{newHost(t, ""), alpha, beta} {
		c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.dir, "run", "ironwarp.sock"))
		}}}
		defer c.CloseIdleConnections()
		for _, path := range []string{"info", "status", "peers", "exports", "attachments", "ulps", "audit", "resources", "streams", "blocks", "sas", "ike"} {
			resp, err := c.Get("http://ironwarp/v1/" + path)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if text := string(data); err != nil || resp.StatusCode != http.StatusOK || strings.Contains(text, "null") || strings.Contains(text, "0001-01-01") {
				t.Errorf("%s: %s %s %v", path, resp.Status, text, err)
			}
		}
	}
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	beta.stop()
	alpha.stop()
	alpha.start()
	if at := alpha.status().Attachments[0]; at.State != api.AttachConnecting || at.Size != 0 {
		t.Errorf("%+v", at)
	}
}
