package target_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// client is an initiator that says what a test has it say.
type client struct {
	t       testing.TB
	nc      net.Conn
	digests bool
	cmdSN   uint32
	statSN  uint32
	spoil   bool // the next data digest
	tsih    uint16
	agreed  map[string]string // the target's answers to the last keys
	helpful bool              // it acknowledges when it is asked
}

// identity is as what a client logs in.
type identity struct {
	isid         byte
	tsih, cid    uint16
	cmdSN        uint32
	user, secret string // for CHAP
	keys         []string
}

// logIn connects and logs in. Unless it may stay, the status says why.
func logIn(t testing.TB, s *served, id identity) (*client, iscsi.LoginStatus) {
	t.Helper()
	nc, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(60 * time.Second)) // a test that hangs fails
	c := &client{t: t, nc: nc, cmdSN: id.cmdSN}
	say := func(csg, nsg iscsi.Stage, transit bool, pairs ...string) (r iscsi.LoginResponse, answer map[string]string) {
		q := iscsi.LoginRequest{Transit: transit, CSG: csg, NSG: nsg, ISID: [6]byte{0x80, id.isid}, TSIH: id.tsih, CID: id.cid, CmdSN: id.cmdSN}
		var h iscsi.BHS
		q.Put(&h)
		var text []byte
		for _, k := range pairs {
			text = append(append(text, k...), 0)
		}
		c.send(&h, text)
		h, text = c.receive()
		r, err := iscsi.ParseLoginResponse(&h)
		if err != nil {
			t.Fatal(err)
		}
		parsed, _ := iscsi.ParsePairs(text)
		answer = map[string]string{}
		for _, p := range parsed {
			answer[p.Key] = p.Value
		}
		return r, answer
	}
	names := []string{"InitiatorName=iqn.x:i", "TargetName=" + targetName}
	var r iscsi.LoginResponse
	if id.user != "" {
		var a map[string]string
		r, _ = say(iscsi.Security, iscsi.Operational, false, append(names, "AuthMethod=CHAP")...)
		if r.Status == iscsi.LoginOK {
			_, a = say(iscsi.Security, iscsi.Operational, false, "CHAP_A=5")
			n, _ := strconv.Atoi(a["CHAP_I"])
			challenge, _ := hex.DecodeString(strings.TrimPrefix(a["CHAP_C"], "0x"))
			r, _ = say(iscsi.Security, iscsi.Operational, true, "CHAP_N="+id.user, "CHAP_R=0x"+hex.EncodeToString(chap.Response(chap.MD5, uint8(n), []byte(id.secret), challenge)))
			names = nil
		}
	}
	if r.Status == iscsi.LoginOK {
		r, c.agreed = say(iscsi.Operational, iscsi.FullFeature, true, append(names, id.keys...)...)
	}
	c.tsih, c.statSN = r.TSIH, r.StatSN+1
	if r.Status == iscsi.LoginOK && (!r.Transit || id.tsih != 0 && r.ExpCmdSN > id.cmdSN) {
		t.Fatalf("%+v", r)
	}
	return c, r.Status
}

// dial connects and logs in with further keys.
func dial(t testing.TB, s *served, isid byte, keys ...string) *client {
	t.Helper()
	c, st := logIn(t, s, identity{isid: isid, cmdSN: 1, keys: keys})
	if st != iscsi.LoginOK {
		t.Fatalf("%#x", st)
	}
	return c
}

func (c *client) send(h *iscsi.BHS, data []byte) {
	h.SetLengths(0, len(data))
	b := h[:]
	if c.digests {
		b = binary.LittleEndian.AppendUint32(b[:iscsi.BHSLen:iscsi.BHSLen], crc32c.Checksum(h[:]))
	}
	if len(data) > 0 {
		padded := append(append([]byte(nil), data...), make([]byte, iscsi.Pad(len(data)))...)
		b = append(b[:len(b):len(b)], padded...)
		if c.digests {
			sum := crc32c.Checksum(padded)
			if c.spoil {
				sum++
			}
			b = binary.LittleEndian.AppendUint32(b, sum)
		}
	}
	if _, err := c.nc.Write(b); err != nil {
		c.t.Log(err)
	}
}

