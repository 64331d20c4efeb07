package target_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi"
)

// join adds a connection to the session of c.
func join(t testing.TB, s *served, c *client, isid byte, cid uint16, keys ...string) *client {
	t.Helper()
	o, st := logIn(t, s, identity{isid: isid, tsih: c.tsih, cid: cid, cmdSN: c.cmdSN, keys: keys})
	if st != iscsi.LoginOK {
		t.Fatalf("connection %d: %#x", cid, st)
	}
	o.helpful = true
	return o
}

// pair is a session of two connections, of which the second goes on with the numbers of the first.
func pair(t *testing.T, cfg target.Config, keys ...string) (s *served, a, b *client) {
	t.Helper()
	s = serve(t, cfg, nil, unit{size: 1 << 20})
	a = dial(t, s, 1, append(keys, "MaxConnections=4")...)
	a.helpful = true
	a.ready()
	a.acknowledge()
	b = join(t, s, a, 1, 1)
	b.pings() // it is in full feature phase
	return s, a, b
}

// test is TEST UNIT READY with a CmdSN, and is answered by the status that is expected.
func (c *client) test(itt, cmdSN uint32) {
	c.cmdSN = cmdSN
	c.command(iscsi.Command{Final: true, ITT: itt}, nil)
}

func (c *client) good(itt uint32) {
	c.t.Helper()
	if r, s := c.status(); r.Status != 0 || r.ITT != itt {
		c.t.Fatalf("%+v %+v", r, s)
	}
}

// attention takes the unit attention that commands were cleared.
func (c *client) attention(itt, cmdSN uint32) {
	c.t.Helper()
	c.test(itt, cmdSN)
	if r, s := c.status(); r.Status != 2 || s.Code != scsi.ClearedByISCSI {
		c.t.Fatalf("%+v %+v", r, s)
	}
	c.acknowledge() // others are answered only then
}

func (c *client) ended() {
	c.t.Helper()
	if h, _ := c.receive(); h != (iscsi.BHS{}) {
		c.t.Fatalf("the connection goes on: %v", h.Opcode())
	}
}

func (c *client) manage(m iscsi.TaskMgmt) {
	var h iscsi.BHS
	m.Put(&h)
	c.send(&h, nil)
}

func (c *client) managed(itt uint32, want iscsi.TaskResponse) {
	c.t.Helper()
	if h, _ := c.receive(); h.Opcode() != iscsi.OpTaskResp || iscsi.ParseTaskReply(&h).Response != want || h.ITT() != itt {
		c.t.Fatalf("%v: %+v", h.Opcode(), iscsi.ParseTaskReply(&h))
	}
}

func (c *client) logout(l iscsi.Logout) uint8 {
	c.t.Helper()
	l.CmdSN, l.Immediate, l.ITT = c.cmdSN, true, 900
	var h iscsi.BHS
	l.Put(&h)
	c.send(&h, nil)
	if h, _ = c.receive(); h.Opcode() != iscsi.OpLogoutResp {
		c.t.Fatalf("%v", h.Opcode())
	}
	return iscsi.ParseLogoutReply(&h).Response
}

// dropped takes the message that a connection was dropped.
func (c *client) dropped(cid uint16) {
	c.t.Helper()
	if a := c.event(iscsi.EventConnectionDrop); a.Parameters[0] != cid {
		c.t.Fatalf("%+v", a)
	}
}

