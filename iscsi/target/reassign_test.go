package target_test

import (
	"bytes"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// gate is a medium that holds back what is asked of it while it is closed.
type gate struct {
	waits chan struct{} // gets one for each that is held back

	mu     sync.Mutex // guards the fields below it
	closed bool
	held   []func()
}

type gatedMedium struct {
	lu.Medium
	g *gate
}

type gatedQueue struct {
	block.Queue
	g *gate
}

func newGate() *gate { return &gate{waits: make(chan struct{}, 100)} }

func (g *gate) wrap(m lu.Medium) lu.Medium { return gatedMedium{m, g} }

func (m gatedMedium) NewQueue(f func()) block.Queue { return gatedQueue{m.Medium.NewQueue(f), m.g} }

func (q gatedQueue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	q.g.mu.Lock()
	if !q.g.closed {
		q.g.mu.Unlock()
		return q.Queue.Do(op, buf, off, n, fl, done)
	}
	defer q.g.mu.Unlock()
	q.g.held = append(q.g.held, func() { q.Queue.Do(op, buf, off, n, fl, done) })
	q.g.waits <- struct{}{}
	return false
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) open() {
	g.mu.Lock()
	held := g.held
	g.closed, g.held = false, nil
	g.mu.Unlock()
	for _, f := range held {
		f()
	}
}

// reassigning is a session of two connections of which the second is to fail.
func reassigning(t *testing.T, cfg target.Config, keys ...string) (s *served, a, b *client) {
	t.Helper()
	s = serve(t, cfg, nil, unit{size: 1 << 20})
	a, b = reassigningAt(t, s, keys...)
	return s, a, b
}

// reassigningAt is reassigning at a server that there is.
func reassigningAt(t *testing.T, s *served, keys ...string) (a, b *client) {
	t.Helper()
	a = dial(t, s, 1, append(keys, "ErrorRecoveryLevel=2", "MaxConnections=4", "InitialR2T=No", "FirstBurstLength=1024", "MaxBurstLength=1024", "MaxRecvDataSegmentLength=512")...)
	if a.agreed["ErrorRecoveryLevel"] != "2" {
		t.Fatalf("%q", a.agreed)
	}
	a.helpful = true
	a.ready()
	a.acknowledge()
	b = join(t, s, a, 1, 1, "MaxRecvDataSegmentLength=512")
	b.pings() // it is in full feature phase
	return a, b
}

// reassign asks for a task, and takes the answer.
func (c *client) reassign(ref, expDataSN uint32, want iscsi.TaskResponse) {
	c.t.Helper()
	c.manage(iscsi.TaskMgmt{Immediate: true, Function: iscsi.TaskReassign, ITT: 700, RefTag: ref, ExpDataSN: expDataSN, CmdSN: c.cmdSN, ExpStatSN: c.statSN})
	c.managed(700, want)
}

// leave is how a connection is lost, and logged out.
type leave struct {
	name string
	// f returns a connection by which the commands of b are to be reassigned.
	f func(t *testing.T, s *served, a, b *client) *client
}

func recoveryLogout(t *testing.T, c *client, cid uint16) {
	t.Helper()
	l := iscsi.Logout{Immediate: true, Reason: iscsi.RemoveForRecovery, ITT: 900, CID: cid, CmdSN: c.cmdSN}
	var h iscsi.BHS
	l.Put(&h)
	c.send(&h, nil)
	h, _ = c.receive()
	if r := iscsi.ParseLogoutReply(&h); h.Opcode() != iscsi.OpLogoutResp || r.Response != iscsi.LogoutClosed || r.Time2Wait != 2 || r.Time2Retain != 20 {
		t.Fatalf("%v: %+v", h.Opcode(), r)
	}
}

var leaves = []leave{
	{"fails, and is logged out by another", func(t *testing.T, s *served, a, b *client) *client {
		b.nc.Close()
		if e := a.event(iscsi.EventConnectionDrop); e.Parameters != [3]uint16{1, 2, 20} { // section 11.9.1
			t.Errorf("%+v", e)
		}
		a.reassign(5, 0, iscsi.TaskStillAllegiant) // it is not logged out (section 7.2.2)
		recoveryLogout(t, a, 1)
		return a
	}},
	{"is logged out by another", func(t *testing.T, s *served, a, b *client) *client {
		recoveryLogout(t, a, 1)
		b.ended()
		return a
	}},
	{"logs itself out", func(t *testing.T, s *served, a, b *client) *client {
		recoveryLogout(t, b, 1)
		a.cmdSN = b.cmdSN
		a.reassign(99, 0, iscsi.TaskDoesNotExist) // others may ask before it has ended
		return a
	}},
	{"is reinstated", func(t *testing.T, s *served, a, b *client) *client {
		return join(t, s, b, 1, 1)
	}},
	{"fails, and is reinstated", func(t *testing.T, s *served, a, b *client) *client {
		b.nc.Close()
		a.dropped(1)
		return join(t, s, b, 1, 1)
	}},
}

// TestReassign: what a connection has begun goes on by another, from where it was (RFC 7143 sections 7.2.2 and
// 11.5.6): data that are missing are asked for, and only data that are not acknowledged are sent, in PDUs that
// the new connection takes.
func TestReassign(t *testing.T) {
	for _, l := range leaves {
		t.Run(l.name, func(t *testing.T) {
			s, a, b := reassigning(t, target.Config{})
			b.helpful = true
			data := pattern(4*512, 1)
			b.command(write10(4, 4), data[:0])
			r := b.r2t()
			b.out(iscsi.DataOut{ITT: 4, TTT: r.TTT}, data[:512], false) // half of a sequence

			unsolicited := write10(5, 4)
			unsolicited.Final = false
			unsolicited.CDB[5] = 8
			b.command(unsolicited, data[:256])

			b.command(iscsi.Command{Final: true, Read: true, ITT: 6, EDTL: 2048, CDB: [16]byte{scsi.Read10, 5: 64, 8: 4}}, nil)
			seen := b.statSN
			for range 4 {
				b.in()
			}
			b.statSN = seen // its status is not acknowledged
			late := b.cmdSN + 1
			b.test(8, late) // never has its turn
			c := l.f(t, s, a, b)
			c.cmdSN = late - 1
			c.helpful = true

			c.reassign(4, 0, iscsi.FunctionComplete)
			again := c.r2t()
			if again.R2TSN != 1 || again.Offset != 512 || again.Length != 1024 {
				t.Fatalf("%+v", again)
			}
			c.reassign(4, 0, iscsi.TaskStillAllegiant)
			c.out(iscsi.DataOut{Final: true, ITT: 4, TTT: again.TTT, Offset: 512}, data[512:1536], false)
			again = c.r2t()
			c.out(iscsi.DataOut{Final: true, ITT: 4, TTT: again.TTT, Offset: 1536}, data[1536:], false)
			c.good(4)

			c.reassign(5, 0, iscsi.FunctionComplete)
			again = c.r2t()
			if again.R2TSN != 0 || again.Offset != 256 {
				t.Fatalf("%+v", again)
			}
			c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: again.TTT, Offset: 256}, data[256:1280], false)
			again = c.r2t()
			c.out(iscsi.DataOut{Final: true, ITT: 5, TTT: again.TTT, Offset: 1280}, data[1280:], false)
			c.good(5)

			// Of four PDUs three are acknowledged so.
			c.reassign(6, 3, iscsi.FunctionComplete)
			if d, p := c.in(); d.DataSN != 3 || d.Offset != 1536 || !d.HasStatus || len(p) != 512 {
				t.Errorf("%+v, %d bytes", d, len(p))
			}
			c.test(8, late-1)
			c.good(8)
			c.cmdSN = late
			for lba, itt := range map[byte]uint32{0: 9, 8: 10} {
				c.command(iscsi.Command{Final: true, Read: true, ITT: itt, EDTL: 2048, CDB: [16]byte{scsi.Read10, 5: lba, 8: 4}}, nil)
				var got []byte
				for len(got) < 2048 {
					_, p := c.in()
					got = append(got, p...)
				}
				if !bytes.Equal(got, data) {
					t.Errorf("other data were written at block %d", lba)
				}
			}
		})
	}
}

