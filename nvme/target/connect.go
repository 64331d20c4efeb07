package target

import (
	"errors"
	"time"

	"github.com/ironwarp/ironwarp/nvme"
)

// fabrics runs a fabrics command.
func (k *command) fabrics(ctrl *controller) {
	admin := k.c.asked.QID == 0
	switch t := k.cmd.FabricsType(); {
	case t == nvme.Connect && ctrl == nil && k.startJoining():
		k.take(nvme.ConnectDataLen, (*command).connect)
	case ctrl == nil, t == nvme.Connect:
		k.fail(nvme.SequenceError | nvme.DNR)
	case t == nvme.PropertyGet && admin:
		k.propertyGet(ctrl)
	case t == nvme.PropertySet && admin:
		k.propertySet(ctrl)
	case t == nvme.Disconnect && !admin && k.cmd.Connect().RecFmt == 0:
		c := k.c
		k.end(nvme.Success)
		c.flush()
		go c.qp.Close() // what is posted is sent first
	default:
		k.fail(nvme.InvalidOpcode | nvme.DNR)
	}
}

// startJoining reports whether a Connect may begin: there is one at a time.
func (k *command) startJoining() bool {
	c := k.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joining {
		return false
	}
	k.joins, c.joining = true, true
	return true
}

// refusal is how a Connect fails.
type refusal struct {
	status nvme.Status
	result uint64
	why    string
}

func (r *refusal) Error() string { return r.status.String() + ": " + r.why }

func badParameter(offset int, inData bool, why string) *refusal {
	return &refusal{nvme.ConnectInvalid | nvme.DNR, nvme.InvalidParameter(offset, inData), why}
}

// connect runs a Connect (NVMe-oF 3.3). It may have to wait for the end of a controller.
func (k *command) connect() {
	q := k.cmd.Connect()
	d, err := nvme.ParseConnectData(k.buf)
	go func() {
		c := k.c
		var ctrl *controller
		if err != nil {
			err = badParameter(nvme.OffsetSubsystem, true, err.Error())
		} else {
			ctrl, err = c.srv.connect(c, q, d)
		}
		var r *refusal
		if errors.As(err, &r) {
			c.srv.log.Info("nvme: connect refused", "address", c.origin.Remote, "peer", c.origin.Peer, "host", d.HostNQN, "subsystem", d.SubsystemNQN, "queue", q.QID, "error", err)
			k.result = r.result
			k.endLater(r.status)
			return
		}
		k.result = uint64(ctrl.id)
		k.endLater(nvme.Success)
	}()
}

// connect makes a connection a queue of a controller, which it makes for an admin queue. It fails with a *refusal.
func (s *Server) connect(c *conn, q nvme.ConnectCommand, d nvme.ConnectData) (*controller, error) {
	switch {
	case q.RecFmt != 0:
		return nil, &refusal{nvme.ConnectFormat | nvme.DNR, 0, "another format"}
	case q.QID != c.asked.QID:
		return nil, badParameter(nvme.OffsetQID, false, "another queue than that of the connection")
	case int(q.SQSize)+1 < leastDepth || int(q.SQSize)+1 > c.depth:
		return nil, badParameter(nvme.OffsetSQSize, false, "another length than that of the connection")
	case q.QID == 0:
		return s.connectAdmin(c, q, d)
	}
	return s.connectIO(c, q, d)
}

// connectAdmin makes a controller.
func (s *Server) connectAdmin(c *conn, q nvme.ConnectCommand, d nvme.ConnectData) (*controller, error) {
	if d.Controller != nvme.DynamicController {
		return nil, badParameter(nvme.OffsetController, true, "controllers are dynamic here")
	}
	x := newController(s, c, d)
	if q.KATO > maxKeepAlive {
		return nil, &refusal{nvme.ConnectInvalid | nvme.DNR, nvme.InvalidParameter(48, false), "the keep alive timeout is too long"}
	}
	if d.SubsystemNQN != nvme.DiscoveryNQN {
		s.mu.Lock()
		x.sub = s.subsystems[d.SubsystemNQN]
		s.mu.Unlock()
		switch {
		case d.HostID.IsZero():
			return nil, badParameter(0, true, "no host identifier")
		case x.sub == nil:
			return nil, badParameter(nvme.OffsetSubsystem, true, "there is no such subsystem")
		case !x.sub.visible(c.origin, d.HostNQN):
			x.sub.denied.Add(1)
			return nil, &refusal{nvme.ConnectInvalidHost | nvme.DNR, nvme.InvalidParameter(nvme.OffsetHost, true), "the host is not allowed"}
		}
	}
	late := time.NewTimer(replaceTime)
	defer late.Stop()
	for {
		s.mu.Lock()
		old, r := s.oldLocked(x)
		if r == nil && old == nil {
			r = s.enterLocked(x)
		}
		if old == nil {
			s.mu.Unlock()
			if r != nil {
				return nil, r
			}
			break
		}
		s.mu.Unlock()
		old.end(errReplaced)
		select {
		case <-old.over:
		case <-late.C:
			return nil, &refusal{nvme.ConnectBusy, 0, "what the controller before has at its storage does not end"}
		}
	}
	return s.join(x, c, q)
}

