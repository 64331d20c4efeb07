package target_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// recovering is a session with digests that is recovered from errors within a connection.
func recovering(t testing.TB, cfg target.Config, keys ...string) (*served, *client) {
	t.Helper()
	s := serve(t, cfg, nil, unit{size: 64 << 20})
	return s, recoveringAt(t, s, keys...)
}

// recoveringAt is recovering at a server that there is.
func recoveringAt(t testing.TB, s *served, keys ...string) *client {
	t.Helper()
	c := dial(t, s, 1, append(keys, "ErrorRecoveryLevel=1", "HeaderDigest=CRC32C", "DataDigest=CRC32C", "MaxConnections=4")...)
	if c.agreed["ErrorRecoveryLevel"] != "1" {
		t.Fatalf("%q", c.agreed)
	}
	c.digests = true
	c.ready()
	return c
}

// pattern is n bytes that are not alike.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i>>5) + seed
	}
	return b
}

// rejected takes a Reject of a PDU.
func (c *client) rejected(why iscsi.Reason, o iscsi.Opcode) iscsi.Reject {
	c.t.Helper()
	h, data := c.receive()
	r := iscsi.ParseReject(&h)
	if h.Opcode() != iscsi.OpReject || r.Reason != why || len(data) != iscsi.BHSLen || (*iscsi.BHS)(data).Opcode() != o {
		c.t.Fatalf("%v: %+v, % x", h.Opcode(), r, data)
	}
	return r
}

// numbers returns those of a target's PDU.
func numbers(h *iscsi.BHS) iscsi.Numbers { return iscsi.ParseTaskReply(h).Numbers }

func (c *client) r2t() iscsi.R2T {
	c.t.Helper()
	h, _ := c.receive()
	r, err := iscsi.ParseR2T(&h)
	if h.Opcode() != iscsi.OpR2T || err != nil {
		c.t.Fatalf("%v: %v", h.Opcode(), err)
	}
	return r
}

// out sends a Data-Out, damaged or not.
func (c *client) out(d iscsi.DataOut, data []byte, damaged bool) {
	d.ExpStatSN = c.statSN
	var h iscsi.BHS
	d.Put(&h)
	c.spoil = damaged
	c.send(&h, data)
	c.spoil = false
}

func (c *client) snack(s iscsi.SNACK) {
	s.ExpStatSN = c.statSN
	var h iscsi.BHS
	s.Put(&h)
	c.send(&h, nil)
}

// read reads blocks from the beginning on.
func (c *client) read(itt uint32, blocks byte) []byte {
	c.t.Helper()
	c.command(iscsi.Command{Final: true, Read: true, ITT: itt, EDTL: uint32(blocks) * 512, CDB: [16]byte{scsi.Read10, 8: blocks}}, nil)
	var got []byte
	for {
		h, data := c.receive()
		d, err := iscsi.ParseDataIn(&h)
		if h.Opcode() != iscsi.OpDataIn || err != nil || d.ITT != itt || int(d.Offset) != len(got) {
			c.t.Fatalf("%v: %v %+v", h.Opcode(), err, d)
		}
		if got = append(got, data...); d.HasStatus {
			return got
		}
	}
}

// TestDamagedDataOut: what is damaged is rejected, and asked for again by a Recovery-R2T with the next R2TSN, from
// the first byte that is missing on (RFC 7143 sections 7.8, 7.9 and 11.8), whichever of them it is.
func TestDamagedDataOut(t *testing.T) {
	_, c := recovering(t, target.Config{})
	for damaged := range 4 {
		data := pattern(4*512, byte(damaged))
		c.command(write10(5, 4), nil)
		r := c.r2t()
		for i := range 4 {
			c.out(iscsi.DataOut{Final: i == 3, ITT: 5, TTT: r.TTT, DataSN: uint32(i), Offset: uint32(i) * 512}, data[i*512:][:512], i == damaged)
		}
		c.rejected(iscsi.RejectDataDigest, iscsi.OpDataOut)
		again := c.r2t()
		from := uint32(damaged) * 512
		if again.R2TSN != 1 || again.TTT == r.TTT || again.ITT != 5 || again.Offset != from || again.Length != 2048-from {
			t.Fatalf("%d: %+v after %+v", damaged, again, r)
		}
		c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT, Offset: from}, pattern(int(again.Length), 99), false) // in answer to the first: dropped
		c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: again.TTT, Offset: from}, data[from:], false)
		c.good(5)
		if !bytes.Equal(c.read(6, 4), data) {
			t.Errorf("%d: other data were written", damaged)
		}
	}
}