// TestLUNGoesWhileItsCommandsWait: nothing of it is in use then, although commands of a connection that has failed
// wait for another. What has been read before is sent, and what is still to be written is not.
func TestLUNGoesWhileItsCommandsWait(t *testing.T) {
	s, a, b := reassigning(t, target.Config{})
	data := pattern(1024, 1)
	k := write10(4, 2)
	k.EDTL = 1024
	b.command(k, nil)
	r := b.r2t()
	b.out(iscsi.DataOut{ITT: 4, TTT: r.TTT}, data[:512], false)
	b.command(iscsi.Command{Final: true, Read: true, ITT: 6, EDTL: 512, CDB: [16]byte{scsi.Read10, 5: 64, 8: 1}}, nil)
	b.in()
	b.statSN-- // it is not acknowledged
	b.nc.Close()
	a.dropped(1)
	select {
	case <-s.device.Withdraw(0):
	case <-time.After(time.Minute):
		t.Fatal("the LUN is in use by commands that wait")
	}
	recoveryLogout(t, a, 1)
	a.cmdSN = b.cmdSN
	a.reassign(6, 0, iscsi.FunctionComplete)
	if d, p := a.in(); !d.HasStatus || d.Status != 0 || !bytes.Equal(p, make([]byte, 512)) {
		t.Errorf("%+v, % x", d, p)
	}
	a.reassign(4, 0, iscsi.FunctionComplete)
	r = a.r2t()
	a.out(iscsi.DataOut{Final: true, ITT: 4, TTT: r.TTT, Offset: r.Offset}, data[r.Offset:], false)
	if r, sense := a.status(); r.ITT != 4 || sense.Code != scsi.LogicalUnitNotSupported {
		t.Errorf("%+v %+v", r, sense)
	}
	s.stop()
	if b, err := os.ReadFile(s.files[0]); err != nil || !bytes.Equal(b[:1024], make([]byte, 1024)) {
		t.Errorf("a LUN that is gone was written to: %v", err)
	}
}