// TestConnectionsOfASession: commands come out of turn over four connections, and each is answered on
// its own, with the numbers of that.
func TestConnectionsOfASession(t *testing.T) {
	s := serve(t, target.Config{}, nil, unit{size: 1 << 20})
	a := dial(t, s, 1, "MaxConnections=9")
	if a.agreed["MaxConnections"] != "4" {
		t.Errorf("%q", a.agreed)
	}
	a.ready()
	all := []*client{a}
	for cid := range uint16(3) {
		all = append(all, join(t, s, a, 1, cid+1, "MaxRecvDataSegmentLength=512"))
	}
	for name, id := range map[iscsi.LoginStatus]identity{
		iscsi.LoginTooMany:        {isid: 1, tsih: a.tsih, cid: 4},
		iscsi.LoginNoSession:      {isid: 2, tsih: a.tsih, cid: 1},
		iscsi.LoginInitiatorError: {isid: 1, tsih: a.tsih, cid: 1, keys: []string{"MaxConnections=4"}},
	} {
		id.cmdSN = a.cmdSN
		if _, st := logIn(t, s, id); st != name {
			t.Errorf("%#x, where it should be %#x", st, name)
		}
	}
	if _, st := logIn(t, s, identity{isid: 1, tsih: a.tsih + 1, cmdSN: a.cmdSN}); st != iscsi.LoginNoSession {
		t.Errorf("%#x", st)
	}
	a.acknowledge()
	first := a.cmdSN
	for round := range uint32(8) {
		for i := range uint32(3) { // the last three come first
			c := all[i+1]
			c.cmdSN = first + 4*round + 1 + i
			c.command(iscsi.Command{Final: true, Read: true, ITT: 10 + i, EDTL: 1024, CDB: [16]byte{scsi.Read10, 8: 2}}, nil)
		}
		a.test(9, first+4*round)
		a.good(9)
		for i, c := range all[1:] {
			for sn := range uint32(2) {
				h, data := c.receive()
				d, err := iscsi.ParseDataIn(&h)
				if err != nil || d.ITT != 10+uint32(i) || d.DataSN != sn || len(data) != 512 || d.HasStatus && d.StatSN != 1+round+1 {
					t.Fatalf("%v: %+v, %d bytes", err, d, len(data))
				}
			}
		}
	}
}

// TestAllegiance: an R2T and the status go where the command came from, and a tag is in use for the
// whole session.
func TestAllegiance(t *testing.T) {
	_, a, b := pair(t, target.Config{})
	b.command(write10(5, 2), nil)
	h, _ := b.receive()
	r, err := iscsi.ParseR2T(&h)
	if err != nil {
		t.Fatal(err)
	}
	a.test(5, b.cmdSN)
	if h, _ := a.receive(); h.Opcode() != iscsi.OpReject || iscsi.ParseReject(&h).Reason != iscsi.RejectTaskInProgress {
		t.Errorf("%v", h.Opcode())
	}
	d := iscsi.DataOut{Final: true, ITT: 5, TTT: r.TTT}
	d.Put(&h)
	a.send(&h, bytes.Repeat([]byte{0xee}, 1024)) // by the wrong connection
	d.Put(&h)
	b.send(&h, bytes.Repeat([]byte{0x11}, 1024))
	b.good(5)
	a.cmdSN = b.cmdSN
	a.command(iscsi.Command{Final: true, Read: true, ITT: 6, EDTL: 1024, CDB: [16]byte{scsi.Read10, 8: 2}}, nil)
	if _, data := a.receive(); !bytes.Equal(data, bytes.Repeat([]byte{0x11}, 1024)) {
		t.Errorf("% x", data[:min(8, len(data))])
	}
}

