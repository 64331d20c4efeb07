package driver

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// A plugin that answers is live, and ready while its daemon answers. Without a plugin it is neither.
func TestProbe(t *testing.T) {
	d, dir := newDouble(), shortDir(t)
	endpoint := serve(t, dir, d, Config{Version: "test", Controller: true, Hosts: []Host{{Name: "store"}}})
	for _, c := range []struct {
		endpoint, what string
		daemon         error
		want           string
	}{
		{endpoint, ProbeLive, nil, ""},
		{endpoint, ProbeReady, nil, ""},
		{strings.TrimPrefix(endpoint, "unix://"), ProbeReady, nil, ""},
		{endpoint, ProbeLive, errors.New("gone"), ""},
		{endpoint, ProbeReady, errors.New("gone"), "the daemon of the plugin"},
		{"unix://" + filepath.Join(dir, "other.sock"), ProbeLive, nil, "does not answer"},
		{"unix://" + filepath.Join(dir, "other.sock"), ProbeReady, nil, "does not answer"},
		{endpoint, "well", nil, "live or ready"},
	} {
		d.mu.Lock()
		d.fail["Info"] = c.daemon
		d.mu.Unlock()
		err := Ask(t.Context(), c.endpoint, c.what)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s, daemon %v: %v", c.endpoint, c.what, c.daemon, err)
		}
	}
}
