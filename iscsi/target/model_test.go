package target_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/crc32c"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// model is an initiator that recovers from errors, by ErrorRecoveryLevel 1 or 2, and has many: it damages what it
// sends, loses what it receives, and ends connections. Each command has a slot of the disk to itself while it is under
// way, so that what is read is known.
type model struct {
	t      *testing.T
	s      *served
	rng    *rand.Rand
	level  int
	keys   []string
	damage int // in a thousand PDUs
	events chan event
	done   chan struct{}

	tsih     uint16
	cmdSN    uint32
	expCmdSN uint32
	itt      uint32
	links    map[uint16]*modelLink // by CID
	cmds     map[uint32]*modelCommand
	disk     [slots][slotSize]byte
	busy     [slots]bool
	logouts  map[uint32]*modelLink    // under way, by their tags: of which connection
	moves    map[uint32]*modelCommand // reassigned, by the tags of the requests
	lost     []*modelLink             // are to be logged out

	lostPDUs, damaged, ended, reassigned, repeated int
}

const (
	slots    = 12
	slotSize = 16 * 512
	pingITT  = 1 << 20
)

type event struct {
	l    *modelLink
	h    iscsi.BHS
	data []byte
}

// modelLink is a connection of the model.
type modelLink struct {
	*client
	cid uint16
	up  bool
	exp uint32                   // the first StatSN that is not acknowledged
	got map[uint32]*modelCommand // those from there on that have come; nil: not of a command
	top uint32                   // the highest that is known to be sent, and one
}

type modelCommand struct {
	itt, sn   uint32
	write     bool
	slot      int
	data      []byte // that is written, or has been read
	link      *modelLink
	pending   *modelLink // it was asked to be reassigned to that
	immediate int
	unasked   int

	have  map[uint32]modelPiece // by DataSN
	next  uint32                // the first that is missing
	off   uint32
	total uint32 // how many there are, once known
	known bool
	r2ts  map[uint32]bool
	ended bool
}

type modelPiece struct {
	off  uint32
	data []byte
}

func (m *model) chance(perMille int) bool { return m.rng.IntN(1000) < perMille }

// dial adds a connection to the session, or begins it.
func (m *model) dial(cid uint16) *modelLink {
	m.t.Helper()
	keys := []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C", fmt.Sprintf("MaxRecvDataSegmentLength=%d", 512<<m.rng.IntN(4))}
	if m.tsih == 0 {
		keys = append(keys, m.keys...)
	}
	c, st := logIn(m.t, m.s, identity{isid: 1, tsih: m.tsih, cid: cid, cmdSN: m.cmdSN, keys: keys})
	if st != iscsi.LoginOK {
		m.t.Fatalf("connection %d: %#x", cid, st)
	}
	c.digests = true
	l := &modelLink{client: c, cid: cid, up: true, exp: c.statSN, top: c.statSN, got: map[uint32]*modelCommand{}}
	if m.tsih == 0 {
		m.tsih = c.tsih
		c.ready()
		m.cmdSN, l.exp, l.top = c.cmdSN, c.statSN, c.statSN
	}
	m.links[cid] = l
	go func() {
		for {
			h, data := l.next()
			select {
			case m.events <- event{l, h, data}:
			case <-m.done:
				return
			}
			if h == (iscsi.BHS{}) {
				return
			}
		}
	}()
	return l
}

// next returns the next PDU, and the zero header at the end, which may come anywhere.
func (l *modelLink) next() (h iscsi.BHS, data []byte) {
	b := make([]byte, iscsi.BHSLen+4)
	if _, err := io.ReadFull(l.nc, b); err != nil {
		return h, nil
	}
	copy(h[:], b)
	n := h.DataLen()
	if n > 0 {
		data = make([]byte, n+iscsi.Pad(n)+4)
		if _, err := io.ReadFull(l.nc, data); err != nil {
			return iscsi.BHS{}, nil
		}
		if sum := len(data) - 4; binary.LittleEndian.Uint32(data[sum:]) != crc32c.Checksum(data[:sum]) {
			l.t.Errorf("%v: wrong data digest", h.Opcode())
		}
	}
	if binary.LittleEndian.Uint32(b[iscsi.BHSLen:]) != crc32c.Checksum(h[:]) {
		l.t.Errorf("%v: wrong header digest", h.Opcode())
	}
	return h, data[:n]
}

