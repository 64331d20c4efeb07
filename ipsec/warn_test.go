package ipsec

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

func TestDangerousSettingsAreLoggedLoudly(t *testing.T) {
	var log bytes.Buffer
	m, err := New(Config{Socket: "/nonexistent", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	quiet := padtest.Peer("beta", 2)
	m.warn(&quiet)
	if log.Len() != 0 {
		t.Errorf("the default profile warns: %s", log.String())
	}
	loud := padtest.Peer("gamma", 3)
	loud.Profile = padtest.Profile(t, "rfc3723-aggressive")
	m.warn(&loud)
	if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "AGGRESSIVE MODE") || !strings.Contains(s, "peer=gamma") {
		t.Errorf("aggressive mode: %s", s)
	}
	m.peers["beta"] = newPeer(m, quiet)
	defer delete(m.peers, "beta")
	log.Reset()
	again := padtest.Peer("beta2", 2)
	again.RemoteID, again.PSK = quiet.RemoteID, auth.GenerateSecret()
	m.warn(&again)
	if s := log.String(); !strings.Contains(s, "same identities") || strings.Contains(s, string(again.PSK.Reveal())) {
		t.Errorf("two keys for one identity: %s", s)
	}
}
