package ipsec

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

func TestBlocksInTheKernel(t *testing.T) {
	err := nsdo.Fresh(func() error {
		have, err := readBlocks("")
		if err != nil || len(have) != 0 {
			t.Errorf("an empty namespace: %v, %v", have, err)
		}
		k4 := blockKey{netip.MustParseAddr("10.0.0.1"), 6, 7471}
		k6 := blockKey{netip.MustParseAddr("fd99::1"), 132, 7471}
		e := func(k blockKey, d time.Duration) blockEntry {
			return blockEntry{blockKey: k, peer: "alpha", why: "a: b", until: time.Now().Add(d)}
		}
		for _, d := range []time.Duration{time.Hour, time.Minute} {
			if err := writeBlocks("", []blockKey{k4, k6}, []blockEntry{e(k4, d), e(k6, d)}); err != nil {
				t.Error(err)
			}
			have, err = readBlocks("")
			t.Log(have, err)
			f, err := blockFaults("")
			t.Log(f, err)
		}
		return nil
	})
	if err != nil {
		t.Skip(err)
	}
}