// TestDamagedUnsolicitedData: what is missing of them is asked for (section 7.8).
func TestDamagedUnsolicitedData(t *testing.T) {
	_, c := recovering(t, target.Config{}, "InitialR2T=No", "FirstBurstLength=2048")
	for damaged := range 3 {
		data := pattern(5*512, byte(damaged))
		k := write10(5, 5)
		k.Final = false
		c.command(k, data[:512])
		for i := range 3 {
			c.out(iscsi.DataOut{Final: i == 2, ITT: 5, TTT: iscsi.NoTag, DataSN: uint32(i), Offset: uint32(i+1) * 512}, data[(i+1)*512:][:512], i == damaged)
		}
		c.rejected(iscsi.RejectDataDigest, iscsi.OpDataOut)
		r := c.r2t()
		from := uint32(damaged+1) * 512
		if r.R2TSN != 0 || r.Offset != from || r.Length != 5*512-from {
			t.Fatalf("%d: %+v", damaged, r)
		}
		c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT, Offset: from}, data[from:], false)
		c.good(5)
		if !bytes.Equal(c.read(6, 5), data) {
			t.Errorf("%d: other data were written", damaged)
		}
	}
}

// TestDamagedAgainAndAgain: a command of which data are damaged without end fails at last (sections 7.8 b and 11.4.7.2).
func TestDamagedAgainAndAgain(t *testing.T) {
	_, c := recovering(t, target.Config{})
	c.command(write10(5, 1), nil)
	for n := 0; ; {
		h, data := c.receive()
		if h.Opcode() == iscsi.OpReject {
			continue
		}
		if h.Opcode() == iscsi.OpResponse {
			b, _ := iscsi.ParseSense(data)
			if s, _ := scsi.ParseSense(b); s.Key != scsi.AbortedCommand || s.Code != scsi.ProtocolServiceCRC || n != 17 {
				t.Errorf("after %d R2Ts: %+v", n, s)
			}
			return
		}
		r, _ := iscsi.ParseR2T(&h)
		n++
		c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT}, make([]byte, 512), true)
	}
}

// TestDamagedCommand: a command with damaged data has not come. Those behind it wait until it is retried, or its
// CmdSN is used by something else; retrying what has come does nothing (sections 7.2.1, 7.3 and 7.8).
func TestDamagedCommand(t *testing.T) {
	_, c := recovering(t, target.Config{})
	sn := c.cmdSN
	data := pattern(512, 7)
	c.spoil = true
	c.command(write10(5, 1), data)
	c.spoil = false
	c.test(6, sn+1)
	if r := c.rejected(iscsi.RejectDataDigest, iscsi.OpCommand); r.ExpCmdSN != sn {
		t.Errorf("%+v: the command counts as received", r)
	}
	if n := c.pings(); n != 1 {
		t.Errorf("%d answers while a command is missing", n)
	}
	for range 2 {
		c.cmdSN = sn
		c.command(write10(5, 1), data)
	}
	c.good(5)
	c.good(6)
	if c.cmdSN = sn + 2; c.pings() != 1 {
		t.Error("a command that was retried without need is answered")
	}
	if !bytes.Equal(c.read(7, 1), data) {
		t.Error("other data were written")
	}
	// A NOP-Out plugs the hole, too, and so does a Text Request.
	for _, o := range []iscsi.Opcode{iscsi.OpNOPOut, iscsi.OpText} {
		sn = c.cmdSN
		put := func(h *iscsi.BHS, o iscsi.Opcode) {
			n := iscsi.NOP{ITT: 8, TTT: iscsi.NoTag, CmdSN: sn, ExpStatSN: c.statSN}
			if n.PutOut(h); o == iscsi.OpText {
				q := iscsi.Text{Final: true, ITT: 8, TTT: iscsi.NoTag, CmdSN: sn, ExpStatSN: c.statSN}
				q.PutRequest(h)
			}
		}
		var h iscsi.BHS
		put(&h, iscsi.OpText)
		c.spoil = true
		c.send(&h, []byte("X-a=b\x00"))
		c.spoil = false
		c.test(6, sn+1)
		c.rejected(iscsi.RejectDataDigest, iscsi.OpText)
		put(&h, o)
		c.send(&h, nil)
		c.receive()
		c.good(6)
		c.cmdSN = sn + 2
	}
}