// TestSessionIsDroppedWhileItsCommandsWait: who may not go on has nothing that waits, nor what could be reassigned.
func TestSessionIsDroppedWhileItsCommandsWait(t *testing.T) {
	for name, last := range map[string]bool{"another connection is up": false, "the last has failed": true} {
		t.Run(name, func(t *testing.T) {
			s, a, b := reassigning(t, target.Config{})
			b.command(write10(4, 4), nil)
			b.r2t()
			b.nc.Close()
			a.dropped(1)
			if last {
				a.nc.Close()
			}
			s.server.Remove(targetName)
			ended, over := s.server.Drop(func(target.SessionInfo) bool { return true })
			if len(ended) != 1 || len(over) != 1 {
				t.Fatalf("%+v", ended)
			}
			select {
			case <-over[0]:
			case <-time.After(10 * time.Second): // Time2Wait and Time2Retain are 22 s
				t.Fatal("it goes on while commands wait")
			}
			if _, st := logIn(t, s, identity{isid: 1, tsih: a.tsih, cid: 1, cmdSN: a.cmdSN}); st == iscsi.LoginOK {
				t.Error("a connection joins a session that is over")
			}
		})
	}
}

// TestReassignWhatHasEnded: answers that were not acknowledged, or never sent, come by the other connection, data
// included unless all of them are acknowledged; errors too. A wrong ExpDataSN counts as none (section 11.5.6).
func TestReassignWhatHasEnded(t *testing.T) {
	for name, c := range map[string]struct{ exp, first uint32 }{"none": {0, 0}, "some": {2, 2}, "all": {4, 4}, "too many": {5, 0}} {
		t.Run(name, func(t *testing.T) {
			gate := newGate()
			s := serve(t, target.Config{}, nil, unit{size: 1 << 20, medium: gate.wrap})
			a := dial(t, s, 1, "MaxConnections=2", "ErrorRecoveryLevel=2", "MaxRecvDataSegmentLength=512")
			a.helpful = true
			a.ready()
			b := join(t, s, a, 1, 1, "MaxRecvDataSegmentLength=512")
			b.command(iscsi.Command{Final: true, Read: true, ITT: 5, EDTL: 2048, CDB: [16]byte{scsi.Read10, 8: 4}}, nil)
			for range 4 {
				b.in()
			}
			b.statSN--
			seen := b.statSN
			b.command(iscsi.Command{Final: true, ITT: 6, CDB: [16]byte{0xff}}, nil)
			if r, _ := b.status(); r.Status != 2 {
				t.Fatalf("%+v", r)
			}
			b.statSN = seen
			gate.close()
			b.command(iscsi.Command{Final: true, Read: true, ITT: 7, EDTL: 512, CDB: [16]byte{scsi.Read10, 8: 1}}, nil)
			<-gate.waits
			b.nc.Close()
			a.dropped(1)
			gate.open()
			recoveryLogout(t, a, 1)
			a.cmdSN = b.cmdSN
			a.reassign(7, 0, iscsi.FunctionComplete)
			if d, _ := a.in(); d.ITT != 7 || !d.HasStatus {
				t.Errorf("%+v", d)
			}
			a.reassign(5, c.exp, iscsi.FunctionComplete)
			for sn := c.first; sn < 4; sn++ {
				if d, p := a.in(); d.DataSN != sn || d.Offset != sn*512 || len(p) != 512 || d.HasStatus != (sn == 3) {
					t.Errorf("%+v", d)
				}
			}
			if c.first == 4 {
				if r, _ := a.status(); r.Status != 0 || r.ITT != 5 || r.ExpDataSN != 4 {
					t.Errorf("%+v", r)
				}
			}
			a.reassign(6, 0, iscsi.FunctionComplete)
			if r, s := a.status(); r.Status != 2 || r.ITT != 6 || s.Code != scsi.InvalidOperationCode {
				t.Errorf("%+v %+v", r, s)
			}
			a.statSN-- // it is not acknowledged
			a.reassign(6, 0, iscsi.TaskStillAllegiant)
			a.reassign(6, 0, iscsi.TaskDoesNotExist)
		})
	}
}

