package sas

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/transport"
)

// Whoever is told that SAs are watched may do something to them at once, and sees what happens then.
func TestWatcherMissesNothingFromWhenHeIsTold(t *testing.T) {
	k := New(Config{Log: slog.New(slog.DiscardHandler), Owner: func(connection string) string { return connection }})
	m, err := ipsec.New(ipsec.Config{Socket: filepath.Join(t.TempDir(), "vici"), Logger: k.cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	k.m = m
	k.m = m
	close(k.made)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := ""
	_, err = k.Watch(ctx, api.SARequest{}, func(e api.Event) {
		switch {
		case e.Progress != "":
			f := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.MustParseAddrPort("192.0.2.1:7471"), Remote: netip.MustParseAddrPort("192.0.2.2:40000")}
			if _, err := m.Admit(ctx, f, false, nil); err == nil {
				t.Error("a flow of nobody is admitted")
			}
		case e.SA != nil:
			seen = e.SA.Kind
			cancel()
		}
	})
	if seen != string(ipsec.EventFlowRefused) {
		t.Errorf("he has seen %q: %v", seen, err)
	}
}