// receive returns the next PDU, with verified digests. The zero header is the connection's end.
func (c *client) receive() (h iscsi.BHS, data []byte) {
	c.t.Helper()
	for {
		h, data = c.receiveAny()
		n := binary.BigEndian.Uint32(h[24:]) // StatSN
		switch o := h.Opcode(); {
		case h == (iscsi.BHS{}) || o == iscsi.OpLoginResp || o == iscsi.OpR2T:
		case o == iscsi.OpNOPIn && h.ITT() == iscsi.NoTag:
			if c.helpful {
				c.acknowledge()
				continue
			}
		case o == iscsi.OpDataIn:
			if d, _ := iscsi.ParseDataIn(&h); d.HasStatus {
				c.statSN = n + 1
			}
		default:
			c.statSN = n + 1
		}
		return h, data
	}
}

// acknowledge acknowledges all that has come, by a NOP-Out that is not answered.
func (c *client) acknowledge() {
	n := iscsi.NOP{Immediate: true, ITT: iscsi.NoTag, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: c.statSN}
	var h iscsi.BHS
	n.PutOut(&h)
	c.send(&h, nil)
}

func (c *client) receiveAny() (h iscsi.BHS, data []byte) {
	c.t.Helper()
	if _, err := io.ReadFull(c.nc, h[:]); err != nil {
		return iscsi.BHS{}, nil
	}
	digest := make([]byte, 4)
	verify := func(p []byte) {
		if !c.digests {
			return
		}
		if io.ReadFull(c.nc, digest); binary.LittleEndian.Uint32(digest) != crc32c.Checksum(p) {
			c.t.Errorf("%v: wrong digest", h.Opcode())
		}
	}
	verify(h[:])
	n := h.DataLen()
	data = make([]byte, n+iscsi.Pad(n))
	if n > 0 {
		io.ReadFull(c.nc, data)
		verify(data)
	}
	return h, data[:n]
}

// command sends a SCSI Command with immediate data.
func (c *client) command(k iscsi.Command, immediate []byte) {
	k.CmdSN, k.ExpStatSN, k.Attr = c.cmdSN, c.statSN, iscsi.Simple
	if !k.Immediate {
		c.cmdSN++
	}
	var h iscsi.BHS
	k.Put(&h)
	c.send(&h, immediate)
}

// status returns the status of the next SCSI Response.
func (c *client) status() (r iscsi.Response, s scsi.Sense) {
	c.t.Helper()
	h, data := c.receive()
	if h.Opcode() != iscsi.OpResponse {
		c.t.Fatalf("%v", h.Opcode())
	}
	r, _ = iscsi.ParseResponse(&h)
	b, err := iscsi.ParseSense(data)
	if err != nil {
		c.t.Error(err)
	}
	s, _ = scsi.ParseSense(b)
	return r, s
}

// ready takes the unit attention.
func (c *client) ready() {
	c.t.Helper()
	c.command(iscsi.Command{Final: true, ITT: 1000}, nil)
	if r, s := c.status(); r.Status != 2 || s.Code != scsi.PowerOnOrReset {
		c.t.Fatalf("%+v %+v", r, s)
	}
}

func write10(itt uint32, blocks byte) iscsi.Command {
	return iscsi.Command{Final: true, Write: true, ITT: itt, EDTL: uint32(blocks) * 512, CDB: [16]byte{scsi.Write10, 8: blocks}}
}

// readCounter is a medium that counts the bytes that are read from it.
type readCounter struct {
	lu.Medium
	n *atomic.Int64
}

type readCounterQueue struct {
	block.Queue
	n *atomic.Int64
}

func (m readCounter) NewQueue(f func()) block.Queue {
	return readCounterQueue{m.Medium.NewQueue(f), m.n}
}

func (q readCounterQueue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	if op == block.OpRead {
		q.n.Add(n)
	}
	return q.Queue.Do(op, buf, off, n, fl, done)
}