// TestDamagedHeader: where the next PDU begins cannot be told, so that the connection ends (section 7.8); the
// session goes on.
func TestDamagedHeader(t *testing.T) {
	s, a := recovering(t, target.Config{})
	b := join(t, s, a, 1, 1)
	a.helpful = true
	b.nc.Write(append(make([]byte, iscsi.BHSLen), 1, 2, 3, 4)) // no digests were agreed on
	b.nc.Close()
	a.dropped(1)
	b = join(t, s, a, 1, 1, "HeaderDigest=CRC32C")
	b.nc.Write(append(make([]byte, iscsi.BHSLen), 1, 2, 3, 4))
	b.ended()
	a.dropped(1)
	a.test(5, a.cmdSN)
	a.good(5)
}

// TestStatusSNACK: what was answered and is not acknowledged is sent again as it was (section 11.16).
func TestStatusSNACK(t *testing.T) {
	_, c := recovering(t, target.Config{})
	first := c.statSN
	var sent []iscsi.BHS
	var data [][]byte
	take := func() {
		h, d := c.receive()
		sent, data = append(sent, h), append(data, d)
	}
	c.statSN = first
	say := func(f func()) { f(); take(); c.statSN = first } // nothing is acknowledged
	say(func() { c.test(5, c.cmdSN) })
	say(func() {
		c.command(iscsi.Command{Final: true, Read: true, ITT: 6, EDTL: 1024, CDB: [16]byte{scsi.Read10, 8: 1}}, nil)
	})
	say(func() { c.command(iscsi.Command{Final: true, ITT: 7, CDB: [16]byte{0xff}}, nil) })
	say(func() {
		var h iscsi.BHS
		q := iscsi.NOP{Immediate: true, ITT: 800, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: c.statSN}
		q.PutOut(&h)
		c.send(&h, []byte("ping"))
	})
	say(func() {
		c.manage(iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTask, ITT: 9, RefTag: 77, CmdSN: c.cmdSN, RefCmdSN: c.cmdSN, ExpStatSN: c.statSN})
	})
	n := uint32(len(sent))
	status := func(beg, run uint32) iscsi.SNACK {
		return iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: beg, RunLength: run}
	}
	for _, run := range [][2]uint32{{0, 0}, {first, 0}, {first, n}, {first + 1, 2}, {first + n - 1, 0}, {first + 2, 1}} {
		c.snack(status(run[0], run[1]))
		from, to := max(run[0], first)-first, n
		if run[1] != 0 {
			to = from + run[1]
		}
		for i := from; i < to; i++ {
			h, d := c.receive()
			h.Renumber(iscsi.Numbers{})
			want := sent[i]
			want.Renumber(iscsi.Numbers{})
			if h != want || numbers(&h).StatSN != first+i || !bytes.Equal(d, data[i]) {
				t.Fatalf("%v, answer %d: %x, want %x", run, i, h, want)
			}
		}
		c.statSN = first
	}
	// What was not sent, or is acknowledged, is not (section 11.16); nor is what makes no sense.
	for _, run := range [][2]uint32{{first - 1, 0}, {first, n + 2}, {first, 0xffffffff}, {first + 1, 0x80000000}, {first + 30, 1}, {0, 1}} {
		c.snack(status(run[0], run[1]))
		c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK)
		n++
		c.statSN = first
	}
	c.statSN = first + 2
	c.snack(status(first+1, 1))
	c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK)
	s := status(0, 0)
	s.ITT = 5
	c.snack(s)
	c.rejected(iscsi.RejectInvalidField, iscsi.OpSNACK)
	c.snack(status(0, 0)) // all is acknowledged
	if c.pings() != 1 {
		t.Error("something is sent again that is acknowledged")
	}
}

// reading reads ten blocks in PDUs of one, in sequences of three.
func reading(t *testing.T) (c *client, all []iscsi.DataIn, data [][]byte) {
	_, c = recovering(t, target.Config{}, "MaxBurstLength=1536", "MaxRecvDataSegmentLength=512")
	seen := c.statSN
	c.command(iscsi.Command{Final: true, Read: true, ITT: 6, EDTL: 5120, CDB: [16]byte{scsi.Read10, 8: 10}}, nil)
	for i := range uint32(10) {
		d, p := c.in()
		if d.DataSN != i || d.Acknowledge != (i%3 == 2) || d.Acknowledge != (d.TTT != iscsi.NoTag) || d.HasStatus != (i == 9) {
			t.Fatalf("%d: %+v", i, d)
		}
		all, data = append(all, d), append(data, p)
	}
	c.statSN = seen
	return c, all, data
}