// TestReassignRefused: not those of other sessions, none for immediate delivery, nothing but commands, and not by a
// request that waits for its turn (sections 7.14 and 11.5.1).
func TestReassignRefused(t *testing.T) {
	s, a, b := reassigning(t, target.Config{})
	k := write10(5, 2)
	k.Immediate = true
	b.command(k, nil)
	b.r2t()
	b.command(write10(6, 2), nil)
	b.r2t()
	b.nc.Close()
	a.dropped(1)
	recoveryLogout(t, a, 1)
	a.reassign(5, 0, iscsi.TaskDoesNotExist)
	a.cmdSN = b.cmdSN
	a.manage(iscsi.TaskMgmt{Function: iscsi.TaskReassign, ITT: 701, RefTag: 6, CmdSN: a.cmdSN, ExpStatSN: a.statSN})
	a.managed(701, iscsi.FunctionRejected)
	a.cmdSN++
	other := dial(t, s, 2, "ErrorRecoveryLevel=2")
	other.ready()
	other.reassign(6, 0, iscsi.TaskDoesNotExist)
	a.manage(iscsi.TaskMgmt{Function: iscsi.AbortTaskSet, ITT: 30, CmdSN: a.cmdSN + 1, ExpStatSN: a.statSN}) // waits for its turn
	a.reassign(30, 0, iscsi.FunctionRejected)
	plain := dial(t, s, 3, "ErrorRecoveryLevel=1")
	plain.ready()
	plain.reassign(6, 0, iscsi.ReassignmentNotSupported)
	l := iscsi.Logout{Reason: iscsi.RemoveForRecovery, CID: 9}
	if r := a.logout(l); r != iscsi.LogoutNoCID {
		t.Errorf("%d", r)
	}
	if r := plain.logout(l); r != iscsi.LogoutNotSupported {
		t.Errorf("%d", r)
	}
}

// TestAbortWhatWaits: a command of a connection that is logged out is aborted by another without being
// reassigned; one that has ended is answered before (section 11.5.1).
func TestAbortWhatWaits(t *testing.T) {
	_, a, b := reassigning(t, target.Config{})
	b.test(5, b.cmdSN)
	b.good(5)
	b.statSN--
	b.command(write10(6, 2), nil)
	b.r2t()
	b.nc.Close()
	a.dropped(1)
	recoveryLogout(t, a, 1)
	a.cmdSN = b.cmdSN
	abort := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTask, ITT: 70, RefTag: 6, CmdSN: a.cmdSN, RefCmdSN: a.cmdSN - 1, ExpStatSN: a.statSN}
	a.manage(abort)
	a.managed(70, iscsi.FunctionComplete)
	abort.RefTag, abort.RefCmdSN = 5, a.cmdSN-2
	a.manage(abort)
	a.good(5)
	a.managed(70, iscsi.TaskDoesNotExist)
}