// join makes a connection the admin queue of a controller that has a number, and that others may have ended since. It fails with a *refusal.
func (s *Server) join(x *controller, c *conn, q nvme.ConnectCommand) (*controller, error) {
	if x.add(c, q) != nvme.Success {
		x.end(errGone)
		return nil, &refusal{nvme.ConnectBusy, 0, "the controller was ended meanwhile, or the connection is over"}
	}
	s.pendingEnded(c.origin)
	x.setKeepAlive(q.KATO)
	if x.sub != nil {
		x.sub.logins.Add(1)
	}
	s.log.Info("nvme: host connected", "address", c.origin.Remote, "peer", c.origin.Peer, "host", x.host.HostNQN, "subsystem", x.host.SubsystemNQN, "controller", x.id, "keep_alive", x.keepAlive())
	return x, nil
}

// oldLocked is the controller that the host of another one has in its subsystem. It fails if that is to stay.
func (s *Server) oldLocked(x *controller) (*controller, *refusal) {
	if x.sub == nil {
		return nil, nil
	}
	for _, o := range s.controllers {
		switch {
		case o.sub != x.sub || o.host.HostID != x.host.HostID:
		case !o.isOf(x.origin, x.host):
			return nil, &refusal{nvme.ConnectInvalidHost | nvme.DNR, nvme.InvalidParameter(0, true), "another host has a controller with this host identifier"}
		case o.origin.Local != x.origin.Local || o.origin.Remote.Addr() != x.origin.Remote.Addr():
			return nil, &refusal{nvme.ConnectBusy, 0, "the host has a controller in the subsystem by another way"}
		default:
			return o, nil
		}
	}
	return nil, nil
}

// enterLocked gives a controller a number. Discovery, which anybody may ask for who comes to a portal, has places of its own, a quarter as
// many.
func (s *Server) enterLocked(x *controller) *refusal {
	all, mine, places := 0, 0, 1
	if x.sub == nil {
		places = 4
	}
	for _, o := range s.controllers {
		if (o.sub == nil) != (x.sub == nil) {
			continue
		}
		all += places
		if o.origin.principal() == x.origin.principal() {
			mine += places
		}
	}
	switch {
	case s.noController(all, mine):
		return &refusal{nvme.ConnectBusy, 0, "there are as many controllers as there may be"}
	case x.sub != nil && s.subsystems[x.host.SubsystemNQN] != x.sub:
		return badParameter(nvme.OffsetSubsystem, true, "the subsystem has been removed")
	}
	for s.last++; s.last == 0 || s.last >= 0xfff0 || s.controllers[s.last] != nil; s.last++ {
	}
	x.id = s.last
	s.controllers[x.id] = x
	return nil
}

// connectIO adds a queue to a controller.
func (s *Server) connectIO(c *conn, q nvme.ConnectCommand, d nvme.ConnectData) (*controller, error) {
	s.mu.Lock()
	x := s.controllers[d.Controller]
	s.mu.Unlock()
	switch {
	case x == nil || x.sub == nil || !x.isOf(c.origin, d):
		return nil, badParameter(nvme.OffsetController, true, "the host has no such controller")
	case !x.isReady():
		return nil, &refusal{nvme.SequenceError | nvme.DNR, 0, "the controller is not enabled"}
	case int(q.QID) > maxQueues:
		return nil, badParameter(nvme.OffsetQID, false, "there are not so many queues")
	}
	if st := x.add(c, q); st != nvme.Success {
		return nil, &refusal{st, 0, "the queue exists, or one from before a reset has not come to its end, or the controller has"}
	}
	s.pendingEnded(c.origin)
	return x, nil
}

// belong notes whose queue the connection is. It returns false if it is over.
func (c *conn) belong(x *controller, q nvme.ConnectCommand) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return false
	}
	c.ctrl, c.entries, c.noFlow = x, q.SQSize+1, q.NoFlowControl
	return true
}