func (c *client) in() (iscsi.DataIn, []byte) {
	c.t.Helper()
	h, data := c.receive()
	d, err := iscsi.ParseDataIn(&h)
	if h.Opcode() != iscsi.OpDataIn || err != nil {
		c.t.Fatalf("%v: %v", h.Opcode(), err)
	}
	return d, data
}

// TestDataSNACK: the data of a command are sent again as they were until they are acknowledged, by DataACK or with
// the status (sections 11.7.2, 11.16.1 and 11.16.2).
func TestDataSNACK(t *testing.T) {
	c, all, data := reading(t)
	seen := c.statSN
	want := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			d, p := c.in()
			d.ExpCmdSN, d.MaxCmdSN = all[i].ExpCmdSN, all[i].MaxCmdSN
			if d != all[i] || !bytes.Equal(p, data[i]) {
				t.Fatalf("%d: %+v, want %+v", i, d, all[i])
			}
		}
		c.statSN = seen
	}
	ask := func(beg, run uint32) {
		c.snack(iscsi.SNACK{ITT: 6, TTT: iscsi.NoTag, BegRun: beg, RunLength: run})
	}
	for _, run := range [][2]uint32{{0, 0}, {4, 0}, {1, 2}, {9, 1}, {2, 1}, {0, 10}} {
		ask(run[0], run[1])
		to := 10
		if run[1] != 0 {
			to = int(run[0] + run[1])
		}
		want(int(run[0]), to)
	}
	for _, run := range [][2]uint32{{10, 1}, {0, 11}, {3, 0xffffffff}, {0x80000000, 0}} {
		ask(run[0], run[1])
		if r := c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK); r.DataSN != 10 {
			t.Errorf("%+v", r)
		}
		c.statSN = seen
	}
	ack := iscsi.SNACK{Type: iscsi.SNACKDataACK, ITT: iscsi.NoTag, TTT: all[2].TTT, LUN: all[2].LUN, BegRun: 3}
	for _, bad := range []func(s *iscsi.SNACK){
		func(s *iscsi.SNACK) { s.TTT++ }, func(s *iscsi.SNACK) { s.TTT = 1 << 31 }, func(s *iscsi.SNACK) { s.LUN[1]++ }, func(s *iscsi.SNACK) { s.BegRun = 11 },
	} {
		s := ack
		bad(&s)
		c.snack(s)
		c.rejected(iscsi.RejectInvalidDataACK, iscsi.OpSNACK)
		c.statSN = seen
	}
	c.snack(ack)
	ask(0, 0)
	want(3, 10)
	ask(2, 2)
	c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK)
	ack.BegRun = 2
	c.snack(ack) // backwards
	c.rejected(iscsi.RejectInvalidDataACK, iscsi.OpSNACK)
	for _, s := range []iscsi.SNACK{{ITT: iscsi.NoTag, TTT: iscsi.NoTag}, {ITT: 6, TTT: 5}, {Type: iscsi.SNACKRData, ITT: 6, TTT: 0}, {Type: iscsi.SNACKRData, ITT: 6, TTT: 4, BegRun: 1}} {
		c.snack(s)
		c.rejected(iscsi.RejectInvalidField, iscsi.OpSNACK)
	}
	ask(0, 0) // the status is acknowledged
	c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK)
}