// TestNobodyReadsWhatNobodyTakes: of a READ no more comes from the medium than the initiator has room for, and it is
// told how much there would have been (RFC 7143 section 11.4.5.1).
func TestNobodyReadsWhatNobodyTakes(t *testing.T) {
	var n atomic.Int64
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20, medium: func(m lu.Medium) lu.Medium { return readCounter{m, &n} }})
	c := dial(t, s, 1)
	c.ready()
	for i, tc := range []struct {
		fua  byte
		read bool
		edtl uint32
		want int64
	}{{0, true, 0, 0}, {0, true, 700, 1024}, {8, true, 512, 512}, {0, true, 16 * 512, 16 * 512}, {0, true, 1 << 30, 16 * 512}, {0, false, 0, 0}} {
		n.Store(0)
		c.command(iscsi.Command{Final: true, Read: tc.read, ITT: uint32(i), EDTL: tc.edtl, CDB: [16]byte{scsi.Read10, 1: tc.fua, 8: 16}}, nil)
		got, residual := 0, iscsi.Residual{}
		for done := false; !done; {
			h, data := c.receive()
			switch h.Opcode() {
			case iscsi.OpDataIn:
				d, _ := iscsi.ParseDataIn(&h)
				got += len(data)
				done, residual = d.HasStatus, d.Residual
			case iscsi.OpResponse:
				r, _ := iscsi.ParseResponse(&h)
				done, residual = true, r.Residual
				if r.Status != 0 {
					t.Errorf("%+v: %+v", tc, r)
				}
			default:
				t.Fatal(h.Opcode())
			}
		}
		if want := iscsi.ResidualOf(16*512, tc.edtl); n.Load() != tc.want || got != int(min(16*512, tc.edtl)) || residual != want {
			t.Errorf("%+v: %d bytes were read, %d came, residual %+v", tc, n.Load(), got, residual)
		}
	}
}

