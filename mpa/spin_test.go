package mpa

import (
	"fmt"
	"testing"
	"time"
)

func TestSegmentsArriveAtASpinningReceiver(t *testing.T) {
	// Some are there before the spinning ends, some after.
	for _, spin := range []time.Duration{time.Nanosecond, 20 * time.Millisecond} {
		for _, kind := range []string{"tcp", "pipe"} {
			for _, direct := range []int{0, 1 << 20} {
				t.Run(fmt.Sprintf("%v/%s/direct=%d", spin, kind, direct), func(t *testing.T) {
					crc := CRCPrefer
					if direct > 0 {
						crc = CRCAvoid
					}
					cfg := &Config{CRC: crc, Spin: spin, Pool: &Pool{}}
					a, b := connect(t, kind, cfg, cfg)
					exchangeSegments(t, a, b, direct)
					exchangeSegments(t, b, a, direct)
				})
			}
		}
	}
}