// TestRequestsOutOfTurn: requests other than commands wait for their turn, too.
func TestRequestsOutOfTurn(t *testing.T) {
	_, a, b := pair(t, target.Config{})
	sn := a.cmdSN
	ping := iscsi.NOP{ITT: 1, TTT: iscsi.NoTag, CmdSN: sn + 1}
	text := iscsi.Text{Final: true, ITT: 2, TTT: iscsi.NoTag, CmdSN: sn + 2}
	reset := iscsi.TaskMgmt{Function: iscsi.AbortTask, ITT: 3, RefTag: 77, CmdSN: sn + 3}
	now := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTaskSet, ITT: 4, CmdSN: sn + 4}
	for i, put := range []func(*iscsi.BHS){now.Put, reset.Put, text.PutRequest, ping.PutOut} {
		var h iscsi.BHS
		put(&h)
		b.send(&h, [][]byte{nil, nil, []byte("X-a=b\x00"), []byte("ping")}[i])
	}
	var h iscsi.BHS
	alone := iscsi.NOP{Immediate: true, ITT: 9, TTT: iscsi.NoTag, CmdSN: sn}
	alone.PutOut(&h)
	b.send(&h, nil)
	if h, _ := b.receive(); h.Opcode() != iscsi.OpNOPIn || h.ITT() != 9 {
		t.Fatalf("%v %d before its turn", h.Opcode(), h.ITT())
	}
	a.test(8, sn)
	a.good(8)
	for i, want := range []iscsi.Opcode{iscsi.OpNOPIn, iscsi.OpTextResp, iscsi.OpTaskResp} {
		h, data := b.receive()
		if h.Opcode() != want || h.ITT() != uint32(i+1) || want == iscsi.OpNOPIn && string(data) != "ping" {
			t.Fatalf("%v %d %q", h.Opcode(), h.ITT(), data)
		}
	}
	a.pings() // acknowledges, too
	b.managed(4, iscsi.FunctionComplete)
}

// TestConnectionReinstatement: a connection takes the place of one of the same CID. The tasks of that
// end, others go on, and commands of it that waited for their turn may come again.
func TestConnectionReinstatement(t *testing.T) {
	s, a, b := pair(t, target.Config{})
	b.command(write10(5, 2), nil)
	b.receive() // an R2T
	sn := b.cmdSN
	b.test(6, sn+1) // never has its turn
	again := join(t, s, b, 1, 1)
	b.ended()
	again.test(6, sn+1)
	a.attention(7, sn)
	again.good(6)
	a.test(5, sn+2)
	a.good(5)

	// It may also be the only one of its session.
	only := dial(t, s, 3)
	only.ready()
	only.command(write10(5, 2), nil)
	only.receive()
	second := join(t, s, only, 3, 0)
	only.ended()
	second.attention(5, only.cmdSN)
	if _, st := logIn(t, s, identity{isid: 3, tsih: only.tsih, cid: 1, cmdSN: second.cmdSN}); st != iscsi.LoginTooMany {
		t.Errorf("%#x", st)
	}
}

// TestConnectionFails: the session goes on without it, and its initiator is told so.
func TestConnectionFails(t *testing.T) {
	s, a, b := pair(t, target.Config{})
	b.command(write10(5, 2), nil)
	b.receive()
	b.nc.Close()
	a.dropped(1)
	a.attention(7, b.cmdSN)
	a.cmdSN = b.cmdSN + 1
	c := join(t, s, a, 1, 1)
	c.test(5, a.cmdSN)
	c.good(5)
	// A format error is the end of all.
	c.nc.Write(make([]byte, 4*iscsi.BHSLen))
	c.nc.Write([]byte{byte(iscsi.OpDataIn)})
	c.nc.Write(make([]byte, iscsi.BHSLen))
	for h, _ := a.receive(); h != (iscsi.BHS{}); h, _ = a.receive() {
		if h.Opcode() == iscsi.OpAsync {
			t.Errorf("%+v", iscsi.ParseAsync(&h))
		}
	}
}

func TestLogoutOfConnections(t *testing.T) {
	s, a, b := pair(t, target.Config{})
	if r := a.logout(iscsi.Logout{Reason: iscsi.CloseConnection, CID: 7}); r != iscsi.LogoutNoCID {
		t.Errorf("%d", r)
	}
	b.command(write10(5, 2), nil)
	b.receive()
	if r := a.logout(iscsi.Logout{Reason: iscsi.CloseConnection, CID: 1}); r != iscsi.LogoutClosed {
		t.Errorf("%d", r)
	}
	b.ended()
	a.attention(6, b.cmdSN)
	a.cmdSN = b.cmdSN + 1
	c := join(t, s, a, 1, 2)
	c.command(write10(5, 2), nil)
	c.receive()
	if r := c.logout(iscsi.Logout{Reason: iscsi.CloseConnection, CID: 2}); r != iscsi.LogoutClosed {
		t.Errorf("%d", r)
	}
	c.ended()
	a.attention(6, c.cmdSN)
	a.cmdSN = c.cmdSN + 1
	d := join(t, s, a, 1, 2)
	d.test(5, a.cmdSN+1) // never has its turn
	if r := d.logout(iscsi.Logout{Reason: iscsi.CloseSession}); r != iscsi.LogoutClosed {
		t.Errorf("%d", r)
	}
	d.ended()
	a.ended()
	if _, st := logIn(t, s, identity{isid: 1, tsih: a.tsih, cid: 1}); st != iscsi.LoginNoSession {
		t.Errorf("%#x", st)
	}
}