// TestRDataSNACK: after another MaxRecvDataSegmentLength all data that are not acknowledged come in other PDUs,
// and then the status with the SNACK's tag, under the number that it had (section 11.16.3).
func TestRDataSNACK(t *testing.T) {
	c, all, data := reading(t)
	seen := c.statSN
	c.snack(iscsi.SNACK{Type: iscsi.SNACKDataACK, ITT: iscsi.NoTag, TTT: all[2].TTT, LUN: all[2].LUN, BegRun: 3})
	var h iscsi.BHS
	q := iscsi.Text{Final: true, Immediate: true, ITT: 50, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: seen}
	q.PutRequest(&h)
	c.send(&h, []byte("MaxRecvDataSegmentLength=1024\x00"))
	c.receive()
	for _, tag := range []uint32{77, 78} {
		c.statSN = seen
		c.snack(iscsi.SNACK{Type: iscsi.SNACKRData, ITT: 6, TTT: tag})
		var got []byte
		for sn := uint32(3); len(got) < 7*512; sn++ {
			d, p := c.in()
			if d.DataSN != sn || d.Offset != 3*512+uint32(len(got)) || d.HasStatus || len(p) > 1024 {
				t.Fatalf("%+v, %d bytes", d, len(p))
			}
			got = append(got, p...)
		}
		if !bytes.Equal(got, slices.Concat(data[3:]...)) {
			t.Error("other data")
		}
		r, _ := c.status()
		if r.SNACKTag != tag || r.StatSN != all[9].StatSN || r.Status != 0 || r.ExpDataSN != 3+5 {
			t.Errorf("%+v", r)
		}
	}
	c.statSN = seen
	c.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: all[9].StatSN, RunLength: 1})
	if r, _ := c.status(); r.SNACKTag != 78 || r.StatSN != all[9].StatSN {
		t.Errorf("%+v", r)
	}
	// Before there is anything, the tag is for the only response.
	c.command(write10(7, 1), nil)
	r := c.r2t()
	c.snack(iscsi.SNACK{Type: iscsi.SNACKRData, ITT: 7, TTT: 1})
	c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK) // it reads nothing
	c.out(iscsi.DataOut{Final: true, ITT: 7, TTT: r.TTT}, make([]byte, 512), false)
	c.good(7)
}

// TestR2TSNACK: the R2T that is not answered is sent again, and no other (section 11.16).
func TestR2TSNACK(t *testing.T) {
	_, c := recovering(t, target.Config{}, "MaxBurstLength=512")
	c.command(write10(5, 2), nil)
	first := c.r2t()
	c.snack(iscsi.SNACK{ITT: 5, TTT: iscsi.NoTag})
	if r := c.r2t(); r != first {
		t.Errorf("%+v, want %+v", r, first)
	}
	c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: first.TTT}, make([]byte, 512), false)
	second := c.r2t()
	c.snack(iscsi.SNACK{ITT: 5, TTT: iscsi.NoTag, BegRun: 1, RunLength: 1})
	if r := c.r2t(); r != second || r.R2TSN != 1 {
		t.Errorf("%+v, want %+v", r, second)
	}
	for _, s := range []iscsi.SNACK{{ITT: 5, TTT: iscsi.NoTag, RunLength: 1}, {ITT: 5, TTT: iscsi.NoTag, BegRun: 2, RunLength: 1}, {ITT: 99, TTT: iscsi.NoTag}} {
		c.snack(s)
		c.rejected(iscsi.RejectProtocolError, iscsi.OpSNACK)
	}
	c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: second.TTT, Offset: 512}, make([]byte, 512), false)
	c.good(5)
}

// TestDataThatDoNotCome: an R2T of which nothing has come is sent again; of a sequence that has stopped the rest is
// asked for (sections 7.1.4.1 and 7.9).
func TestDataThatDoNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // who is kept from the processor sends nothing, either
		c := recoveringAt(t, servePipes(t, target.Config{SequenceWait: 40 * time.Millisecond}, unit{size: 64 << 20}), "InitialR2T=No", "FirstBurstLength=1024")
		data := pattern(4*512, 3)
		k := write10(5, 4)
		k.Final = false
		c.command(k, data[:256])
		c.out(iscsi.DataOut{ITT: 5, TTT: iscsi.NoTag, Offset: 256}, data[256:512], false) // and no more
		first := c.r2t()
		if first.Offset != 512 || first.Length != 3*512 || first.R2TSN != 0 {
			t.Fatalf("%+v", first)
		}
		if r := c.r2t(); r != first {
			t.Fatalf("%+v, want %+v", r, first)
		}
		c.out(iscsi.DataOut{ITT: 5, TTT: first.TTT, Offset: 512}, data[512:1024], false) // and no more
		r := c.r2t()
		for r == first {
			r = c.r2t() // it was on its way
		}
		if r.R2TSN != 1 || r.Offset != 1024 || r.Length != 1024 || r.TTT == first.TTT {
			t.Fatalf("%+v", r)
		}
		c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: first.TTT, DataSN: 1, Offset: 1024}, make([]byte, 1024), false) // too late
		c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT, Offset: 1024}, data[1024:], false)
		for {
			h, _ := c.receive()
			if h.Opcode() == iscsi.OpResponse {
				break
			}
			if again, _ := iscsi.ParseR2T(&h); again != r {
				t.Fatalf("%v: %+v", h.Opcode(), again)
			}
		}
		if !bytes.Equal(c.read(6, 4), data) {
			t.Error("other data were written")
		}
	})
}

