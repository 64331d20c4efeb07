package target_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/nvme/target"
	"github.com/ironwarp/ironwarp/verbs"
)

// TestConnectFaults: a Connect that is wrong gets the status for it, and the connection may try again.
func TestConnectFaults(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{Admits: func(_ target.Origin, host string) bool { return host == hostNQN }}, nil)
	good := nvme.ConnectData{HostID: id(1), Controller: nvme.DynamicController, SubsystemNQN: subsystemNQN, HostNQN: hostNQN}
	q, err := nvmetest.Dial(s.ctx, s.at, nvmetest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for what, c := range map[string]struct {
		change func(*nvme.ConnectCommand, *nvme.ConnectData)
		st     nvme.Status
		result uint64
	}{
		"another format":            {func(k *nvme.ConnectCommand, _ *nvme.ConnectData) { k.RecFmt = 1 }, nvme.ConnectFormat, 0},
		"another queue":             {func(k *nvme.ConnectCommand, _ *nvme.ConnectData) { k.QID = 1 }, nvme.ConnectInvalid, nvme.InvalidParameter(nvme.OffsetQID, false)},
		"a longer queue":            {func(k *nvme.ConnectCommand, _ *nvme.ConnectData) { k.SQSize = 32 }, nvme.ConnectInvalid, nvme.InvalidParameter(nvme.OffsetSQSize, false)},
		"a queue without entries":   {func(k *nvme.ConnectCommand, _ *nvme.ConnectData) { k.SQSize = 0 }, nvme.ConnectInvalid, nvme.InvalidParameter(nvme.OffsetSQSize, false)},
		"a static controller":       {func(_ *nvme.ConnectCommand, d *nvme.ConnectData) { d.Controller = 1 }, nvme.ConnectInvalid, nvme.InvalidParameter(nvme.OffsetController, true)},
		"no such subsystem":         {func(_ *nvme.ConnectCommand, d *nvme.ConnectData) { d.SubsystemNQN += "x" }, nvme.ConnectInvalid, nvme.InvalidParameter(nvme.OffsetSubsystem, true)},
		"no name":                   {func(_ *nvme.ConnectCommand, d *nvme.ConnectData) { d.HostNQN = "me" }, nvme.ConnectInvalid, nvme.InvalidParameter(nvme.OffsetSubsystem, true)},
		"no host identifier":        {func(_ *nvme.ConnectCommand, d *nvme.ConnectData) { d.HostID = id(0) }, nvme.ConnectInvalid, nvme.InvalidParameter(0, true)},
		"a host that is not let in": {func(_ *nvme.ConnectCommand, d *nvme.ConnectData) { d.HostNQN += "x" }, nvme.ConnectInvalidHost, nvme.InvalidParameter(nvme.OffsetHost, true)},
		"silence for two hours":     {func(k *nvme.ConnectCommand, _ *nvme.ConnectData) { k.KATO = 7200_000 }, nvme.ConnectInvalid, nvme.InvalidParameter(48, false)},
	} {
		k, d := nvme.ConnectCommand{SQSize: 31}, good
		c.change(&k, &d)
		e, err := q.Connect(s.ctx, k, d)
		want(t, what, e, err, c.st)
		if e.Result != c.result {
			t.Errorf("%s: result %#x, not %#x", what, e.Result, c.result)
		}
	}
	short := q.New(nvme.Fabrics)
	short.SetConnect(nvme.ConnectCommand{SQSize: 31})
	e, err := q.Do(s.ctx, with(short, nvme.SGL{Type: nvme.KeyedBlock, Length: nvme.ConnectDataLen - 1}))
	want(t, "a Connect without all of its data", e, err, nvme.DataLengthInvalid)
	before := q.New(nvme.AdminIdentify)
	e, err = q.Do(s.ctx, before)
	want(t, "a command before Connect", e, err, nvme.SequenceError)
	e, err = q.Connect(s.ctx, nvme.ConnectCommand{SQSize: 31}, good)
	want(t, "connect", e, err, nvme.Success)
	e, err = q.Connect(s.ctx, nvme.ConnectCommand{SQSize: 31}, good)
	want(t, "a second Connect", e, err, nvme.SequenceError)
	e, err = q.Do(s.ctx, q.New(nvme.AdminIdentify))
	want(t, "a command before the controller is enabled", e, err, nvme.SequenceError)
	if ready, err := q.Enable(s.ctx); err != nil || !ready {
		t.Fatal(ready, err)
	}
	if let, refused := s.server.Connects(subsystemNQN); let != 1 || refused != 1 {
		t.Errorf("%d have connected and %d were refused", let, refused)
	}
}