// TestFence: the answer to a reset of the unit comes when the initiator has acknowledged what was sent
// on all connections, and what comes behind it when it has acknowledged that.
func TestFence(t *testing.T) {
	for _, reporting := range []string{"ResponseFence", "RFC3720"} {
		t.Run(reporting, func(t *testing.T) {
			_, a, b := pair(t, target.Config{}, "TaskReporting="+reporting)
			a.helpful, b.helpful = false, false
			b.test(5, a.cmdSN)
			b.good(5)
			a.cmdSN = b.cmdSN
			a.manage(iscsi.TaskMgmt{Immediate: true, Function: iscsi.LogicalUnitReset, ITT: 6, CmdSN: a.cmdSN, ExpStatSN: a.statSN})
			if h, _ := b.receive(); h.Opcode() != iscsi.OpNOPIn || h.ITT() != iscsi.NoTag {
				t.Fatalf("%v: no acknowledgement is asked for", h.Opcode())
			}
			seen := b.statSN
			b.statSN--
			b.test(7, b.cmdSN) // the unit attention, of which the answer has to wait
			if n := a.pings(); n != 1 {
				t.Errorf("%d answers before the acknowledgement", n)
			}
			b.statSN = seen
			b.acknowledge()
			a.managed(6, iscsi.FunctionComplete)
			if n := b.pings(); n != 1 {
				t.Errorf("%d answers before the acknowledgement", n)
			}
			b.helpful = true
			a.acknowledge()
			if r, s := b.status(); r.ITT != 7 || s.Code != scsi.BusDeviceReset {
				t.Errorf("%+v %+v", r, s)
			}
		})
	}
}

// pings sends a ping and counts what comes up to its answer.
func (c *client) pings() (n int) {
	c.t.Helper()
	var h iscsi.BHS
	q := iscsi.NOP{Immediate: true, ITT: 800, TTT: iscsi.NoTag, CmdSN: c.cmdSN, ExpStatSN: c.statSN}
	q.PutOut(&h)
	c.send(&h, nil)
	for {
		h, _ := c.receive()
		if h == (iscsi.BHS{}) {
			c.t.Fatal("the connection has ended")
		}
		if h.Opcode() == iscsi.OpNOPIn && h.ITT() == iscsi.NoTag {
			continue // it asks for an acknowledgement
		}
		if n++; h.Opcode() == iscsi.OpNOPIn {
			return n
		}
	}
}

// TestConnectionOfSomebodyElse: who is authenticated, but as another, is not let into a session.
func TestConnectionOfSomebodyElse(t *testing.T) {
	s := serve(t, target.Config{}, []chap.Credentials{{Name: "alice", Secret: []byte("alices secret, long")}, {Name: "bob", Secret: []byte("bobs secret, as long")}}, unit{size: 1 << 20})
	a, st := logIn(t, s, identity{isid: 1, cmdSN: 1, user: "alice", secret: "alices secret, long", keys: []string{"MaxConnections=4"}})
	if st != iscsi.LoginOK {
		t.Fatalf("%#x", st)
	}
	a.ready()
	for _, x := range []struct {
		id   identity
		want iscsi.LoginStatus
	}{
		{identity{cid: 1, user: "bob", secret: "bobs secret, as long"}, iscsi.LoginForbidden},
		{identity{cid: 0, user: "bob", secret: "bobs secret, as long"}, iscsi.LoginForbidden},
		{identity{cid: 1, user: "alice", secret: "bobs secret, as long"}, iscsi.LoginAuthFailure},
		{identity{cid: 0}, iscsi.LoginAuthFailure},
		{identity{cid: 1, user: "alice", secret: "alices secret, long"}, iscsi.LoginOK},
	} {
		x.id.isid, x.id.tsih, x.id.cmdSN = 1, a.tsih, a.cmdSN
		if _, st := logIn(t, s, x.id); st != x.want {
			t.Errorf("%+v: %#x", x.id, st)
		}
	}
}

