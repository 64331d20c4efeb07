package rdmap_test

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// summing is an LLP that sums payloads when it is given them and takes them
// when it sends, as MPA with CRC does. change is called in between.
type summing struct {
	*iwarptest.LLP
	change func()
	hdrs   [][]byte
	refs   [][][]byte
	sums   []uint32
	wrong  int
	taken  int
}

func (l *summing) CRC() bool { return true }

func (l *summing) Append(hdr []byte, sgl [][]byte) error {
	l.hdrs = append(l.hdrs, bytes.Clone(hdr))
	l.refs = append(l.refs, append([][]byte(nil), sgl...))
	l.sums = append(l.sums, crc32.ChecksumIEEE(bytes.Join(sgl, nil)))
	return nil
}

func (l *summing) TryFlush() (bool, error) {
	l.change()
	for i, hdr := range l.hdrs {
		payload := bytes.Join(l.refs[i], nil)
		if l.taken++; crc32.ChecksumIEEE(payload) != l.sums[i] {
			l.wrong++
		}
		l.LLP.Append(hdr, [][]byte{payload})
	}
	l.hdrs, l.refs, l.sums = nil, nil, nil
	return l.LLP.TryFlush()
}

// A peer may write what is being read, without a Fence (RFC 5040 section 5.5
// rule 12), or what another peer reads: it gets old bytes or new ones, and a
// checksum that is right. Memory that peers can't change is not copied.
func TestReadOfMemoryThatChanges(t *testing.T) {
	const n = 3 << 20 // more than one batch may hold in copies
	for _, tc := range []struct {
		name   string
		rights rdmap.Access
		wrong  bool
	}{
		{"writable", rdmap.RemoteRead | rdmap.RemoteWrite, false},
		{"read only: the owner keeps it as it is", rdmap.RemoteRead, true},
	} {
		for _, pool := range []*rdmap.StagePool{nil, {}} {
			raw, mem := iwarptest.Pair(iwarptest.Options{MULPDU: 60000})
			l := &summing{LLP: mem}
			p := openOn(t, rdmap.Config{MaxSend: 4, IRD: 4, Stage: pool}, raw, l, func(p *peer) {
				b := p.region(7, n, tc.rights)
				l.change = func() {
					for i := range b {
						b[i]++
					}
				}
			})
			p.raw.Send(untagged(true, rdmap.OpReadRequest, 1, 1, 0, rdmap.ReadRequest{Size: n, SourceSTag: 7}.Append(nil)...))
			for got := 0; got < n; {
				got += len(ddp.Tagged(p.wantOps(rdmap.OpReadResponse)[0]).Payload())
			}
			p.raw.Close()
			p.wantEnd()
			if (l.wrong > 0) != tc.wrong {
				t.Errorf("%s: %d of %d checksums are wrong", tc.name, l.wrong, l.taken)
			}
			if p.regions[7].pins != 0 {
				t.Errorf("%s: still pinned", tc.name)
			}
		}
	}
}

// The owner may change what it sends, too, if it says so: QEMU moves the memory of a guest that runs.
func TestSourceThatChanges(t *testing.T) {
	const n = 3 << 20
	for _, kind := range []rdmap.Opcode{rdmap.OpWrite, rdmap.OpSend} {
		for _, volatile := range []bool{true, false} {
			raw, mem := iwarptest.Pair(iwarptest.Options{MULPDU: 60000})
			l := &summing{LLP: mem}
			b := make([]byte, n)
			l.change = func() {
				for i := range b {
					b[i]++
				}
			}
			p := openOn(t, rdmap.Config{MaxSend: 4, MaxSGE: 3}, raw, l, nil)
			op := sgl(rdmap.Op{Kind: kind, ID: 1, Volatile: volatile}, b[:100], b[100:n/2], b[n/2:])
			go func() { p.post(op) }()
			for got := 0; got < n; {
				seg := p.wantOps(kind)[0]
				if kind == rdmap.OpSend {
					got += len(ddp.Untagged(seg).Payload())
				} else {
					got += len(ddp.Tagged(seg).Payload())
				}
			}
			p.want("done 1")
			raw.Close()
			p.wantEnd()
			if (l.wrong > 0) == volatile {
				t.Errorf("%v, volatile %v: %d of %d checksums are wrong", kind, volatile, l.wrong, l.taken)
			}
		}
	}
}
