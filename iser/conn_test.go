package iser_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// upper asks for the data of each command, and gives a task up when it is told to by a TMF.
type upper struct {
	t       *testing.T
	c       *iser.Conn
	get     iscsi.Get
	sent    chan struct{} // the Get's Out has been given back
	asked   chan struct{}
	waits   chan struct{}
	aborted chan []byte // what is in the memory when a task has been given up
	whole   int
}

func (u *upper) ControlNotify(p *iscsi.Incoming) error {
	switch p.BHS.Opcode() {
	case iscsi.OpCommand:
		u.get.R2T, u.get.Remote = iscsi.R2T{ITT: p.BHS.ITT(), Length: uint32(len(u.get.Into))}, p.Remote
		u.c.GetData(&u.get)
		u.c.Flush()
		close(u.asked)
	case iscsi.OpTaskMgmt:
		close(u.waits)
		if u.c.DeallocateTaskResources(1) {
			u.t.Error("data arrive after the wait for them")
		}
		u.aborted <- bytes.Clone(u.get.Into)
	}
	return nil
}

func (u *upper) SentNotify(o *iscsi.Out)               { close(u.sent) }
func (u *upper) DataCompletionNotify(*iscsi.Get, bool) { u.whole++ }
func (u *upper) DigestNotify(*iscsi.BHS)               {}
func (u *upper) IdleNotify()                           { u.c.Flush() }

// connected returns a connection in full feature phase that does not run yet, its initiator, and what is between them.
func connected(t *testing.T) (*iser.Conn, *isertest.Initiator, *isertest.Proxy) {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	ulp, err := dev.NewULP("target", verbs.ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := dev.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := isertest.NewProxy(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	conns := make(chan *iser.Conn, 1)
	go func() {
		defer close(conns)
		r, err := ln.Accept(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		c, err := iser.Accept(t.Context(), r, iser.Config{ULP: ulp, Commands: 4, Unexpected: 2})
		if err != nil {
			t.Error(err)
			return
		}
		conns <- c
	}()
	i, err := isertest.New(isertest.Options{IRD: 2, Receives: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	if err := i.Dial(t.Context(), netip.MustParseAddrPort(p.Address)); err != nil {
		t.Fatal(err)
	}
	c := <-conns
	if c == nil {
		t.FailNow()
	}
	t.Cleanup(func() { c.Close() })
	var h iscsi.BHS
	q := iscsi.LoginRequest{Transit: true, CSG: iscsi.Operational, NSG: iscsi.FullFeature}
	q.Put(&h)
	if err := i.Send(iser.Header{}, &h, nil); err != nil {
		t.Fatal(err)
	}
	if h, _, err := c.ReadPDU(); err != nil || h.Opcode() != iscsi.OpLogin {
		t.Fatalf("%v %v", h.Opcode(), err)
	}
	v := iscsi.DefaultValues()
	v[iscsi.KeyRDMAExtensions] = 1
	if err := c.NoticeKeyValues(&v, iser.Segment); err != nil || c.Segment() != 128 {
		t.Fatalf("%d %v", c.Segment(), err)
	}
	return c, i, p
}

// TestFlushBeforeRun: another connection of the session may want that sent which is queued for one that does not
// run yet. It waits.
func TestFlushBeforeRun(t *testing.T) {
	c, i, _ := connected(t)
	var o iscsi.Out
	n := iscsi.NOP{ITT: 3, TTT: iscsi.NoTag}
	n.PutIn(&o.BHS)
	c.SendControl(&o)
	c.Flush()
	u := &upper{t: t, c: c, sent: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(u) }()
	if m, _, err := i.Receive(t.Context()); err != nil || m.BHS.Opcode() != iscsi.OpNOPIn || m.BHS.ITT() != 3 {
		t.Errorf("%+v, %v", m, err)
	}
	<-u.sent
	c.ConnectionTerminate()
	<-ended
}

// TestATaskIsGivenUpWhenItsReadHasSettled: until then, the initiator's memory is being read, and what is read
// goes to memory that belongs to the task (RFC 7145 section 3.1.9).
func TestATaskIsGivenUpWhenItsReadHasSettled(t *testing.T) {
	c, i, p := connected(t)
	u := &upper{t: t, c: c, sent: make(chan struct{}), asked: make(chan struct{}), waits: make(chan struct{}), aborted: make(chan []byte, 1)}
	u.get.Into = make([]byte, 64)
	memory, err := c.Register(u.get.Into)
	if err != nil {
		t.Fatal(err)
	}
	u.get.Memory = memory
	defer c.Deregister(u.get.Memory)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(u) }()

	content := bytes.Repeat([]byte{5}, 64)
	mr, err := i.Memory(bytes.Clone(content), verbs.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	p.Hold(isertest.Down)
	k := iscsi.Command{Final: true, Write: true, ITT: 1, EDTL: 64}
	var h iscsi.BHS
	k.Put(&h)
	i.Send(iser.Header{Write: true, WriteTag: mr.STag()}, &h, nil)
	<-u.asked
	p.AwaitHeld(isertest.Down)
	m := iscsi.TaskMgmt{Immediate: true, Function: iscsi.AbortTask, ITT: 2, RefTag: 1}
	m.Put(&h)
	i.Send(iser.Header{}, &h, nil)
	<-u.waits
	p.Release(isertest.Down)
	if got := <-u.aborted; !bytes.Equal(got, content) {
		t.Errorf("the task is given up before its data have come: %x", got)
	}
	<-u.sent
	c.ConnectionTerminate()
	<-ended
	if u.whole != 0 {
		t.Error("a Get that was given up is announced")
	}
}