// TestConnectionWithoutAController: a connection whose host does not come to have a controller ends, also if a Connect has failed
// before it was looked at: it would keep one of the places that there are for hosts which connect.
func TestConnectionWithoutAController(t *testing.T) {
	for what, send := range map[string]func(q *nvmetest.Queue) error{
		"silence": func(*nvmetest.Queue) error { return nil },
		"a Connect without all of its data": func(q *nvmetest.Queue) error {
			c := q.New(nvme.Fabrics)
			c.SetConnect(nvme.ConnectCommand{SQSize: 31})
			return q.Send(with(c, nvme.SGL{Type: nvme.KeyedBlock, Length: nvme.ConnectDataLen - 1}))
		},
		"a Connect that is refused": func(q *nvmetest.Queue) error {
			c := q.New(nvme.Fabrics)
			c.SetConnect(nvme.ConnectCommand{SQSize: 31})
			return q.Send(append(with(c, nvme.SGL{Type: nvme.DataBlockOffset, Length: nvme.ConnectDataLen}), nvme.ConnectData{}.Append(nil)...))
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // a host that a busy machine keeps from sending is silent, too
				s := serveInMemory(t, target.Config{ConnectTime: 50 * time.Millisecond})
				q, err := nvmetest.Dial(s.ctx, s.at, nvmetest.Options{Transport: s.via})
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				if err := send(q); err != nil {
					t.Fatal(err)
				}
				select {
				case <-q.QP.Done():
				case <-time.After(20 * time.Second):
					t.Error("it does not end")
				}
			})
		})
	}
}

// TestRequestsThatAreRefused: the private data of a connection request are checked, and the reason is told.
func TestRequestsThatAreRefused(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	for what, c := range map[string]struct {
		private []byte
		why     nvme.Reject
	}{
		"too short":               {make([]byte, 31), nvme.RejectLength},
		"another format":          {nvme.ConnectRequest{RecFmt: 1, RecvQueue: 32, SendQueue: 31}.Append(nil), nvme.RejectFormat},
		"a queue beyond the last": {nvme.ConnectRequest{QID: 17, RecvQueue: 32, SendQueue: 31}.Append(nil), nvme.RejectQID},
		"a longer admin queue":    {nvme.ConnectRequest{RecvQueue: 32, SendQueue: 32}.Append(nil), nvme.RejectHSQSize},
		"a longer I/O queue":      {nvme.ConnectRequest{QID: 1, RecvQueue: 32, SendQueue: 65535}.Append(nil), nvme.RejectHSQSize},
		"no entries":              {nvme.ConnectRequest{QID: 1, RecvQueue: 32}.Append(nil), nvme.RejectHSQSize},
		"no receives":             {nvme.ConnectRequest{QID: 1, SendQueue: 31}.Append(nil), nvme.RejectHRQSize},
	} {
		_, err := nvmetest.Dial(s.ctx, s.at, nvmetest.Options{Request: c.private})
		var r *verbs.RejectedError
		if !errors.As(err, &r) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if why, err := nvme.ParseConnectReject(r.PrivateData); err != nil || why != c.why {
			t.Errorf("%s: reason %d, not %d, %v", what, why, c.why, err)
		}
	}
}

// TestQueuesOfOthers: a queue joins only a controller of its own host, in its turn, once, and only while it is enabled.
func TestQueuesOfOthers(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	h := s.host(1)
	var r *nvmetest.RefusedError
	try := func(what string, st nvme.Status, change func(*nvmetest.Host)) {
		t.Helper()
		other := *h
		change(&other)
		if q, err := other.Queue(s.ctx, 1); err == nil {
			q.Close()
			t.Errorf("%s: connected", what)
		} else if !errors.As(err, &r) || r.Completion.Status.Code() != st {
			t.Errorf("%s: %v", what, err)
		}
	}
	try("no such controller", nvme.ConnectInvalid, func(o *nvmetest.Host) { o.Controller += 7 })
	try("another host identifier", nvme.ConnectInvalid, func(o *nvmetest.Host) { o.Data.HostID = id(2) })
	try("another host NQN", nvme.ConnectInvalid, func(o *nvmetest.Host) { o.Data.HostNQN += "x" })
	try("another subsystem", nvme.ConnectInvalid, func(o *nvmetest.Host) { o.Data.SubsystemNQN += "x" })
	q := s.add(h, 1)
	try("a queue that there is", nvme.SequenceError, func(*nvmetest.Host) {})
	c := q.New(nvme.Fabrics)
	c.SetProperty(nvme.PropertyGet, nvme.Property{Offset: nvme.PropCSTS})
	e, err := q.Do(s.ctx, c)
	want(t, "a property on an I/O queue", e, err, nvme.InvalidOpcode)
	e, err = q.Do(s.ctx, q.New(nvme.AdminKeepAlive))
	want(t, "an admin command on an I/O queue", e, err, nvme.InvalidNamespace)
	c = h.Admin.New(nvme.Fabrics)
	c.SetProperty(nvme.PropertySet, nvme.Property{Offset: nvme.PropCC})
	e, err = h.Admin.Do(s.ctx, c)
	want(t, "disable", e, err, nvme.Success)
	<-q.QP.Done() // a reset ends the I/O queues
	try("a controller that is disabled", nvme.SequenceError, func(*nvmetest.Host) {})
	if ready, err := h.Admin.Enable(s.ctx); err != nil || !ready {
		t.Fatal(ready, err)
	}
	var again *nvmetest.Queue
	eventually(t, "the queue is there again", func() bool {
		again, err = h.Queue(s.ctx, 1)
		return err == nil
	})
	defer again.Close()
	c = again.New(nvme.Fabrics)
	c[4] = byte(nvme.Disconnect)
	e, err = again.Do(s.ctx, c)
	want(t, "disconnect", e, err, nvme.Success)
	<-again.QP.Done()
	h.Admin.Close()
	eventually(t, "the controller is gone with its admin queue", func() bool { return len(s.server.Controllers()) == 0 })
}

