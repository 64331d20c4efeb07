package verbs

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/mpa"
)

func BenchmarkWrite(b *testing.B) {
	for _, m := range []struct {
		name string
		cfg  mpa.Config
	}{
		{"large crc", mpa.Config{LargeFPDU: mpa.MaxLargeFPDU}},
		{"large nocrc", mpa.Config{LargeFPDU: mpa.MaxLargeFPDU, CRC: mpa.CRCAvoid}},
		{"1460 crc", mpa.Config{EMSS: func() int { return 1460 }}},
	} {
		for _, size := range []int{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", m.name, size), func(b *testing.B) {
				x, y := newEnd(b, Config{}), newEnd(b, Config{})
				tcpPair(m.cfg, m.cfg)(b, x, y)
				src, dst := x.mr(size, 0), y.mr(size, LocalWrite|RemoteWrite)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				wr := SendWR{Op: OpWrite, Flags: Signaled, SGL: whole(src, size), RemoteSTag: dst.STag()}
				out := 0
				for range b.N {
					if out == 16 {
						x.wantOK(WCWrite)
						out--
					}
					x.post(wr)
					out++
				}
				// A Read behind the Writes shows that they have been placed.
				y2 := y.mr(8, RemoteRead)
				x.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(x.mr(8, LocalWrite), 8), RemoteSTag: y2.STag()})
				for ; out > 0; out-- {
					x.wantOK(WCWrite)
				}
				x.wantOK(WCRead)
			})
		}
	}
}
