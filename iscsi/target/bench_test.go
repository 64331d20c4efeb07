package target_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"runtime"
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// BenchmarkRead reads 4 KiB at depth 32 over loopback.
func BenchmarkRead(b *testing.B) { benchmarkRead(b) }

// BenchmarkReadRecovering is BenchmarkRead while answers and data are kept until they are acknowledged.
func BenchmarkReadRecovering(b *testing.B) { benchmarkRead(b, "ErrorRecoveryLevel=1") }

func benchmarkRead(b *testing.B, keys ...string) {
	c := dial(b, serve(b, target.Config{}, nil, unit{size: 1 << 20}), 1, append(keys, "MaxRecvDataSegmentLength=65536")...)
	c.ready()
	const depth, size = 32, 4096
	var h iscsi.BHS
	k := iscsi.Command{Final: true, Read: true, EDTL: size, Attr: iscsi.Simple, CDB: [16]byte{scsi.Read10, 8: size / 512}}
	rd := bufio.NewReaderSize(c.nc, 1<<20)
	said := make([]byte, 0, depth*iscsi.BHSLen)
	got := make([]byte, iscsi.BHSLen+size)
	say := func() {
		k.ITT, k.CmdSN, k.ExpStatSN = c.cmdSN%depth, c.cmdSN, c.statSN
		binary.BigEndian.PutUint32(k.CDB[2:], c.cmdSN%256*8)
		k.Put(&h)
		said = append(said, h[:]...)
		c.cmdSN++
	}
	run := func(n int) {
		sent, over := 0, 0
		for over < n {
			for ; sent < n && sent-over < depth; sent++ {
				say()
			}
			if len(said) > 0 {
				c.nc.Write(said)
				said = said[:0]
			}
			for first := true; first || rd.Buffered() >= len(got); first = false {
				if _, err := io.ReadFull(rd, got); err != nil {
					b.Fatal(err)
				}
				copy(h[:], got)
				d, err := iscsi.ParseDataIn(&h)
				if err != nil || !d.HasStatus || h.DataLen() != size {
					b.Fatalf("%v: %v", h.Opcode(), err)
				}
				c.statSN = d.StatSN + 1
				over++
			}
		}
	}
	run(1000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.SetBytes(size)
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; b.N > 1000 && n > uint64(b.N/20) {
		b.Errorf("%d allocations for %d commands", n, b.N)
	}
}