// TestDataComeInAllWays: immediate, unsolicited and by R2T, several at a time, with digests, and
// what was written is read in sequences of MaxBurstLength.
func TestDataComeInAllWays(t *testing.T) {
	s := serve(t, target.Config{RequireDigests: true}, nil, unit{size: 1 << 20})
	c := dial(t, s, 1, "HeaderDigest=CRC32C", "DataDigest=CRC32C", "InitialR2T=No", "MaxOutstandingR2T=2", "MaxBurstLength=1536", "FirstBurstLength=1024", "MaxRecvDataSegmentLength=1024")
	c.digests = true
	c.ready()
	data := make([]byte, 10*512)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	k := write10(7, 10)
	k.Final = false
	c.command(k, data[:510])
	var h iscsi.BHS
	d := iscsi.DataOut{Final: true, ITT: 7, TTT: iscsi.NoTag, Offset: 510}
	d.Put(&h)
	c.send(&h, data[510:1024])
	for off, sn := uint32(1024), uint32(0); off < uint32(len(data)); sn++ {
		h, _ := c.receive()
		r, err := iscsi.ParseR2T(&h)
		if err != nil || r.ITT != 7 || r.Offset != off || r.R2TSN != sn || r.Length != min(1536, uint32(len(data))-off) {
			t.Fatalf("%v: %+v", err, r)
		}
		for n := uint32(0); n < r.Length; n += 512 {
			d := iscsi.DataOut{Final: n+512 >= r.Length, ITT: 7, TTT: r.TTT, DataSN: n / 512, Offset: off + n}
			d.Put(&h)
			c.send(&h, data[off+n:min(off+n+512, off+r.Length)])
		}
		off += r.Length
	}
	if r, _ := c.status(); r.Status != 0 || r.Underflow || r.Overflow {
		t.Errorf("%+v", r)
	}
	c.command(iscsi.Command{Final: true, Read: true, ITT: 8, EDTL: 6000, CDB: [16]byte{scsi.Read10, 8: 10}}, nil)
	var got []byte
	for sn := uint32(0); len(got) < len(data); sn++ {
		h, p := c.receive()
		in, err := iscsi.ParseDataIn(&h)
		end := len(got)+len(p) == len(data)
		if err != nil || in.DataSN != sn || in.Offset != uint32(len(got)) || in.Final != (end || (len(got)+len(p))%1536 == 0) || in.HasStatus != end || len(p) > 1024 {
			t.Fatalf("%v: %+v, %d bytes", err, in, len(p))
		}
		if end && (!in.Underflow || in.Count != 6000-uint32(len(data))) {
			t.Errorf("%+v", in)
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, data) {
		t.Error("what was written is not read")
	}
	c.spoil = true
	c.command(write10(9, 1), data[:512])
	if h, _ := c.receive(); h != (iscsi.BHS{}) {
		t.Errorf("%v after a wrong digest", h.Opcode())
	}
}

// TestMisbehaviour: what initiators do wrong ends the command or the session, and nothing else.
func TestMisbehaviour(t *testing.T) {
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	for name, f := range map[string]func(c *client){
		"immediate data that were not agreed": func(c *client) {
			k := write10(1, 1)
			k.Read, k.Write, k.CDB[0] = true, false, scsi.Read10
			c.command(k, make([]byte, 512))
			if r, s := c.status(); r.Status != 2 || s.Code != scsi.WriteErrorUnexpectedData {
				c.t.Errorf("%+v %+v", r, s)
			}
		},
		"an unsolicited sequence that is too short": func(c *client) {
			k := write10(1, 2)
			k.Final = false
			c.command(k, make([]byte, 100))
			var h iscsi.BHS
			d := iscsi.DataOut{Final: true, ITT: 1, TTT: iscsi.NoTag, Offset: 100}
			d.Put(&h)
			c.send(&h, make([]byte, 100))
			if r, s := c.status(); r.Status != 2 || s.Code != scsi.WriteErrorWrongAmount {
				c.t.Errorf("%+v %+v", r, s)
			}
		},
		"data beyond what was asked for": func(c *client) {
			c.command(write10(1, 2), nil)
			h, _ := c.receive()
			r, _ := iscsi.ParseR2T(&h)
			d := iscsi.DataOut{Final: true, ITT: 1, TTT: r.TTT}
			d.Put(&h)
			c.send(&h, make([]byte, 4096))
			if r, s := c.status(); r.Status != 2 || s.Key != scsi.AbortedCommand {
				c.t.Errorf("%+v %+v", r, s)
			}
		},
		"data for nobody": func(c *client) {
			var h iscsi.BHS
			d := iscsi.DataOut{Final: true, ITT: 9, TTT: 12345}
			d.Put(&h)
			c.send(&h, make([]byte, 512))
		},
		"a tag that is in use": func(c *client) {
			c.command(write10(1, 2), nil)
			c.receive()
			c.command(write10(1, 2), nil)
			if h, data := c.receive(); h.Opcode() != iscsi.OpReject || iscsi.ParseReject(&h).Reason != iscsi.RejectTaskInProgress || len(data) != iscsi.BHSLen {
				c.t.Errorf("%v", h.Opcode())
			}
			c.cmdSN--
			var h iscsi.BHS
			m := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTask, ITT: 2, RefTag: 1, CmdSN: c.cmdSN}
			m.Put(&h)
			c.send(&h, nil)
			if h, _ := c.receive(); h.Opcode() != iscsi.OpTaskResp || iscsi.ParseTaskReply(&h).Response != iscsi.FunctionComplete {
				c.t.Errorf("%v", h.Opcode())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s, 1, "InitialR2T=No", "MaxRecvDataSegmentLength=65536")
			c.ready()
			f(c)
			c.command(iscsi.Command{Final: true, ITT: 77}, nil)
			if r, _ := c.status(); r.Status != 0 || r.ITT != 77 {
				t.Errorf("the session does not go on: %+v", r)
			}
		})
	}
	for name, h := range map[string]iscsi.BHS{
		"a target's PDU":       {byte(iscsi.OpDataIn), 0x80},
		"a login":              {byte(iscsi.OpLogin) | 0x40, 0x87},
		"too long a segment":   {byte(iscsi.OpNOPOut) | 0x40, 0x80, 5: 0xff},
		"a malformed AHS":      {byte(iscsi.OpCommand), 0x80, 4: 1},
		"a reserved attribute": {byte(iscsi.OpCommand), 0x87},
	} {
		c := dial(t, s, 1)
		c.nc.Write(append(h[:], 0, 9, 1, 0))
		if h, _ := c.receive(); h != (iscsi.BHS{}) {
			t.Errorf("%s: %v", name, h.Opcode())
		}
	}
}

