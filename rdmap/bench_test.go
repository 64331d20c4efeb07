package rdmap

import (
	"encoding/binary"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
)

// quiet is an Upper that does as little as one can.
type quiet struct {
	mem  []byte
	recv RecvBuffer
}

func (q *quiet) Unpin() {}
func (q *quiet) Acquire(_ uint32, to uint64, n uint32, _ Access) ([]byte, Pin, Fault) {
	return q.mem[to : to+uint64(n)], q, FaultNone
}
func (q *quiet) InvalidateRemote(uint32) Fault { return FaultNone }
func (q *quiet) NextRecv() *RecvBuffer         { return &q.recv }
func (q *quiet) Received(*RecvBuffer, Message) {}
func (q *quiet) Local(*Op) error               { return nil }
func (q *quiet) SendDone(*Op, error)           {}
func (q *quiet) Completions(bool)              {}
func (q *quiet) BatchEnd()                     {}
func (q *quiet) Slow(SlowPath) error           { return nil }
func (q *quiet) Ended(error)                   {}

func benchSink() *sink {
	q := &quiet{mem: make([]byte, 1<<16)}
	q.recv = RecvBuffer{Len: 1 << 16, SGL: [][]byte{q.mem}}
	return (*sink)(New(Config{Upper: q, MaxSend: 1, IRD: 1, ORD: 1}))
}

// What receiving a segment costs in order, without the LLP.
func BenchmarkSegment(b *testing.B) {
	write := append(ddp.AppendTagged(nil, true, Control(OpWrite), 1, 0), make([]byte, 64)...)
	send := append(ddp.AppendUntagged(nil, true, Control(OpSend), 0, 0, 1, 0), make([]byte, 64)...)
	for _, bc := range []struct {
		name string
		seg  []byte
	}{{"write", write}, {"send", send}} {
		b.Run(bc.name, func(b *testing.B) {
			k := benchSink()
			b.ReportAllocs()
			for i := range b.N {
				if !ddp.IsTagged(bc.seg) {
					binary.BigEndian.PutUint32(bc.seg[10:], uint32(i)+1)
				}
				if err := k.Segment(bc.seg); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(bc.name+" direct", func(b *testing.B) {
			k := benchSink()
			b.ReportAllocs()
			for i := range b.N {
				if !ddp.IsTagged(bc.seg) {
					binary.BigEndian.PutUint32(bc.seg[10:], uint32(i)+1)
				}
				n, ok, err := k.Direct(bc.seg[:ddp.MaxHeaderLen], len(bc.seg))
				if !ok || err != nil {
					b.Fatal(err)
				}
				buf, err := k.DirectBuffer()
				if err != nil {
					b.Fatal(err)
				}
				if err := k.DirectDone(copy(buf, bc.seg[n:])); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
