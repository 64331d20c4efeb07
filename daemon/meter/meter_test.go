package meter

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func TestRatesCoverTheLastLooks(t *testing.T) {
	var m Meter
	var io api.IO
	m.Rates(&io)
	if io != (api.IO{}) {
		t.Errorf("rates of nothing: %+v", io)
	}
	at := time.Unix(1000, 0)
	for i := range uint64(10) {
		// Ten looks, two seconds apart; only the last four count: idle before.
		n := max(i, 6) - 6
		m.Sample(at.Add(time.Duration(i)*2*time.Second), api.IO{Reads: 10 * n, Writes: 2 * n, ReadBytes: 4096 * n, WriteBytes: 512 * n})
	}
	m.Rates(&io)
	want := api.IO{ReadsPerSec: 5, WritesPerSec: 1, ReadBytesSec: 2048, WriteBytesSec: 256}
	if io != want {
		t.Errorf("\n got %+v\nwant %+v", io, want)
	}
}