// TestAbortOfATaskThatHasEnded: an initiator that gets a status hears of no abort (RFC 7143 section
// 7.11). Both come at once, so the status is not sent yet when the abort is seen.
func TestAbortOfATaskThatHasEnded(t *testing.T) {
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	c := dial(t, s, 1)
	c.ready()
	var h iscsi.BHS
	k := iscsi.Command{Final: true, ITT: 5, CmdSN: c.cmdSN}
	k.Put(&h)
	both := append([]byte(nil), h[:]...)
	m := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTask, ITT: 6, RefTag: 5, CmdSN: c.cmdSN + 1, RefCmdSN: c.cmdSN}
	m.Put(&h)
	c.nc.Write(append(both, h[:]...))
	if r, _ := c.status(); r.Status != 0 || r.ITT != 5 {
		t.Errorf("%+v", r)
	}
	if h, _ := c.receive(); h.Opcode() != iscsi.OpTaskResp || iscsi.ParseTaskReply(&h).Response != iscsi.TaskDoesNotExist {
		t.Errorf("%v, %+v", h.Opcode(), iscsi.ParseTaskReply(&h))
	}
}

// TestTagIsFreeWithTheStatus: an initiator that has seen a status may use its tag again, before this
// end has noticed that the status is sent. Both commands come at once here.
func TestTagIsFreeWithTheStatus(t *testing.T) {
	c := dial(t, serve(t, target.Config{}, nil, unit{size: 1 << 20}), 1)
	c.ready()
	var both []byte
	for i := range uint32(2) {
		k := iscsi.Command{Final: true, ITT: 5, CmdSN: c.cmdSN + i}
		var h iscsi.BHS
		k.Put(&h)
		both = append(both, h[:]...)
	}
	c.nc.Write(both)
	for range 2 {
		if r, _ := c.status(); r.Status != 0 || r.ITT != 5 {
			t.Errorf("%+v", r)
		}
	}
}

// TestReinstatement: a session with the identifier of another takes its place, and what the earlier
// had under way is over.
func TestReinstatement(t *testing.T) {
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	old := dial(t, s, 1)
	other := dial(t, s, 2)
	old.ready()
	other.ready()
	old.command(write10(1, 2), nil)
	old.receive() // an R2T that is never answered
	dial(t, s, 1).ready()
	if h, _ := old.receive(); h != (iscsi.BHS{}) {
		t.Errorf("the old session goes on: %v", h.Opcode())
	}
	other.command(iscsi.Command{Final: true, ITT: 1}, nil)
	if r, _ := other.status(); r.Status != 0 {
		t.Errorf("%+v", r)
	}
}

// TestMemoryIsBounded: more writes than there is memory for are carried out all the same, and so they are
// where other sessions have all of it.
func TestMemoryIsBounded(t *testing.T) {
	for name, x := range map[string]struct {
		cfg  target.Config
		most int // MiB
	}{"of a session": {target.Config{}, 32}, "of all sessions": {target.Config{Memory: 1}, 12}} {
		t.Run(name, func(t *testing.T) { boundedMemory(t, x.cfg, x.most) })
	}
}