// TestNothingIsAcknowledged: while an initiator does not acknowledge its answers they are kept; it is asked for
// acknowledgements, and its window shrinks to nothing before any is forgotten (section 4.2.2.2). Then it opens again.
func TestNothingIsAcknowledged(t *testing.T) {
	_, c := recovering(t, target.Config{})
	first := c.statSN
	last := c.cmdSN
	asked, n := false, uint32(0)
	for ; int32(last-c.cmdSN) >= 0; n++ {
		c.statSN = first
		c.command(iscsi.Command{Final: true, ITT: n}, nil)
		for {
			h, _ := c.receive()
			if last = numbers(&h).MaxCmdSN; h.Opcode() == iscsi.OpResponse {
				break
			}
			if h.Opcode() != iscsi.OpNOPIn || h.ITT() != iscsi.NoTag {
				t.Fatalf("%v", h.Opcode())
			}
			asked = true
		}
		if n > 1000 {
			t.Fatal("no end of answers is kept")
		}
	}
	if !asked || n != 256 {
		t.Errorf("asked for acknowledgements: %v; %d commands are taken", asked, n)
	}
	c.statSN = first
	c.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag})
	for i := range n {
		if r, _ := c.status(); r.ITT != i || r.StatSN != first+i {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	c.acknowledge()
	if h, _ := c.receive(); h.Opcode() != iscsi.OpNOPIn || h.ITT() != iscsi.NoTag || int32(numbers(&h).MaxCmdSN-c.cmdSN) < 100 {
		t.Errorf("%v %+v: the window does not open", h.Opcode(), numbers(&h))
	}
	c.test(5, c.cmdSN)
	c.good(5)
	for range 400 { // immediate ones do not count in the window
		c.statSN = first
		c.command(iscsi.Command{Immediate: true, Final: true, ITT: 6}, nil)
	}
	taken, refused := 0, 0
	for taken+refused < 400 {
		switch h, _ := c.receive(); h.Opcode() {
		case iscsi.OpResponse:
			taken++
		case iscsi.OpReject:
			refused++
		}
	}
	if refused == 0 || taken < 32 {
		t.Errorf("%d immediate commands are taken, %d are not", taken, refused)
	}
}

// TestKeptDataAreBounded: data that an initiator does not acknowledge keep memory from other commands, but not for
// ever. What is not kept any more is not sent again (sections 7.8 and 11.17.1).
func TestKeptDataAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := recoveringAt(t, servePipes(t, target.Config{SequenceWait: 40 * time.Millisecond}, unit{size: 64 << 20}), "MaxRecvDataSegmentLength=262144", "MaxBurstLength=1048576")
		first := c.statSN
		asked := false
		const n = 40 // of 1 MiB each, where 32 fit
		for itt := range uint32(n) {
			c.statSN = first
			c.command(iscsi.Command{Final: true, Read: true, ITT: itt, EDTL: 1 << 20, CDB: [16]byte{scsi.Read10, 7: 8}}, nil)
		}
		for over := 0; over < n; {
			h, _ := c.receive()
			if h.Opcode() == iscsi.OpNOPIn {
				asked = true
			} else if d, _ := iscsi.ParseDataIn(&h); d.HasStatus {
				over++
			}
		}
		if !asked {
			t.Error("no acknowledgement is asked for")
		}
		for itt, want := range map[uint32]bool{0: false, n - 1: true} {
			c.statSN = first
			c.snack(iscsi.SNACK{ITT: itt, TTT: iscsi.NoTag, RunLength: 1})
			h, _ := c.receive()
			if kept := h.Opcode() == iscsi.OpDataIn; kept != want || !kept && iscsi.ParseReject(&h).Reason != iscsi.RejectSNACK {
				t.Errorf("%d: %v", itt, h.Opcode())
			}
		}
		c.statSN = first
		c.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: first, RunLength: 1}) // its status is in the data
		c.rejected(iscsi.RejectSNACK, iscsi.OpSNACK)
	})
}