// TestNothingReassigns: after Time2Wait and Time2Retain what waits has ended, and its initiator is told so by a unit
// attention (sections 7.6 and 11.14.5); so it is if the connection is then closed for good.
func TestNothingReassigns(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, a *client){
		"time is over": func(*testing.T, *client) {},
		"closed": func(t *testing.T, a *client) {
			if r := a.logout(iscsi.Logout{Reason: iscsi.CloseConnection, CID: 1}); r != iscsi.LogoutClosed {
				t.Errorf("%d", r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			retain := "DefaultTime2Retain=20"
			if name == "time is over" {
				retain = "DefaultTime2Retain=1"
			}
			s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
			a := dial(t, s, 1, "MaxConnections=4", "ErrorRecoveryLevel=2", retain)
			a.helpful = true
			a.ready()
			b := join(t, s, a, 1, 1)
			b.command(write10(5, 2), nil)
			b.r2t()
			b.nc.Close()
			a.event(iscsi.EventConnectionDrop)
			a.cmdSN = b.cmdSN
			f(t, a)
			for {
				a.test(7, a.cmdSN)
				if r, sense := a.status(); r.Status == 2 {
					if sense.Code != scsi.ClearedByISCSI {
						t.Errorf("%+v", sense)
					}
					break
				}
			}
			a.reassign(5, 0, iscsi.TaskDoesNotExist)
			a.test(5, a.cmdSN) // its tag is free
			a.good(5)
		})
	}
}

// TestSessionWithoutConnections: a session outlives its only connection, and another takes its place; unless nothing
// is to be retained, or the session is replaced.
func TestSessionWithoutConnections(t *testing.T) {
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	a := dial(t, s, 1, "ErrorRecoveryLevel=2")
	a.ready()
	data := pattern(1024, 9)
	a.command(write10(5, 2), nil)
	a.r2t()
	a.nc.Close()
	b := join(t, s, a, 1, 0)
	b.reassign(5, 0, iscsi.FunctionComplete)
	r := b.r2t()
	b.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT}, data, false)
	b.good(5)
	recoveryLogout(t, b, 0)
	b.ended()
	c := join(t, s, b, 1, 7)
	if !bytes.Equal(c.read(6, 2), data) {
		t.Error("other data were written")
	}
	c.command(write10(5, 2), nil)
	c.r2t()
	c.nc.Close()
	dial(t, s, 1).ready() // another session
	if _, st := logIn(t, s, identity{isid: 1, tsih: c.tsih, cid: 7, cmdSN: c.cmdSN}); st != iscsi.LoginNoSession {
		t.Errorf("%#x", st)
	}
	for _, keys := range [][]string{{"DefaultTime2Retain=0"}, {"DefaultTime2Wait=3600"}} {
		d := dial(t, s, 2, append(keys, "ErrorRecoveryLevel=2", "MaxConnections=2")...)
		d.ready()
		e := join(t, s, d, 2, 1)
		e.command(write10(5, 2), nil)
		e.r2t()
		e.nc.Close()
		if ev := d.event(iscsi.EventConnectionDrop); ev.Parameters[0] != 1 || ev.Parameters[2] != 0 {
			t.Errorf("%+v", ev)
		}
		d.attention(6, e.cmdSN)
	}
	s.stop() // while commands wait
}

