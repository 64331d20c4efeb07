package target

import (
	"io"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// nobody is a mover that moves nothing: what is sent is given back by the next Flush, and a test has data come.
type nobody struct {
	iscsi.Datamover
	upper  *conn
	queued []*iscsi.Out
	gets   []*iscsi.Get
}

func (m *nobody) SendControl(o *iscsi.Out) { m.queued = append(m.queued, o) }
func (m *nobody) PutData(o *iscsi.Out)     { m.queued = append(m.queued, o) }
func (m *nobody) Segment() int             { return iscsi.LoginDataSegment }
func (m *nobody) Wake()                    {}
func (m *nobody) ConnectionTerminate()     {}

func (m *nobody) GetData(g *iscsi.Get) {
	m.gets = append(m.gets, g)
	m.queued = append(m.queued, &g.Out)
}

func (m *nobody) DeallocateTaskResources(uint32) (placing bool) {
	m.gets = nil
	return false
}

func (m *nobody) Flush() {
	queued := m.queued
	m.queued = nil
	for _, o := range queued {
		m.upper.SentNotify(o)
	}
}

// take returns what was asked for last, whose data have come.
func (m *nobody) take() *iscsi.Get {
	g := m.gets[len(m.gets)-1]
	m.gets = m.gets[:len(m.gets)-1]
	return g
}

// counted is a medium that counts writes.
type counted struct{ writes int }

func (m *counted) Geometry() block.Geometry    { return block.Geometry{Size: 1 << 20, MinBlock: 512} }
func (m *counted) Identity() block.Identity    { return block.Identity{} }
func (m *counted) NewQueue(func()) block.Queue { return m }
func (m *counted) Close() error                { return nil }
func (m *counted) Do(op block.Op, _ []byte, _, _ int64, _ block.Flags, done block.Completion) bool {
	if op == block.OpWrite {
		m.writes++
	}
	done.Complete(0)
	return true
}

// twoConnections is a session of two connections, and its medium. The unit attention has been taken.
func twoConnections(t *testing.T) (x *session, a, b *conn, m *counted) {
	t.Helper()
	srv := NewServer(Config{})
	m = &counted{}
	u, err := lu.New(lu.Config{Medium: m})
	if err != nil {
		t.Fatal(err)
	}
	d := &lu.Device{}
	if err := d.Add(0, u); err != nil {
		t.Fatal(err)
	}
	x = &session{srv: srv, target: &Target{tally: &tally{}}, login: &iscsi.Login{Values: iscsi.DefaultValues()}, pool: &srv.pool, id: 1, window: iscsi.NewWindow(1, window),
		over: make(chan struct{}), luns: map[uint16]*lunCounters{}}
	x.change.L = &x.mu
	x.movers.Store(new([]iscsi.Datamover))
	x.port = d.Attach(lu.Initiator{Name: "iqn.x:i"}, x.flush)
	for cid := range uint16(2) {
		n := &nobody{}
		n.upper = &conn{x: x, cid: cid, login: x.login, mover: n, values: iscsi.DefaultValues(), over: make(chan struct{}), forget: make(chan struct{}), again: make(chan struct{}, 1)}
		x.conns = append(x.conns, n.upper)
		x.begin(n.upper)
	}
	a, b = x.conns[0], x.conns[1]
	a.hear(t, iscsi.Command{Final: true, CmdSN: 1, ITT: 1})
	a.acknowledge()
	return x, a, b, m
}

// acknowledge has the initiator acknowledge all that was sent.
func (c *conn) acknowledge() {
	c.x.mu.Lock()
	c.acknowledgeLocked(c.statSN)
	c.x.mu.Unlock()
	c.IdleNotify()
}

// hear has a command come.
func (c *conn) hear(t *testing.T, k iscsi.Command) {
	t.Helper()
	var h iscsi.BHS
	k.Put(&h)
	c.hearPDU(t, h)
}

func (c *conn) hearPDU(t *testing.T, h iscsi.BHS) {
	t.Helper()
	if err := c.ControlNotify(&iscsi.Incoming{BHS: h}); err != nil {
		t.Fatal(err)
	}
	c.IdleNotify()
}

// write has a WRITE come whose data are asked for.
func (c *conn) write(t *testing.T, itt, cmdSN uint32) {
	t.Helper()
	c.hear(t, iscsi.Command{Final: true, Write: true, CmdSN: cmdSN, ITT: itt, EDTL: 512, CDB: [16]byte{scsi.Write10, 8: 1}})
}

// TestAbortWhenTheDataHaveJustCome: a command whose data have come, which its connection is about to say, is aborted by
// another connection. It is not carried out, nor is what has its place by then before its own data have come.
func TestAbortWhenTheDataHaveJustCome(t *testing.T) {
	for _, again := range []bool{false, true} {
		x, a, b, m := twoConnections(t)
		a.write(t, 2, 2)
		g := a.mover.(*nobody).take()
		q := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTask, ITT: 3, RefTag: 2, CmdSN: 3, RefCmdSN: 2}
		var h iscsi.BHS
		q.Put(&h)
		b.hearPDU(t, h)
		if again {
			b.write(t, 4, 3)
		}
		a.DataCompletionNotify(g, true)
		if m.writes != 0 || x.active != btoi(again) {
			t.Errorf("%d writes, %d commands under way", m.writes, x.active)
		}
		if !again {
			b.write(t, 4, 3)
		}
		b.DataCompletionNotify(b.mover.(*nobody).take(), true)
		b.IdleNotify()
		if m.writes != 1 || x.active != 0 {
			t.Errorf("%d writes, %d commands under way", m.writes, x.active)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestTaskOfNoConnectionYet: data of aborted commands are given up while another connection has just taken a task.
func TestTaskOfNoConnectionYet(t *testing.T) {
	x, a, b, _ := twoConnections(t)
	a.write(t, 2, 2)
	n := x.port.Nexus([8]byte{})
	n.Abort(n.Of, func() {})
	x.boundWait(n)
	x.mu.Lock()
	x.tasks[0].givenUp = time.Now()
	x.mu.Unlock()
	var h iscsi.BHS
	(&iscsi.Command{Final: true}).Put(&h)
	if other, ok := b.room(&h); !ok || other.c != nil {
		t.Fatalf("%v %v", ok, other.c)
	}
	x.receiving.Lock()
	a.stopWaiting()
	x.receiving.Unlock()
	if x.active != 0 {
		t.Errorf("%d commands under way", x.active)
	}
}

// TestAnswersOfAConnectionThatEndsBehindAFence: what is kept back of a connection that ends, behind the answer of
// another one with a fence, is given back, also where its commands have waited in vain to be reassigned.
func TestAnswersOfAConnectionThatEndsBehindAFence(t *testing.T) {
	for _, retain := range []time.Duration{0, time.Millisecond} {
		answersBehindAFence(t, retain)
	}
}

func answersBehindAFence(t *testing.T, retain time.Duration) {
	x, a, b, _ := twoConnections(t)
	x.retain = retain
	b.hear(t, iscsi.Command{Final: true, CmdSN: 2, ITT: 2}) // its answer is not acknowledged
	q := iscsi.TaskMgmt{Immediate: true, Function: iscsi.ClearTaskSet, ITT: 3, CmdSN: 3}
	var h iscsi.BHS
	q.Put(&h)
	b.hearPDU(t, h)
	a.write(t, 4, 3)
	a.DataCompletionNotify(a.mover.(*nobody).take(), true)
	a.IdleNotify()
	if len(x.held) != 2 {
		t.Fatalf("%d answers wait for the fence", len(x.held))
	}
	x.leave(a, io.EOF)
	b.acknowledge() // the answer is sent
	b.acknowledge() // it has come, and the fence falls
	for _, k := range x.tasks {
		if k.state != idle {
			t.Errorf("a task of the connection that has ended is kept: %v", k.state)
		}
	}
	if x.memory != 0 || x.srv.memory.Load() != 0 || len(x.held) != 0 {
		t.Errorf("%d and %d bytes are kept, and %d answers", x.memory, x.srv.memory.Load(), len(x.held))
	}
}