// TestKeptAnswersAreBounded: a flood of pings, and of SNACKs, that acknowledges nothing.
func TestKeptAnswersAreBounded(t *testing.T) {
	_, c := recovering(t, target.Config{})
	first := c.statSN
	const n = 1000
	go func() {
		for i := range uint32(n) {
			var h iscsi.BHS
			q := iscsi.NOP{Immediate: true, ITT: i, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: first}
			if i%2 == 0 {
				q.PutOut(&h)
			} else {
				s := iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: first - 1, ExpStatSN: first}
				s.Put(&h)
			}
			c.send(&h, nil)
		}
	}()
	asked := false
	for i := 0; i < n; {
		if h, _ := c.receive(); h.Opcode() == iscsi.OpNOPIn && h.ITT() == iscsi.NoTag {
			asked = true
		} else if h == (iscsi.BHS{}) {
			t.Fatal("the connection has ended")
		} else {
			i++
		}
	}
	if !asked {
		t.Error("no acknowledgement is asked for")
	}
	for beg, want := range map[uint32]iscsi.Opcode{first: iscsi.OpReject, first + n - 2: iscsi.OpNOPIn} {
		c.statSN = first
		c.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: beg, RunLength: 1})
		if h, _ := c.receive(); h.Opcode() != want || want == iscsi.OpReject && iscsi.ParseReject(&h).Reason != iscsi.RejectSNACK {
			t.Errorf("%d: %v", beg-first, h.Opcode())
		}
	}
}

// TestSNACKFlood: each asks for a mebibyte, and nothing is read. The target does not receive more than it can answer.
func TestSNACKFlood(t *testing.T) {
	s, c := recovering(t, target.Config{}, "MaxRecvDataSegmentLength=262144")
	first := c.statSN
	c.command(iscsi.Command{Final: true, Read: true, ITT: 1, EDTL: 1 << 20, CDB: [16]byte{scsi.Read10, 7: 8}}, nil)
	for range 4 {
		c.in()
	}
	c.statSN = first
	var flood []byte
	for range 1000 {
		h := iscsi.BHS{}
		q := iscsi.SNACK{ITT: 1, TTT: iscsi.NoTag, ExpStatSN: first}
		q.Put(&h)
		flood = binary.LittleEndian.AppendUint32(append(flood, h[:]...), crc32c.Checksum(h[:]))
	}
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		for {
			if _, err := c.nc.Write(flood); err != nil {
				return
			}
		}
	}()
	o := dial(t, s, 2)
	o.ready()
	for range 50 { // others are served meanwhile
		o.test(5, o.cmdSN)
		o.good(5)
	}
	c.nc.Close()
	<-stuck
}

// TestSNACKWithoutRecovery: nothing is kept at ErrorRecoveryLevel 0, and nothing is lost over iSER (RFC 7145 section 7.3.11).
func TestSNACKWithoutRecovery(t *testing.T) {
	overEachWay(t, func(t *testing.T, w way) {
		c := w.connect(t, w.serve(t, unit{size: 1 << 20}), 1, "ErrorRecoveryLevel=0")
		c.ready()
		var h iscsi.BHS
		s := iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag}
		s.Put(&h)
		c.w.control(&h, nil)
		want := iscsi.RejectSNACK
		if _, rdma := c.w.(*rdmaWire); rdma {
			want = iscsi.RejectProtocolError
		}
		if h, _ = c.w.next(); h.Opcode() != iscsi.OpReject || iscsi.ParseReject(&h).Reason != want {
			t.Errorf("%v: %+v", h.Opcode(), iscsi.ParseReject(&h))
		}
	})
}

// TestRetryOfWhatIsUnderWay: a command that is retried although it has come is ignored, not rejected (sections 4.2.2.1
// and 7.2.1), while it waits for its turn and while it is carried out.
func TestRetryOfWhatIsUnderWay(t *testing.T) {
	_, c := recovering(t, target.Config{})
	sn := c.cmdSN
	for range 2 {
		c.cmdSN = sn + 1
		c.command(write10(5, 1), nil)
	}
	c.test(6, sn)
	c.good(6)
	r := c.r2t()
	c.cmdSN = sn + 1
	c.command(write10(5, 1), nil)
	if n := c.pings(); n != 1 {
		t.Errorf("%d answers to a retry", n-1)
	}
	c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT}, make([]byte, 512), false)
	c.good(5)
}