// TestFailedConnectionsAreBounded: a session keeps the commands of so many connections, and no more than there is
// room for in its window.
func TestFailedConnectionsAreBounded(t *testing.T) {
	s, a, b := reassigning(t, target.Config{})
	b.nc.Close()
	a.dropped(1)
	for i := range uint32(12) {
		c := join(t, s, a, 1, uint16(10+i))
		c.command(write10(100+i, 2), nil)
		c.r2t()
		a.cmdSN = c.cmdSN
		c.nc.Close()
		a.dropped(uint16(10 + i))
	}
	kept := 0
	for i := range uint32(12) {
		c := a
		h := iscsi.BHS{}
		l := iscsi.Logout{Immediate: true, Reason: iscsi.RemoveForRecovery, ITT: 900, CID: uint16(10 + i), CmdSN: c.cmdSN, ExpStatSN: c.statSN}
		l.Put(&h)
		c.send(&h, nil)
		if h, _ = c.receive(); iscsi.ParseLogoutReply(&h).Response == iscsi.LogoutClosed {
			kept++
		}
	}
	if kept != 4 {
		t.Errorf("%d connections are kept", kept)
	}
	// What waits has its place in the window: a session that leaves all of it to failed connections has none.
	d := dial(t, s, 2, "ErrorRecoveryLevel=2", "MaxConnections=2")
	d.ready()
	e := join(t, s, d, 2, 1)
	last := e.cmdSN + 127
	for i := uint32(0); int32(last-e.cmdSN) >= 0; i++ {
		e.command(write10(i, 1), nil)
		last = e.r2t().MaxCmdSN
	}
	e.nc.Close()
	d.dropped(1)
	d.cmdSN = e.cmdSN
	if d.pings() != 1 {
		t.Error("more than a ping is answered")
	}
	recoveryLogout(t, d, 1)
	d.reassign(0, 0, iscsi.FunctionComplete)
	r := d.r2t()
	if r.MaxCmdSN != e.cmdSN-1 {
		t.Errorf("%+v: the window is open for %d", r, r.MaxCmdSN-e.cmdSN+1)
	}
	d.out(iscsi.DataOut{Final: true, TTT: r.TTT}, make([]byte, 512), false)
	d.good(0)
	d.test(500, d.cmdSN) // there is room for one now
	d.good(500)
}

// TestSilentConnection: a connection that answers no ping fails, and its commands wait.
func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // an initiator that a busy machine keeps from answering is silent, too
		a, b := reassigningAt(t, servePipes(t, target.Config{Ping: 200 * time.Millisecond}, unit{size: 1 << 20}))
		b.command(write10(5, 1), nil)
		b.r2t()
		a.dropped(1)
		recoveryLogout(t, a, 1)
		a.cmdSN = b.cmdSN
		a.reassign(5, 0, iscsi.FunctionComplete)
		r := a.r2t()
		a.out(iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT}, make([]byte, 512), false)
		a.good(5)
	})
}

// TestLogoutAcknowledges: ExpStatSN in the Logout of another connection is that of the other (section 11.14.4).
func TestLogoutAcknowledges(t *testing.T) {
	_, a, b := reassigning(t, target.Config{})
	acked := b.statSN
	for itt := range uint32(3) {
		b.test(itt, b.cmdSN)
		b.good(itt)
		b.statSN = acked
	}
	a.cmdSN = b.cmdSN
	seen := a.statSN
	for itt := range uint32(8) {
		a.test(100+itt, a.cmdSN)
		a.good(100 + itt)
		a.statSN = seen
	}
	b.nc.Close()
	a.dropped(1)
	a.statSN = seen
	l := iscsi.Logout{Immediate: true, Reason: iscsi.RemoveForRecovery, ITT: 900, CID: 1, CmdSN: a.cmdSN, ExpStatSN: acked + 2}
	var h iscsi.BHS
	l.Put(&h)
	a.send(&h, nil)
	if h, _ = a.receive(); iscsi.ParseLogoutReply(&h).Response != iscsi.LogoutClosed {
		t.Fatalf("%v", h.Opcode())
	}
	a.statSN = seen
	a.snack(iscsi.SNACK{Type: iscsi.SNACKStatus, ITT: iscsi.NoTag, TTT: iscsi.NoTag, BegRun: seen, RunLength: 1})
	a.good(100) // it is still kept
	for itt, want := range []iscsi.TaskResponse{iscsi.TaskDoesNotExist, iscsi.TaskDoesNotExist, iscsi.FunctionComplete} {
		a.reassign(uint32(itt), 0, want)
		if want == iscsi.FunctionComplete {
			a.good(uint32(itt))
		}
	}
}

// TestReplacedWhileItsConnectionEnds: a session that is replaced ends at once, also if its only connection is about
// to end, so that its commands would wait for another.
func TestReplacedWhileItsConnectionEnds(t *testing.T) {
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	for range 30 {
		c := dial(t, s, 1, "ErrorRecoveryLevel=2")
		c.ready()
		c.command(write10(5, 2), nil)
		c.r2t()
		l := iscsi.Logout{Immediate: true, Reason: iscsi.RemoveForRecovery, ITT: 900, CmdSN: c.cmdSN}
		var h iscsi.BHS
		l.Put(&h)
		c.send(&h, nil) // the next login finds the session at any point of this
	}
}