// say sends a PDU, which may come damaged; at level 2 with its header, which ends the connection.
func (m *model) say(l *modelLink, h *iscsi.BHS, data []byte) {
	if !l.up {
		return
	}
	l.spoil = len(data) > 0 && m.chance(m.damage)
	if l.spoil {
		m.damaged++
	}
	l.send(h, data)
	l.spoil = false
	if m.level == 2 && len(m.lost)+len(m.logouts)+len(m.moves) == 0 && m.chance(m.damage/8) {
		if m.ended++; m.chance(500) {
			l.nc.Write(make([]byte, iscsi.BHSLen+4)) // a header that does not match its digest
		} else {
			l.nc.Close()
		}
	}
}

// begin begins a command on a slot that is free.
func (m *model) begin(slot int) {
	var up []*modelLink
	for cid := range uint16(2) {
		if l := m.links[cid]; l != nil && l.up {
			up = append(up, l)
		}
	}
	if len(up) == 0 {
		return
	}
	m.itt++
	c := &modelCommand{itt: m.itt, sn: m.cmdSN, slot: slot, write: m.chance(500), link: up[m.rng.IntN(len(up))], have: map[uint32]modelPiece{}, r2ts: map[uint32]bool{}}
	m.cmdSN++
	m.busy[slot] = true
	c.data = make([]byte, slotSize)
	if c.write {
		for i := range c.data {
			c.data[i] = byte(m.rng.Uint32())
		}
		c.immediate = 512 * m.rng.IntN(4)
		if m.chance(300) {
			c.unasked = 4096 // FirstBurstLength
		}
	}
	m.cmds[c.itt] = c
	m.command(c)
}

