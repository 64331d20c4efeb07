package main

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func TestSAsOfBothPeersDoTheSame(t *testing.T) {
	sa := func(peer string, bits int) api.SA {
		return api.SA{Peer: peer, Encryption: "AES_GCM_16", KeyBits: bits, Mode: "tunnel"}
	}
	if err := sameESP([]api.SA{sa("a", 256), sa("b", 256), sa("a", 256), sa("c", 128)}, "a", "b"); err != nil {
		t.Error(err)
	}
	for name, sas := range map[string][]api.SA{
		"other keys":      {sa("a", 256), sa("b", 128)},
		"one peer's only": {sa("a", 256)},
		"none":            {sa("c", 256)},
		"some":            {sa("a", 256), sa("a", 128), sa("b", 256)},
	} {
		if sameESP(sas, "a", "b") == nil {
			t.Errorf("%s: they are the same", name)
		}
	}
}

func TestSilenceOfAPathIsRead(t *testing.T) {
	for problem, want := range map[string]time.Duration{
		"no heartbeat from the peer: connection 0 was silent for 600ms": 600 * time.Millisecond,
		"no heartbeat from the peer: connection 1 was silent for 1m30s": 90 * time.Second,
		"connection 1: flushed: connection lost while receiving":        0,
	} {
		if got := silence(problem); got != want {
			t.Errorf("%q: %v, want %v", problem, got, want)
		}
	}
}
