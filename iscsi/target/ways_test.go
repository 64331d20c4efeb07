package target_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// TestDataArriveOverEachWay: what is written is what is read, and in the file, in all sizes, whatever
// part of it comes with the command, and with residuals of both kinds.
func TestDataArriveOverEachWay(t *testing.T) {
	overEachWay(t, func(t *testing.T, w way) {
		s := w.serve(t, unit{size: 16 << 20})
		c := w.connect(t, s, 1, "MaxRecvDataSegmentLength=65536", "InitialR2T=No", "MaxOutstandingR2T=4", "MaxBurstLength=65536")
		c.ready()
		random := rand.NewChaCha8([32]byte{2})
		for _, blocks := range []uint16{1, 8, 15, 16, 17, 64, 255, 2048} {
			data := make([]byte, int(blocks)*512)
			for _, immediate := range []int{0, 512, 516, 8192} {
				if immediate > len(data) {
					continue
				}
				random.Read(data)
				in := make([]byte, len(data))
				lba := uint32(immediate)
				if r := c.good(cdb10(scsi.Write10, lba, blocks), immediate, data, nil); r.Underflow || r.Overflow {
					t.Errorf("%+v", r)
				}
				if r := c.good(cdb10(scsi.Read10, lba, blocks), 0, nil, in); r.Underflow || r.Overflow {
					t.Errorf("%+v", r)
				}
				if !bytes.Equal(in, data) {
					t.Fatalf("%d blocks, %d bytes of them with the command: what was written is not read", blocks, immediate)
				}
			}
		}
		in := bytes.Repeat([]byte{0xee}, 2000)
		if r := c.good(cdb10(scsi.Read10, 0, 3), 0, nil, in); !r.Underflow || r.Count != 2000-1536 {
			t.Errorf("%+v", r)
		}
		if !bytes.Equal(in[1536:], bytes.Repeat([]byte{0xee}, 2000-1536)) {
			t.Error("data beyond what was read")
		}
		if r := c.good(cdb10(scsi.Read10, 0, 8), 0, nil, in[:1000]); !r.Overflow || r.Count != 4096-1000 || in[1000] == 0xee && in[1001] == 0xee {
			t.Errorf("%+v", r)
		}
		content := make([]byte, 1<<20)
		random.Read(content)
		c.good(cdb10(scsi.Write10, 0, 2048), 0, content, nil)
		s.stop()
		if got, err := os.ReadFile(s.files[0]); err != nil || !bytes.Equal(got[:1<<20], content) {
			t.Errorf("the file is not what was written: %v", err)
		}
	})
}

// TestManyCommandsOverEachWay: a full window of commands of many sizes at once, on ranges of their own,
// again and again, and each brings what the last write of its range was.
func TestManyCommandsOverEachWay(t *testing.T) {
	overEachWay(t, func(t *testing.T, w way) {
		const ranges, most = 128, 256 // of 512 bytes
		s := w.serve(t, unit{size: ranges * most * 512})
		c := w.connect(t, s, 1, "MaxRecvDataSegmentLength=65536", "InitialR2T=No", "MaxOutstandingR2T=4")
		c.ready()
		random := rand.New(rand.NewPCG(1, 2))
		now := make([][]byte, ranges)
		for i := range now {
			now[i] = make([]byte, most*512)
		}
		for round := range 6 {
			type op struct {
				of    int
				write bool
				data  []byte
			}
			ops := map[uint32]op{}
			for i := range now {
				blocks := 1 + random.IntN(most)
				if random.IntN(3) > 0 {
					blocks = 1 + random.IntN(20)
				}
				o := op{i, random.IntN(2) == 0 || round == 0, make([]byte, blocks*512)}
				if o.write {
					for j := range o.data {
						o.data[j] = byte(random.Uint32())
					}
					immediate := min(random.IntN(3)*4096, len(o.data))
					ops[c.start(cdb10(scsi.Write10, uint32(i*most), uint16(blocks)), immediate, o.data, nil)] = o
				} else {
					ops[c.start(cdb10(scsi.Read10, uint32(i*most), uint16(blocks)), 0, nil, o.data)] = o
				}
			}
			for range ranges {
				r, sense := c.response()
				o, ok := ops[r.ITT]
				if delete(ops, r.ITT); !ok || r.Status != 0 {
					t.Fatalf("%+v %+v", r, sense)
				}
				if o.write {
					copy(now[o.of], o.data)
				} else if !bytes.Equal(o.data, now[o.of][:len(o.data)]) {
					t.Fatalf("round %d: range %d is not what was written there", round, o.of)
				}
			}
		}
	})
}