// command sends a command with all that comes unasked.
func (m *model) command(c *modelCommand) {
	k := iscsi.Command{Final: c.unasked == 0, Read: !c.write, Write: c.write, Attr: iscsi.Simple, ITT: c.itt, EDTL: slotSize, CmdSN: c.sn, ExpStatSN: c.link.exp,
		CDB: [16]byte{scsi.Read10, 5: byte(c.slot * slotSize / 512), 8: slotSize / 512}}
	if c.write {
		k.CDB[0] = scsi.Write10
	}
	var h iscsi.BHS
	k.Put(&h)
	m.say(c.link, &h, c.data[:c.immediate*btoi(c.write)])
	if c.unasked > 0 {
		m.out(c, iscsi.NoTag, uint32(c.immediate), uint32(c.unasked-c.immediate))
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// out sends a sequence of Data-Out.
func (m *model) out(c *modelCommand, ttt, off, n uint32) {
	for sn := uint32(0); n > 0; sn++ {
		k := min(n, uint32(512+4*m.rng.IntN(600)))
		d := iscsi.DataOut{Final: k == n, ITT: c.itt, TTT: ttt, DataSN: sn, Offset: off, ExpStatSN: c.link.exp}
		var h iscsi.BHS
		d.Put(&h)
		m.say(c.link, &h, c.data[off:off+k])
		off, n = off+k, n-k
	}
}

func (m *model) snack(l *modelLink, s iscsi.SNACK) {
	s.ExpStatSN = l.exp
	var h iscsi.BHS
	s.Put(&h)
	m.say(l, &h, nil)
}

// missing asks for the data of a command that are known to be missing.
func (m *model) missing(c *modelCommand) {
	end := c.next
	for sn := range c.have {
		end = max(end, sn)
	}
	if c.known {
		end = max(end, c.total)
	}
	if c.link == nil || c.pending != nil || end == c.next || c.write {
		return
	}
	m.repeated++
	n := uint32(1)
	for c.next+n < end {
		if _, have := c.have[c.next+n]; have {
			break
		}
		n++
	}
	m.snack(c.link, iscsi.SNACK{ITT: c.itt, TTT: iscsi.NoTag, BegRun: c.next, RunLength: n})
}

// statuses asks for the answers that are known to be missing.
func (m *model) statuses(l *modelLink) {
	for sn := l.exp; sn != l.top; sn++ {
		if _, have := l.got[sn]; !have {
			m.repeated++
			m.snack(l, iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: sn, RunLength: 1})
		}
	}
}

// acknowledge moves on what a connection acknowledges: no answer before the data of its command (RFC 7143 section 7.9).
func (l *modelLink) advance() {
	for {
		c, have := l.got[l.exp]
		if !have || c != nil && !c.ended && c.link == l {
			return
		}
		delete(l.got, l.exp)
		l.exp++
	}
}

// status notes an answer. It returns false if it has come before.
func (m *model) status(l *modelLink, sn uint32, c *modelCommand) bool {
	if int32(sn+1-l.top) > 0 {
		l.top = sn + 1
	}
	if _, twice := l.got[sn]; twice || int32(sn-l.exp) < 0 {
		return false
	}
	l.got[sn] = c
	return true
}

// of returns the command of a PDU that came by a connection, if it belongs there.
func (m *model) of(l *modelLink, itt uint32) *modelCommand {
	c := m.cmds[itt]
	if c != nil && c.pending == l {
		m.adopt(c) // the answer to the request was lost, and this shows what it was
	}
	if c == nil || c.link != l || c.ended {
		return nil
	}
	return c
}

// adopt notes that a command is reassigned.
func (m *model) adopt(c *modelCommand) {
	c.link, c.pending = c.pending, nil
	clear(c.have)
	c.known = false
	m.reassigned++
	for tag, o := range m.moves {
		if o == c {
			delete(m.moves, tag)
		}
	}
}

// finish ends a command if all of it has come.
func (m *model) finish(c *modelCommand) {
	if c.ended || !c.known || !c.write && c.next != c.total {
		return
	}
	c.ended = true
	m.busy[c.slot] = false
	delete(m.cmds, c.itt)
	if c.write {
		copy(m.disk[c.slot][:], c.data)
	} else if c.off != slotSize || !bytes.Equal(c.data, m.disk[c.slot][:]) {
		m.t.Fatalf("slot %d: other data were read (%d bytes)", c.slot, c.off)
	}
}

// take takes an event.
func (m *model) take(e event) {
	l, h := e.l, e.h
	if h == (iscsi.BHS{}) {
		if l.up {
			m.fail(l)
		}
		return
	}
	if !l.up {
		return
	}
	if m.chance(m.damage) { // it came damaged
		m.lostPDUs++
		return
	}
	if n := numbers(&h); int32(n.ExpCmdSN-m.expCmdSN) > 0 {
		m.expCmdSN = n.ExpCmdSN
	}
	switch h.Opcode() {
	case iscsi.OpDataIn:
		m.data(l, &h, e.data)
	case iscsi.OpR2T:
		r, err := iscsi.ParseR2T(&h)
		if err != nil {
			m.t.Fatal(err)
		}
		if c := m.of(l, r.ITT); c != nil && !c.r2ts[r.R2TSN] {
			c.r2ts[r.R2TSN] = true
			m.out(c, r.TTT, r.Offset, r.Length)
		}
	case iscsi.OpResponse:
		r, _ := iscsi.ParseResponse(&h)
		c := m.of(l, r.ITT)
		if !m.status(l, r.StatSN, c) || c == nil {
			break
		}
		if r.Status != 0 {
			b, _ := iscsi.ParseSense(e.data)
			s, _ := scsi.ParseSense(b)
			m.t.Fatalf("%+v: %+v %+v", c, r, s)
		}
		c.known, c.total = true, r.ExpDataSN
		m.finish(c)
	case iscsi.OpReject:
		r := iscsi.ParseReject(&h)
		if !m.status(l, r.StatSN, nil) {
			break
		}
		bad := (*iscsi.BHS)(e.data)
		if r.Reason != iscsi.RejectDataDigest {
			m.t.Fatalf("a %v is rejected: %+v, % x", bad.Opcode(), r, bad[:])
		}
		if c := m.cmds[bad.ITT()]; bad.Opcode() == iscsi.OpCommand && c != nil && c.link == l {
			m.command(c)
		}
	case iscsi.OpNOPIn:
		n, _ := iscsi.ParseNOPIn(&h)
		if n.ITT != iscsi.NoTag {
			m.status(l, n.StatSN, nil)
		} else if int32(n.StatSN-l.top) > 0 {
			l.top = n.StatSN
		}
		if n.TTT != iscsi.NoTag {
			m.ping(l, iscsi.NOP{ITT: iscsi.NoTag, TTT: n.TTT, LUN: n.LUN})
		}
	case iscsi.OpLogoutResp:
		r := iscsi.ParseLogoutReply(&h)
		if gone := m.logouts[r.ITT]; m.status(l, r.StatSN, nil) && gone != nil {
			delete(m.logouts, r.ITT)
			if r.Response != iscsi.LogoutClosed && r.Response != iscsi.LogoutNoCID {
				m.t.Fatalf("%+v", r)
			}
			m.move(gone, l)
			if m.links[gone.cid] == gone {
				m.dial(gone.cid)
			}
		}
	case iscsi.OpTaskResp:
		r := iscsi.ParseTaskReply(&h)
		if c := m.moves[r.ITT]; m.status(l, r.StatSN, nil) && c != nil {
			delete(m.moves, r.ITT)
			switch {
			case r.Response == iscsi.FunctionComplete:
				m.adopt(c)
			case r.Response == iscsi.TaskDoesNotExist && c.next == 0:
				c.link, c.pending = c.pending, nil // it never arrived
				m.command(c)
			default:
				m.t.Fatalf("%+v: %+v", r, c)
			}
		}
	case iscsi.OpAsync:
		a := iscsi.ParseAsync(&h)
		m.status(l, a.StatSN, nil)
		if a.Event != iscsi.EventConnectionDrop {
			m.t.Fatalf("%+v", a)
		}
	default:
		m.t.Fatalf("%v", h.Opcode())
	}
	l.advance()
	if int32(l.top-l.exp) > 0 && m.chance(300) {
		m.statuses(l)
	}
}

func (m *model) data(l *modelLink, h *iscsi.BHS, data []byte) {
	d, err := iscsi.ParseDataIn(h)
	if err != nil {
		m.t.Fatal(err)
	}
	c := m.of(l, d.ITT)
	if c != nil && int32(d.DataSN-c.next) >= 0 {
		c.have[d.DataSN] = modelPiece{d.Offset, data}
		for p, have := c.have[c.next]; have; p, have = c.have[c.next] {
			if p.off != c.off {
				m.t.Fatalf("PDU %d of %d is at %d", c.next, c.off, p.off)
			}
			copy(c.data[p.off:], p.data)
			delete(c.have, c.next)
			c.next, c.off = c.next+1, c.off+uint32(len(p.data))
		}
	}
	if d.HasStatus && m.status(l, d.StatSN, c) && c != nil {
		if d.Status != 0 {
			m.t.Fatalf("%+v", d)
		}
		c.known, c.total = true, d.DataSN+1
	}
	if c == nil {
		return
	}
	if d.Acknowledge && len(c.have) == 0 && m.chance(800) {
		m.snack(l, iscsi.SNACK{Type: iscsi.SNACKDataACK, ITT: iscsi.NoTag, TTT: d.TTT, LUN: d.LUN, BegRun: c.next})
	}
	if m.finish(c); !c.ended && m.chance(300) {
		m.missing(c)
	}
}

func (m *model) ping(l *modelLink, n iscsi.NOP) {
	n.Immediate, n.CmdSN, n.ExpStatSN = true, m.cmdSN, l.exp
	var h iscsi.BHS
	n.PutOut(&h)
	m.say(l, &h, nil)
}

// fail is the end of a connection.
func (m *model) fail(l *modelLink) {
	if m.level < 2 {
		m.t.Fatal("the connection has ended")
	}
	l.up = false
	l.nc.Close()
	m.lost = append(m.lost, l)
	for tag, gone := range m.logouts { // nobody knows what became of them
		delete(m.logouts, tag)
		m.lost = append(m.lost, gone)
	}
	lost := m.lost
	m.lost = nil
	for _, gone := range lost {
		var other *modelLink
		for _, o := range m.links {
			if o.up && o != gone {
				other = o
			}
		}
		if other == nil || m.chance(500) && m.links[gone.cid] == gone {
			m.move(gone, m.dial(gone.cid)) // an implicit Logout
			continue
		}
		m.itt++
		m.logouts[m.itt] = gone
		q := iscsi.Logout{Immediate: true, Reason: iscsi.RemoveForRecovery, ITT: m.itt, CID: gone.cid, CmdSN: m.cmdSN, ExpStatSN: gone.exp}
		var h iscsi.BHS
		q.Put(&h)
		m.say(other, &h, nil)
	}
}

// move asks for the commands of a connection to be reassigned to another.
func (m *model) move(from, to *modelLink) {
	for _, c := range m.cmds {
		if c.link != from && c.pending != from {
			continue
		}
		for tag, o := range m.moves {
			if o == c {
				delete(m.moves, tag)
			}
		}
		m.itt++
		c.pending, c.link, c.known = to, nil, false
		clear(c.have)
		m.moves[m.itt] = c
		q := iscsi.TaskMgmt{Immediate: true, Function: iscsi.TaskReassign, ITT: m.itt, RefTag: c.itt, CmdSN: m.cmdSN, ExpStatSN: to.exp, ExpDataSN: c.next}
		var h iscsi.BHS
		q.Put(&h)
		m.say(to, &h, nil)
	}
}

// tick is for what only silence tells.
func (m *model) tick() {
	for cid := range uint16(2) {
		l := m.links[cid]
		if l == nil || !l.up {
			continue
		}
		m.itt++
		m.ping(l, iscsi.NOP{ITT: pingITT + m.itt, TTT: iscsi.NoTag})
		m.statuses(l)
	}
	for _, c := range m.cmds {
		if c.link == nil || !c.link.up || c.pending != nil {
			continue
		}
		m.missing(c)
		if c.sn == m.expCmdSN {
			m.command(c)
		}
	}
}

// run carries out n commands.
func (m *model) run(n int) {
	silence := time.NewTimer(0)
	quiet := 0
	for n > 0 || len(m.cmds) > 0 {
		if slot := m.rng.IntN(slots); n > 0 && !m.busy[slot] {
			m.begin(slot)
			n--
		}
		silence.Reset(3 * time.Millisecond << min(quiet, 7))
		select {
		case e := <-m.events:
			m.take(e)
			quiet = 0
			continue
		default:
		}
		select {
		case e := <-m.events:
			m.take(e)
			quiet = 0
		case <-silence.C:
			m.tick()
			if quiet++; quiet > 60 {
				m.t.Fatalf("nothing goes on: %d commands are under way", len(m.cmds))
			}
		}
	}
}

// TestRandomErrors: whatever comes damaged, in either direction, and whichever connections end, all commands are
// carried out, once, and with the right data.
func TestRandomErrors(t *testing.T) {
	seeds, first := 4, uint64(time.Now().UnixNano())
	if s := os.Getenv("IRONWARP_RECOVERY_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds, first = 1, n
	}
	for level := 1; level <= 2; level++ {
		for i := range uint64(seeds) {
			seed := first + i
			t.Run(fmt.Sprintf("level %d, IRONWARP_RECOVERY_SEED=%d", level, seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(level)))
				m := &model{
					t: t, rng: rng, level: level, damage: 5 + rng.IntN(60), events: make(chan event, 1<<16), done: make(chan struct{}),
					cmdSN: 1, links: map[uint16]*modelLink{}, cmds: map[uint32]*modelCommand{}, logouts: map[uint32]*modelLink{}, moves: map[uint32]*modelCommand{},
					keys: []string{fmt.Sprintf("ErrorRecoveryLevel=%d", level), "MaxConnections=2", "InitialR2T=No", "FirstBurstLength=4096", fmt.Sprintf("MaxBurstLength=%d", 4096<<rng.IntN(3)), "DefaultTime2Wait=0"},
				}
				defer close(m.done)
				m.s = serve(t, target.Config{SequenceWait: 20 * time.Millisecond}, nil, unit{size: 1 << 20})
				m.dial(0)
				m.dial(1)
				m.run(400)
				t.Logf("%d PDUs lost, %d damaged, %d connections ended, %d commands reassigned, %d SNACKs", m.lostPDUs, m.damaged, m.ended, m.reassigned, m.repeated)
				m.damage = 0
				m.run(20)
			})
		}
	}
}