// TestOneControllerOfAHost: a host that comes again takes the place of itself, once what it had at the storage has ended;
// one that claims its identifier does not.
func TestOneControllerOfAHost(t *testing.T) {
	held := newHeld()
	s := serve(t, target.Config{}, target.Subsystem{}, held.on)
	_, q := s.queue(1)
	held.hold()
	c := rw(q, nvme.Write, 0, 8)
	c.SetSGL(nvme.SGL{Type: nvme.DataBlockOffset, Length: 4096})
	if err := q.Send(append(c, make([]byte, 4096)...)); err != nil {
		t.Fatal(err)
	}
	<-held.came
	if _, err := nvmetest.Connect(s.ctx, s.at, nil, subsystemNQN, hostNQN+"x", id(1)); err == nil || !strings.Contains(err.Error(), "invalid host") {
		t.Errorf("another host with the identifier: %v", err)
	}
	again := make(chan *nvmetest.Host, 1)
	go func() {
		h, err := nvmetest.Connect(s.ctx, s.at, nil, subsystemNQN, hostNQN, id(1))
		if err != nil {
			t.Error(err)
		}
		again <- h
	}()
	<-q.QP.Done()
	select {
	case <-again:
		t.Error("the host is connected again while a write of it is at the storage")
	case <-time.After(200 * time.Millisecond):
	}
	held.release()
	if h := <-again; h != nil {
		h.Admin.Close()
	}
}

// TestPlaces: a peer has a bounded number of controllers.
func TestPlaces(t *testing.T) {
	s := serve(t, target.Config{MaxControllers: 4}, target.Subsystem{}, nil)
	s.host(1)
	s.host(2)
	var r *nvmetest.RefusedError
	if _, err := nvmetest.Connect(s.ctx, s.at, nil, subsystemNQN, hostNQN, id(3)); !errors.As(err, &r) || r.Completion.Status.Code() != nvme.ConnectBusy {
		t.Errorf("a third controller of a peer that may have two: %v", err)
	}
}

// TestDiscoveryTakesNobodysPlace: controllers for discovery, which anybody may have who comes to the portal, are few, end in silence whatever
// their hosts ask for, and leave the places of others.
func TestDiscoveryTakesNobodysPlace(t *testing.T) {
	s := serve(t, target.Config{MaxControllers: 8, MaxOfPeer: 8}, target.Subsystem{}, nil)
	for i := range 3 {
		h, err := nvmetest.Connect(s.ctx, s.at, nil, nvme.DiscoveryNQN, hostNQN, id(byte(i+1)))
		var r *nvmetest.RefusedError
		if refused := errors.As(err, &r) && r.Completion.Status.Code() == nvme.ConnectBusy; refused != (i == 2) {
			t.Fatalf("controller %d for discovery, of which there may be 2: %v", i+1, err)
		}
		if err != nil {
			continue
		}
		defer h.Admin.Close()
		e, err := feature(s, h.Admin, nvme.FeatureKeepAlive, 0)
		want(t, "no timeout", e, err, nvme.Success)
		e, err = feature(s, h.Admin, nvme.FeatureKeepAlive)
		want(t, "the timeout", e, err, nvme.Success)
		if e.Result != 120_000 {
			t.Errorf("the timeout of discovery is %d ms, want two minutes", e.Result)
		}
	}
	for i := range 8 {
		s.host(byte(i + 1))
	}
}
