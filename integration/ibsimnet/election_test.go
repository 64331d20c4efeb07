package ibsimnet

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/manager"
)

// ours is IronWarp's part in an election, at a node of ibsim's network, with opensm at another.
type ours struct {
	c      *Client
	opensm agent.Requester
	path   [mad.SMPPathLen]uint8 // to opensm's node
	asked  map[uint32]uint64     // the manager's transactions, by the client's

	mu     sync.Mutex // guards the fields below it
	m      *manager.Manager
	events []manager.Event
	gone   bool
}

// electionInterval is between two polls of either manager.
const electionInterval = 300 * time.Millisecond

// electionOptions are opensm's.
const electionOptions = "sminfo_polling_timeout 300\npolling_retry_number 2\nsweep_on_trap FALSE\n"

// startOurs starts a manager at a node that is the second of a network, with opensm's the first.
func startOurs(t *testing.T, socket, node string, priority uint8, key mad.Key) *ours {
	t.Helper()
	o := &ours{c: client(t, socket, node), asked: map[uint32]uint64{}}
	// Out of the node's port 1, and of the switch's port 1.
	o.path[1], o.path[2] = 1, 1
	isSM := control{kind: controlSetIsSM, length: 4}
	binary.NativeEndian.PutUint32(isSM.data[:], 1)
	if err := o.c.control(t.Context(), &isSM); err != nil {
		t.Fatal(err)
	}
	o.opensm = agent.Requester{Name: "opensm", Manager: true, GUID: o.portGUID(t, 2)}
	options := conf.Default().Options
	options.SMPriority, options.SMInfoPollingTimeout, options.PollingRetryNumber = priority, electionInterval, 2
	var err error
	o.m, err = manager.New(manager.Config{
		GUID: o.portGUID(t, 0), Options: options, Keys: conf.NewKeys(0, key, 0), Managers: []manager.Peer{{Name: "opensm", GUID: o.opensm.GUID}},
		Event: func(e manager.Event) { o.events = append(o.events, e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { o.receive(ctx) })
	all.Go(func() {
		ticker := time.NewTicker(electionInterval / 10)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				o.mu.Lock()
				if !o.gone {
					o.send(ctx, o.m.Tick(now))
				}
				o.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { stop(); all.Wait() })
	return o
}

// directed sends an SMP along the path's first hops.
func (o *ours) directed(s *mad.SMP, hops uint8) {
	s.Class, s.SLID, s.DLID, s.InitialPath = mad.ClassSubnDirected, mad.LIDPermissive, mad.LIDPermissive, o.path
	s.SetHops(0, hops)
}

// portGUID asks a node that is so many hops away.
func (o *ours) portGUID(t *testing.T, hops uint8) mad.GUID {
	t.Helper()
	s := mad.SMP{Header: mad.Header{ClassVersion: mad.SMPClassVersion, Method: mad.MethodGet, Attribute: mad.AttrNodeInfo}}
	o.directed(&s, hops)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := o.c.Send(ctx, mad.LIDPermissive, 0, s.MAD()); err != nil {
		t.Fatal(err)
	}
	for {
		m, _, _, err := o.c.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := mad.ParseSMP(&m); err == nil && a.Attribute == mad.AttrNodeInfo && a.Method == mad.MethodGetResp {
			info, err := mad.ParseNodeInfo(a.Data[:mad.NodeInfoLen])
			if err != nil {
				t.Fatal(err)
			}
			return info.PortGUID
		}
	}
}

func (o *ours) send(ctx context.Context, out []manager.Outgoing) {
	for _, p := range out {
		o.directed(&p.SMP, 2)
		if id, err := o.c.Send(ctx, mad.LIDPermissive, 0, p.SMP.MAD()); err == nil {
			o.asked[id] = p.SMP.TransactionID
		}
	}
}

// receive gives the manager what arrives, until ctx ends.
func (o *ours) receive(ctx context.Context) {
	for ctx.Err() == nil {
		m, _, id, err := o.c.Receive(ctx)
		if err != nil {
			continue // nobody is there
		}
		s, err := mad.ParseSMP(&m)
		if err != nil || s.Attribute != mad.AttrSMInfo {
			continue
		}
		o.mu.Lock()
		switch {
		case s.Method.Response():
			s.TransactionID = o.asked[id]
			delete(o.asked, id)
			s.Status &^= 0x8000 // the direction
			o.send(ctx, o.m.Receive(o.opensm, &s))
		default:
			a := o.m.ServeSMInfo(o.opensm, &s, true)
			if o.gone {
				// As the agent of a host without a manager. Without any answer, opensm with libumad2sim waits forever.
				refused := s.Answer(mad.StatusUnsupportedAttribute)
				a = &refused
			}
			if a != nil {
				p := packet{dlid: mad.LIDPermissive, slid: mad.LIDPermissive, length: mad.MADLen, mad: a.MAD()}
				o.c.data.WriteToUnix(p.append(nil), o.c.out)
			}
		}
		o.mu.Unlock()
	}
}

func (o *ours) state() mad.SMState {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.m.State()
}

// end is the end of the manager.
func (o *ours) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = true
}

// rival returns the first report of a rival.
func (o *ours) rival() (e manager.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		if e.Kind == manager.Rival {
			return e
		}
	}
	return e
}

// IronWarp's manager and opensm agree on a master, by each other's SMInfo.
func TestElectionWithOpenSM(t *testing.T) {
	const key mad.Key = 0x2222222222222222
	opensmWith := func(key mad.Key, priority int) string {
		return fmt.Sprintf("%ssm_key %#016x\nsm_priority %d\n", electionOptions, uint64(key), priority)
	}
	t.Run("ours is higher", func(t *testing.T) {
		t.Attr("row", "opensm stands by for IronWarp's manager, and takes over when that is gone")
		name := startNetwork(t, "opensm", "ours")
		o := startOurs(t, name, "ours", 14, key)
		until(t, "ours is the master", func() bool { return o.state() == mad.SMMaster })
		_, log := startOpenSM(t, name, "opensm", opensmWith(key, 3))
		until(t, "opensm stands by", func() bool { return logged(log, "Entering STANDBY state") })
		until(t, "ours hears that", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			v := o.m.Managers()[1]
			return v.Heard && v.State == mad.SMStandby && v.Priority == 3
		})
		if o.state() != mad.SMMaster || logged(log, "Entering MASTER state") {
			t.Errorf("ours is %s", o.state())
		}
		o.end()
		until(t, "opensm takes over", func() bool { return logged(log, "Entering MASTER state") })
	})
	t.Run("opensm is higher and there first", func(t *testing.T) {
		t.Attr("row", "IronWarp's manager stands by for opensm, and takes over when that is gone")
		name := startNetwork(t, "opensm", "ours")
		p, log := startOpenSM(t, name, "opensm", opensmWith(key, 14))
		until(t, "opensm is the master", func() bool { return logged(log, "SUBNET UP") })
		o := startOurs(t, name, "ours", 3, key)
		until(t, "ours stands by", func() bool { return o.state() == mad.SMStandby })
		p.Stop()
		until(t, "ours takes over", func() bool { return o.state() == mad.SMMaster })
	})
	t.Run("opensm is higher and comes later", func(t *testing.T) {
		t.Attr("row", "IronWarp's manager hands over to opensm")
		name := startNetwork(t, "opensm", "ours")
		o := startOurs(t, name, "ours", 3, key)
		until(t, "ours is the master", func() bool { return o.state() == mad.SMMaster })
		_, log := startOpenSM(t, name, "opensm", opensmWith(key, 14))
		until(t, "opensm has taken over", func() bool { return logged(log, "Entering MASTER state") })
		if !logged(log, "Entering STANDBY state") {
			t.Error("opensm did not wait for the handover")
		}
		until(t, "ours stands by", func() bool { return o.state() == mad.SMStandby })
	})
	t.Run("another sm_key", func(t *testing.T) {
		t.Attr("row", "opensm and IronWarp's manager with different SM_Keys report each other in the same words and are both masters")
		const theirs mad.Key = 0x4444444444444444
		name := startNetwork(t, "opensm", "ours")
		o := startOurs(t, name, "ours", 3, key)
		until(t, "ours is the master", func() bool { return o.state() == mad.SMMaster })
		_, log := startOpenSM(t, name, "opensm", opensmWith(theirs, 14))
		until(t, "opensm reports ours", func() bool {
			return logged(log, "with sm_key 0x2222222222222222 that doesn't match our local sm_key. Ignoring SMInfo")
		})
		until(t, "opensm is the master", func() bool { return logged(log, "Entering MASTER state") })
		until(t, "ours reports opensm", func() bool { return o.rival().Number > 0 })
		if e := o.rival(); !strings.Contains(e.Text, "with sm_key 0x4444444444444444 that doesn't match our local sm_key. Ignoring SMInfo.") || o.state() != mad.SMMaster {
			t.Errorf("%s; ours is %s", e.Text, o.state())
		}
	})
}
