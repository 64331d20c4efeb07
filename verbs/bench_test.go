package verbs

import (
	"fmt"
	"testing"
)

func BenchmarkWrite(b *testing.B) {
	for _, m := range []struct {
		name string
		cfg  Setup
	}{
		{"large crc", Setup{LargeFPDU: MaxLargeFPDU}},
		{"large nocrc", Setup{LargeFPDU: MaxLargeFPDU, NoCRC: true}},
		{"1460 crc", Setup{EMSS: func() int { return 1460 }}},
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

// readLoop keeps Reads outstanding from the engine's goroutine.
type readLoop struct {
	wr   SendWR
	left int
	out  int
	done chan struct{}
}

func (r *readLoop) Completions(_ *CQ, wcs []WC) {
	for _, wc := range wcs {
		r.out--
		if r.left > 0 && wc.Err == nil {
			r.left--
			r.out++
			wc.QP.PostSend(&r.wr)
		}
	}
	wcs[0].QP.Flush()
	if r.out == 0 {
		close(r.done)
	}
}

func BenchmarkRead4K(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("depth %d", depth), func(b *testing.B) {
			x, y := newEnd(b, Config{}), newEnd(b, Config{})
			x.cfg.ORD, y.cfg.IRD = 64, 64
			h := &readLoop{done: make(chan struct{}), left: max(0, b.N-depth), out: depth}
			cq, err := x.ulp.CreateCQ(128, h)
			if err != nil {
				b.Fatal(err)
			}
			x.cfg.SendCQ = cq
			cfg := Setup{LargeFPDU: MaxLargeFPDU}
			tcpPair(cfg, cfg)(b, x, y)
			src, dst := y.mr(4096, RemoteRead), x.mr(4096, LocalWrite)
			h.wr = SendWR{Op: OpRead, Flags: Signaled | More, SGL: whole(dst, 4096), RemoteSTag: src.STag()}
			b.ReportAllocs()
			b.ResetTimer()
			for range depth {
				x.post(h.wr)
			}
			x.qp.Flush()
			<-h.done
		})
	}
}