// TestControlOverEachWay: NOP, task management, sense data and logout.
func TestControlOverEachWay(t *testing.T) {
	overEachWay(t, func(t *testing.T, w way) {
		s := w.serve(t, unit{size: 1 << 20})
		c := w.connect(t, s, 1)
		c.ready()
		if r, sense := c.do(cdb10(scsi.Read10, 1<<30, 1), 0, nil, make([]byte, 512)); r.Status != 2 || sense.Key != scsi.IllegalRequest || !r.Underflow || r.Count != 512 {
			t.Errorf("%+v %+v", r, sense)
		}
		var h iscsi.BHS
		n := iscsi.NOP{Immediate: true, ITT: 500, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: c.statSN}
		n.PutOut(&h)
		c.w.control(&h, bytes.Repeat([]byte("ping"), 100))
		h, data := c.w.next()
		if n, err := iscsi.ParseNOPIn(&h); err != nil || n.ITT != 500 || !bytes.HasPrefix(bytes.Repeat([]byte("ping"), 100), data) || len(data) < 128 {
			t.Errorf("%+v %q %v", n, data, err)
		}
		if w.name[:3] != "TCP" && w.name[0] == 'R' && len(data) != 128 {
			t.Errorf("%d bytes to an initiator that has room for 128", len(data))
		}
		c.manage(iscsi.LogicalUnitReset, iscsi.NoTag, 0)
		if h, _ := c.w.next(); h.Opcode() != iscsi.OpTaskResp || iscsi.ParseTaskReply(&h).Response != iscsi.FunctionComplete {
			t.Errorf("%v", h.Opcode())
		}
		if r, sense := c.do([16]byte{}, 0, nil, nil); r.Status != 2 || sense.Code != scsi.BusDeviceReset {
			t.Errorf("%+v %+v", r, sense)
		}
		q := iscsi.Logout{Reason: iscsi.CloseSession, ITT: 600, CmdSN: c.cmdSN, ExpStatSN: c.statSN}
		q.Put(&h)
		c.w.control(&h, nil)
		if h, _ := c.w.next(); h.Opcode() != iscsi.OpLogoutResp || iscsi.ParseLogoutReply(&h).Response != iscsi.LogoutClosed {
			t.Errorf("%v", h.Opcode())
		}
		if h, _ := c.w.next(); h != (iscsi.BHS{}) {
			t.Errorf("%v after the logout", h.Opcode())
		}
	})
}

// TestReinstatementOverEachWay: a session takes the place of an earlier one by another way.
func TestReinstatementOverEachWay(t *testing.T) {
	s := ways[1].serve(t, unit{size: 1 << 20})
	var old *initiator
	for _, w := range ways[1:] {
		c := w.connect(t, s, 1)
		c.ready()
		if old != nil {
			if h, _ := old.w.next(); h != (iscsi.BHS{}) {
				t.Errorf("%s: the old session goes on: %v", w.name, h.Opcode())
			}
		}
		old = c
	}
}

// TestKeysOfISER: what is agreed in a login for RDMA (RFC 7145 section 6).
func TestKeysOfISER(t *testing.T) {
	for _, w := range ways[2:] {
		s := w.serve(t, unit{size: 1 << 20})
		c := w.connect(t, s, 1, "HeaderDigest=CRC32C", "InitiatorRecvDataSegmentLength=262144", "TargetRecvDataSegmentLength=8192",
			"FirstBurstLength=262144", "MaxOutstandingUnexpectedPDUs=7", "ImmediateData=Yes", "InitialR2T=No")
		unasked := []string{"ImmediateData=Yes", "InitialR2T=No", "FirstBurstLength=8192"}
		if w.name == withoutInvalidate { // as libiscsi, which would not send what it has announced
			unasked = []string{"ImmediateData=No", "InitialR2T=Yes", "FirstBurstLength=Irrelevant"}
		}
		for _, want := range append(unasked, "RDMAExtensions=Yes", "HeaderDigest=Irrelevant", "InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=8192", "MaxOutstandingUnexpectedPDUs=32") {
			if !strings.Contains("\x00"+string(c.text), "\x00"+want+"\x00") {
				t.Errorf("%s: no %s in %q", w.name, want, c.text)
			}
		}
		if strings.Contains(string(c.text), "MaxRecvDataSegmentLength") {
			t.Errorf("%s: %q", w.name, c.text)
		}
	}
}