func boundedMemory(t *testing.T, cfg target.Config, limit int) {
	s := serve(t, cfg, nil, unit{size: 4 << 20})
	c := dial(t, s, 1, "MaxBurstLength=1048576", "ImmediateData=No")
	c.ready()
	const n = 100 // of 1 MiB each
	for i := range uint32(n) {
		c.command(iscsi.Command{Final: true, Write: true, ITT: i, EDTL: 1 << 20, CDB: [16]byte{scsi.Write10, 7: 8}}, nil)
	}
	piece := make([]byte, 256<<10)
	asked, most, over := 0, 0, 0
	var waiting []iscsi.R2T
	for over < n {
		h, _ := c.receive()
		switch h.Opcode() {
		case iscsi.OpR2T:
			r, _ := iscsi.ParseR2T(&h)
			waiting = append(waiting, r)
			asked++
			most = max(most, asked)
		case iscsi.OpResponse:
			if r, _ := iscsi.ParseResponse(&h); r.Status != 0 {
				t.Fatalf("%+v", r)
			}
			over++
			asked--
		default:
			t.Fatalf("%v", h.Opcode())
		}
		if asked < limit && over+asked < n || len(waiting) == 0 {
			continue // as many as it asks for at once
		}
		r := waiting[0]
		waiting = waiting[1:]
		for i := range uint32(4) {
			d := iscsi.DataOut{Final: i == 3, ITT: r.ITT, TTT: r.TTT, DataSN: i, Offset: i << 18}
			d.Put(&h)
			c.send(&h, piece)
		}
	}
	if most > limit {
		t.Errorf("%d MiB are asked for at once", most)
	}
}

// TestInitiatorThatSendsNoMoreData: the answer to LOGICAL UNIT RESET waits for data that the initiator
// was asked for, but not for ever: Linux' sends none after such a request.
func TestInitiatorThatSendsNoMoreData(t *testing.T) {
	for name, function := range map[string]iscsi.Function{
		"ABORT TASK SET": iscsi.AbortTaskSet, "CLEAR TASK SET": iscsi.ClearTaskSet, "LOGICAL UNIT RESET": iscsi.LogicalUnitReset, "TARGET WARM RESET": iscsi.TargetWarmReset,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, target.Config{DataWait: 100 * time.Millisecond}, nil, unit{size: 1 << 20})
			c := dial(t, s, 1)
			c.ready()
			c.command(write10(1, 2), nil)
			h, _ := c.receive()
			r2t, err := iscsi.ParseR2T(&h)
			if err != nil {
				t.Fatal(err)
			}
			m := iscsi.TaskMgmt{Immediate: true, Function: function, ITT: 2, CmdSN: c.cmdSN}
			m.Put(&h)
			c.send(&h, nil)
			if h, _ := c.receive(); h.Opcode() != iscsi.OpTaskResp || iscsi.ParseTaskReply(&h).Response != iscsi.FunctionComplete {
				t.Fatalf("%v", h.Opcode())
			}
			late := iscsi.DataOut{Final: true, ITT: 1, TTT: r2t.TTT}
			late.Put(&h)
			c.send(&h, bytes.Repeat([]byte{0xee}, 1024))
			c.command(iscsi.Command{Final: true, ITT: 1}, nil) // takes the attention, if there is one
			if r, _ := c.status(); r.ITT != 1 {
				t.Errorf("%+v", r)
			}
			c.command(iscsi.Command{Final: true, Read: true, ITT: 3, EDTL: 512, CDB: [16]byte{scsi.Read10, 8: 1}}, nil)
			if _, data := c.receive(); !bytes.Equal(data, make([]byte, 512)) {
				t.Errorf("data of the aborted command were written: % x", data[:min(16, len(data))])
			}
		})
	}
}

// TestDataOfAnAbortedCommandThatAreStillArriving: a Data-Out of which a part has come when its command
// is given up fills the command's buffer until it ends. Another command that is given up later, and
// answered, shows that the time is over.
func TestDataOfAnAbortedCommandThatAreStillArriving(t *testing.T) {
	for name, solicited := range map[string]bool{"solicited": true, "unsolicited": false} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, target.Config{DataWait: 50 * time.Millisecond}, nil, unit{size: 1 << 20}, unit{size: 1 << 20})
			c := dial(t, s, 1, "InitialR2T=No")
			c.ready()
			k := write10(1, 2)
			k.Final = solicited
			d := iscsi.DataOut{Final: true, ITT: 1, TTT: iscsi.NoTag}
			c.command(k, nil)
			if solicited {
				h, _ := c.receive()
				r, _ := iscsi.ParseR2T(&h)
				d.TTT = r.TTT
			}
			k = write10(2, 2)
			k.LUN = [8]byte{1: 1}
			c.command(k, nil)
			c.receive() // an R2T
			var said []byte
			var h iscsi.BHS
			for i := range byte(2) {
				m := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTaskSet, LUN: [8]byte{1: i}, ITT: 3 + uint32(i), CmdSN: c.cmdSN}
				m.Put(&h)
				said = append(said, h[:]...)
			}
			d.Put(&h)
			h.SetLengths(0, 1024)
			c.nc.Write(append(append(said, h[:]...), make([]byte, 500)...))
			for _, itt := range []uint32{4, 3} {
				if h, _ := c.receive(); h.Opcode() != iscsi.OpTaskResp || h.ITT() != itt {
					t.Fatalf("%v %d, where %d should be answered", h.Opcode(), h.ITT(), itt)
				}
				if itt == 4 {
					c.nc.Write(make([]byte, 524))
				}
			}
		})
	}
}