// TestConnectionsComeAndGo: a session outlives many connections, whatever they leave behind.
func TestConnectionsComeAndGo(t *testing.T) {
	s, a, b := pair(t, target.Config{})
	b.nc.Close()
	a.dropped(1)
	for i := range uint32(200) {
		c := join(t, s, a, 1, uint16(1+i%3))
		switch i % 4 {
		case 0:
			c.command(write10(5, 2), nil)
			c.receive()
			a.cmdSN++
		case 1:
			c.test(6, a.cmdSN+1+i%50) // never has its turn
		case 2:
			c.nc.Write(make([]byte, 20))
		}
		c.nc.Close()
		a.dropped(uint16(1 + i%3))
	}
	a.attention(6, a.cmdSN)
	a.test(6, a.cmdSN)
	a.good(6)
}

// event takes an asynchronous message.
func (c *client) event(want iscsi.Event) iscsi.Async {
	c.t.Helper()
	h, _ := c.receive()
	a := iscsi.ParseAsync(&h)
	if h.Opcode() != iscsi.OpAsync || a.Event != want {
		c.t.Fatalf("%v: %+v", h.Opcode(), a)
	}
	return a
}

// TestOrderlyEnd: at the end of a server initiators are asked to log out, on each connection. Whoever
// does is answered; whoever does not is told that the session is dropped.
func TestOrderlyEnd(t *testing.T) {
	for _, polite := range []bool{true, false} {
		t.Run(fmt.Sprintf("polite=%v", polite), func(t *testing.T) {
			wait := 100 * time.Millisecond
			if polite {
				wait = time.Minute // the test's own time is shorter
			}
			s, a, b := pair(t, target.Config{LogoutWait: wait})
			over := make(chan struct{})
			go func() {
				defer close(over)
				s.stop()
			}()
			if e := a.event(iscsi.EventLogoutRequest); e.Parameters[2] != uint16((wait+time.Second-1)/time.Second) {
				t.Errorf("%+v", e)
			}
			b.event(iscsi.EventLogoutRequest)
			if polite {
				a.test(5, a.cmdSN) // what is begun may be finished
				a.good(5)
				if r := a.logout(iscsi.Logout{Reason: iscsi.CloseSession}); r != iscsi.LogoutClosed {
					t.Errorf("%d", r)
				}
			} else {
				a.event(iscsi.EventSessionDrop)
				b.event(iscsi.EventSessionDrop)
			}
			a.ended()
			b.ended()
			<-over
		})
	}
}

// TestColdReset ends all sessions of the target, and says so.
func TestColdReset(t *testing.T) {
	s, a, b := pair(t, target.Config{})
	other := dial(t, s, 2)
	other.ready()
	a.manage(iscsi.TaskMgmt{Immediate: true, Function: iscsi.TargetColdReset, ITT: 6, CmdSN: a.cmdSN, ExpStatSN: a.statSN})
	for _, c := range []*client{b, other} {
		c.event(iscsi.EventSessionDrop)
		c.ended()
	}
	h, _ := a.receive()
	if h.Opcode() == iscsi.OpTaskResp { // it need not come
		h, _ = a.receive()
	}
	if h.Opcode() != iscsi.OpAsync {
		t.Errorf("%v", h.Opcode())
	}
	dial(t, s, 1).ready()
}