// TestSilentInitiator: whoever answers no NOP-In loses the session; whoever answers, or cannot since
// the security association is away, does not.
func TestSilentInitiator(t *testing.T) {
	ping := func(t *testing.T, c *client) iscsi.NOP {
		t.Helper()
		h, _ := c.receive()
		n, err := iscsi.ParseNOPIn(&h)
		if h.Opcode() != iscsi.OpNOPIn || err != nil || n.ITT != iscsi.NoTag || n.TTT == iscsi.NoTag {
			t.Fatalf("%v, %v: %+v", h.Opcode(), err, n)
		}
		return n
	}
	t.Run("answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // an initiator that a busy machine keeps from answering is silent, too
			c := dial(t, servePipes(t, target.Config{Ping: 100 * time.Millisecond}, unit{size: 1 << 20}), 1)
			first := ping(t, c)
			for range 3 {
				var h iscsi.BHS
				pong := iscsi.NOP{Immediate: true, ITT: iscsi.NoTag, TTT: first.TTT, CmdSN: c.cmdSN}
				pong.PutOut(&h)
				c.send(&h, nil)
				if n := ping(t, c); n.StatSN != first.StatSN {
					t.Errorf("a ping takes a StatSN: %+v, %+v", first, n)
				}
			}
			if h, _ := c.receive(); h != (iscsi.BHS{}) {
				t.Errorf("%v to who does not answer any more", h.Opcode())
			}
		})
	})
	t.Run("paused", func(t *testing.T) {
		var looks atomic.Int32
		seen := make(chan struct{})
		cfg := target.Config{Ping: 10 * time.Millisecond, Paused: func(net.Conn) bool {
			if looks.Add(1) == 10 {
				close(seen)
			}
			return looks.Load() < 20
		}}
		c := dial(t, serve(t, cfg, nil, unit{size: 1 << 20}), 1)
		<-seen
		ping(t, c) // only now
		if n := looks.Load(); n < 20 {
			t.Errorf("it is asked after %d looks", n)
		}
	})
}

// TestDeclarationChanges: an initiator declares another MaxRecvDataSegmentLength in full feature phase.
func TestDeclarationChanges(t *testing.T) {
	c := dial(t, serve(t, target.Config{}, nil, unit{size: 1 << 20}), 1)
	c.ready()
	for i, most := range []int{4096, 512} {
		var h iscsi.BHS
		q := iscsi.Text{Final: true, ITT: 50, TTT: iscsi.NoTag, CmdSN: c.cmdSN}
		q.PutRequest(&h)
		c.cmdSN++
		c.send(&h, fmt.Appendf(nil, "MaxRecvDataSegmentLength=%d\x00MaxBurstLength=512\x00", most))
		h, text := c.receive()
		if r, err := iscsi.ParseTextResponse(&h); err != nil || !r.Final || string(text) != "MaxBurstLength=Reject\x00" {
			t.Fatalf("%v: %+v %q", err, r, text)
		}
		c.command(iscsi.Command{Final: true, Read: true, ITT: uint32(i), EDTL: 8192, CDB: [16]byte{scsi.Read10, 8: 16}}, nil)
		for off := 0; off < 8192; {
			_, p := c.receive()
			if len(p) != most {
				t.Fatalf("%d bytes, where %d may be", len(p), most)
			}
			off += len(p)
		}
	}
}
