package manager

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// quiet is a network without losses, of managers that all have the key 7.
func quiet(t *testing.T, retries int, priorities ...uint8) *network {
	t.Helper()
	return newNetwork(t.Fatal, nil, priorities, slices.Repeat([]mad.Key{7}, len(priorities)), retries)
}

func (n *network) states() (s []mad.SMState) {
	for _, h := range n.hosts {
		s = append(s, h.m.State())
	}
	return s
}

// masters is the number of managers that work and are the master.
func (n *network) masters() (count int) {
	for _, h := range n.hosts {
		if h.m.State() == mad.SMMaster && !h.hangs {
			count++
		}
	}
	return count
}

func TestHighestBecomesMasterWithoutDelay(t *testing.T) {
	for _, tc := range []struct {
		priorities []uint8
		master     int
	}{{[]uint8{0}, 0}, {[]uint8{0, 0}, 0}, {[]uint8{0, 1}, 1}, {[]uint8{3, 15, 15, 2}, 1}} {
		n := quiet(t, 4, tc.priorities...)
		n.each = func() {
			if n.masters() > 1 {
				t.Errorf("%v: %v", tc.priorities, n.states())
			}
		}
		n.run(answerTime) // all have answered
		if n.hosts[tc.master].m.State() != mad.SMMaster || n.settled() == nil != (len(tc.priorities) == 1) && n.masters() != 1 {
			t.Errorf("%v: %v", tc.priorities, n.states())
		}
		n.run(testInterval)
		if err := n.settled(); err != nil {
			t.Error(err)
		}
	}
}

// A manager that is down holds nobody up but for the time of discovery.
func TestStartWithoutAnother(t *testing.T) {
	n := quiet(t, 4, 1, 0)
	n.hosts[0].hangs = true
	n.run(discoverPolls*discoverInterval - time.Millisecond)
	if s := n.hosts[1].m.State(); s != mad.SMDiscovering {
		t.Errorf("%s", s)
	}
	n.run(2 * time.Millisecond)
	if s := n.hosts[1].m.State(); s != mad.SMMaster {
		t.Errorf("%s", s)
	}
}

// When the master falls silent, the next one takes over after the polls that may miss, and not before.
func TestTakeOver(t *testing.T) {
	for retries := range 4 {
		n := quiet(t, retries, 2, 1, 0)
		n.run(2 * testInterval)
		n.hosts[0].hangs = true
		n.run(time.Duration(retries) * testInterval)
		if s := n.states(); s[1] != mad.SMStandby || s[2] != mad.SMStandby {
			t.Errorf("%d retries: too soon: %v", retries, s)
		}
		n.run(2*testInterval + discoverPolls*discoverInterval)
		if s := n.states(); s[1] != mad.SMMaster || s[2] != mad.SMStandby {
			t.Errorf("%d retries: %v", retries, s)
		}
		if views := n.hosts[2].m.Managers(); views[1].Heard || !views[2].Heard || views[2].State != mad.SMMaster || !views[0].Self || views[2].ActCount == 0 {
			t.Errorf("%+v", views)
		}
		// It comes back with what it believed.
		n.hosts[0].hangs = false
		n.run(2 * testInterval)
		if err := n.settled(); err != nil {
			t.Error(err)
		}
	}
}

// When a higher manager comes, the master hands over: there is one at each moment, and two only while the
// answer to the HANDOVER is under way.
func TestHandover(t *testing.T) {
	n := quiet(t, 4, 2, 1, 0)
	n.hosts[0].hangs = true
	n.run(2 * testInterval)
	if n.hosts[1].m.State() != mad.SMMaster {
		t.Fatal(n.states())
	}
	n.restart(0)
	var two time.Duration
	last, was := n.now, 1
	n.each = func() {
		if was == 2 {
			two += n.now.Sub(last)
		}
		last, was = n.now, n.masters()
		if was < 1 || was > 2 || was == 2 && n.hosts[2].m.State() == mad.SMMaster {
			t.Errorf("%v", n.states())
		}
		if master, ok := n.hosts[1].m.Master(); n.hosts[1].m.State() == mad.SMStandby && (!ok || master != guid(0)) {
			t.Error("who has handed over does not know to whom")
		}
	}
	n.run(2 * testInterval)
	if err := n.settled(); err != nil || two > answerTime {
		t.Errorf("%v; two masters for %s", err, two)
	}
}

// call is a request to a manager, or an answer.
type call struct {
	m      *Manager
	events []Event
	now    time.Time
}

var (
	beta     = agent.Requester{Name: "beta", GUID: 0xb, LID: 11, Manager: true}
	impostor = agent.Requester{Name: "beta", GUID: 0xb, LID: 11}
	stranger = agent.Requester{Name: "gamma", GUID: 0xc, LID: 12}
)

const (
	ourKey   mad.Key = 0x7122334455667788
	rivalKey mad.Key = 0x6122334455667788
	ourM     mad.Key = 0x5122334455667788
)

func newCall(t *testing.T) *call {
	t.Helper()
	c := &call{now: time.Unix(1_000_000, 0)}
	config := Config{
		GUID: 0xa, Keys: conf.NewKeys(ourM, ourKey, 0), Managers: []Peer{{Name: "beta", GUID: 0xb, LID: 11}}, Options: conf.Default().Options,
		PortKey: func(g mad.GUID) (mad.Key, bool) { return mad.Key(g) << 32, g == 0xb },
		Event:   func(e Event) { c.events = append(c.events, e) },
	}
	var err error
	if c.m, err = New(config); err != nil {
		t.Fatal(err)
	}
	return c
}

func sminfo(i mad.SMInfo) (data [mad.SMPDataLen]byte) {
	copy(data[:], i.Append(nil))
	return data
}

// poll has the manager ask, and returns the question.
func (c *call) poll(t *testing.T) mad.SMP {
	t.Helper()
	if next := c.m.Next(); next.After(c.now) {
		c.now = next
	}
	out := c.m.Tick(c.now)
	if len(out) == 0 || out[len(out)-1].To != 0xb || out[len(out)-1].SMP.Method != mad.MethodGet {
		t.Fatalf("%d SMPs", len(out))
	}
	return out[len(out)-1].SMP
}

// answer has a manager answer a question with info.
func (c *call) answer(t *testing.T, from agent.Requester, question mad.SMP, info mad.SMInfo) {
	t.Helper()
	a := question.Answer(mad.StatusOK)
	a.Data = sminfo(info)
	c.m.Receive(from, &a)
}

func (c *call) set(from agent.Requester, known bool, modifier uint32, info mad.SMInfo) *mad.SMP {
	return c.m.ServeSMInfo(from, &mad.SMP{Data: sminfo(info), Header: mad.Header{
		Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodSet, Attribute: mad.AttrSMInfo, Modifier: modifier,
	}}, known)
}

func (c *call) lastEvent() (e Event) {
	if len(c.events) > 0 {
		e = c.events[len(c.events)-1]
	}
	return e
}

// standby is a manager that stands by for beta.
func standby(t *testing.T) *call {
	t.Helper()
	c := newCall(t)
	c.answer(t, beta, c.poll(t), mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster})
	if master, ok := c.m.Master(); c.m.State() != mad.SMStandby || !ok || master != 0xb {
		t.Fatal(c.m.State(), master)
	}
	return c
}

// The question to another manager has the M_Key of that one's port and nothing else of ours.
func TestQuestion(t *testing.T) {
	c := newCall(t)
	q := c.poll(t)
	if q.MKey != 0xb<<32 || q.Data != [64]byte{} || q.Attribute != mad.AttrSMInfo || q.Class != mad.ClassSubn || q.ClassVersion != 1 {
		t.Errorf("%+v", q)
	}
	if c.m.Tick(c.m.Next().Add(-1)) != nil {
		t.Error("it asks too soon")
	}
}

// What other managers tell this one to do (IBTA 14.4.3): from the master, and where the state allows it.
func TestOrdersOfOtherManagers(t *testing.T) {
	master := mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster}
	sb := master
	sb.State = mad.SMStandby
	ready := func(to mad.SMState) func(*testing.T) *call {
		return func(t *testing.T) *call {
			c := newCall(t)
			if to == mad.SMDiscovering {
				return c
			}
			if to == mad.SMMaster {
				for c.m.State() != mad.SMMaster {
					c.poll(t)
				}
				return c
			}
			c = standby(t)
			if to == mad.SMNotActive {
				c.set(beta, true, mad.SMDisable, master)
			}
			return c
		}
	}
	for _, tc := range []struct {
		from     mad.SMState
		modifier uint32
		by       mad.SMInfo
		to       mad.SMState
		taken    bool
	}{
		{mad.SMStandby, mad.SMHandover, master, mad.SMMaster, true},
		{mad.SMStandby, mad.SMHandover, sb, mad.SMStandby, false},
		{mad.SMMaster, mad.SMHandover, master, mad.SMMaster, true},
		{mad.SMDiscovering, mad.SMHandover, master, mad.SMDiscovering, true},
		{mad.SMNotActive, mad.SMHandover, master, mad.SMNotActive, false},
		{mad.SMStandby, mad.SMDisable, master, mad.SMNotActive, true},
		{mad.SMStandby, mad.SMDisable, sb, mad.SMStandby, false},
		{mad.SMMaster, mad.SMDisable, master, mad.SMMaster, false},
		{mad.SMDiscovering, mad.SMDisable, master, mad.SMDiscovering, false},
		{mad.SMNotActive, mad.SMToStandby, master, mad.SMStandby, true},
		{mad.SMNotActive, mad.SMToStandby, sb, mad.SMNotActive, false},
		{mad.SMMaster, mad.SMToStandby, master, mad.SMMaster, false},
		{mad.SMStandby, mad.SMDiscover, master, mad.SMDiscovering, true},
		{mad.SMStandby, mad.SMDiscover, sb, mad.SMStandby, false},
		{mad.SMMaster, mad.SMDiscover, master, mad.SMMaster, false},
		{mad.SMStandby, mad.SMAcknowledge, sb, mad.SMStandby, true},
		{mad.SMStandby, mad.SMAcknowledge, master, mad.SMStandby, false},
		{mad.SMStandby, 0, master, mad.SMStandby, false},
		{mad.SMStandby, 6, master, mad.SMStandby, false},
	} {
		t.Run(fmt.Sprintf("%s told %d by %s", tc.from, tc.modifier, tc.by.State), func(t *testing.T) {
			// Not by who has no M_Key, is no manager, has another sm_key, or speaks for another.
			other := tc.by
			other.SMKey = rivalKey
			elsewhere := tc.by
			elsewhere.GUID = 0xd
			for _, refused := range []func(*call) *mad.SMP{
				func(c *call) *mad.SMP { return c.set(beta, false, tc.modifier, tc.by) },
				func(c *call) *mad.SMP { return c.set(impostor, true, tc.modifier, tc.by) },
				func(c *call) *mad.SMP { return c.set(stranger, true, tc.modifier, tc.by) },
				func(c *call) *mad.SMP { return c.set(beta, true, tc.modifier, other) },
				func(c *call) *mad.SMP { return c.set(beta, true, tc.modifier, elsewhere) },
			} {
				c := ready(tc.from)(t)
				if a := refused(c); a != nil || c.m.State() != tc.from {
					t.Errorf("taken, and now %s", c.m.State())
				}
			}
			c := ready(tc.from)(t)
			a := c.set(beta, true, tc.modifier, tc.by)
			if a == nil || (a.Status == mad.StatusOK) != tc.taken || c.m.State() != tc.to {
				t.Fatalf("%+v, now %s", a, c.m.State())
			}
			if info, err := mad.ParseSMInfo(a.Data[:mad.SMInfoLen]); err != nil || info.GUID != 0xa || info.State != tc.to {
				t.Errorf("%+v", info)
			}
		})
	}
}

// The manager hands over to a higher one that can be the master, and stays the master until that has taken it.
func TestHandoverIsAnswered(t *testing.T) {
	for state, hands := range map[mad.SMState]bool{mad.SMNotActive: false, mad.SMDiscovering: false, mad.SMStandby: true, mad.SMMaster: true} {
		c := newCall(t)
		for c.m.State() != mad.SMMaster {
			c.poll(t)
		}
		info := mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: state, Priority: 1}
		q := c.poll(t)
		a := q.Answer(mad.StatusOK)
		a.Data = sminfo(info)
		out := c.m.Receive(beta, &a)
		if len(out) > 0 != hands || c.m.State() != mad.SMMaster {
			t.Errorf("%s: %d SMPs, %s", state, len(out), c.m.State())
		}
		if !hands {
			continue
		}
		h := out[0].SMP
		ours, err := mad.ParseSMInfo(h.Data[:mad.SMInfoLen])
		if err != nil || out[0].To != 0xb || h.Method != mad.MethodSet || h.Modifier != mad.SMHandover || h.MKey != 0xb<<32 || ours.State != mad.SMMaster || ours.SMKey != ourKey || ours.GUID != 0xa {
			t.Errorf("%+v %+v", h.Header, ours)
		}
		refused, taken := h.Answer(mad.StatusInvalidField), h.Answer(mad.StatusOK)
		info.State = mad.SMMaster
		refused.Data, taken.Data = sminfo(info), sminfo(info)
		if c.m.Receive(beta, &refused); c.m.State() != mad.SMMaster {
			t.Error("it goes though the other has refused")
		}
		if c.m.Receive(beta, &taken); c.m.State() != mad.SMMaster {
			t.Error("it goes by an answer to what is answered")
		}
		q = c.poll(t)
		a = q.Answer(mad.StatusOK)
		a.Data = sminfo(info)
		again := c.m.Receive(beta, &a)
		taken.TransactionID = again[0].SMP.TransactionID
		if c.m.Receive(beta, &taken); c.m.State() != mad.SMStandby {
			t.Error("it stays though the other has taken over")
		}
	}
}

// Who hands over is no master from then on, whatever an older answer says that is still under way.
func TestWhoHandsOverStandsBy(t *testing.T) {
	c := standby(t)
	q := c.poll(t)
	c.set(beta, true, mad.SMHandover, mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster})
	if s := c.m.Managers()[1].State; s != mad.SMStandby {
		t.Error(s)
	}
	c.answer(t, beta, q, mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster})
	if s := c.m.Managers()[1].State; s != mad.SMStandby {
		t.Error(s)
	}
}

// A master whose key changes is none any more, and a higher manager that is not active is waited for by nobody.
func TestMasterThatIsNoneAnyMore(t *testing.T) {
	for name, info := range map[string]mad.SMInfo{
		"another key": {GUID: 0xb, SMKey: rivalKey, State: mad.SMMaster, Priority: 1},
		"not active":  {GUID: 0xb, SMKey: ourKey, State: mad.SMNotActive, Priority: 1},
	} {
		c := standby(t)
		c.answer(t, beta, c.poll(t), info)
		if c.m.State() == mad.SMStandby {
			t.Errorf("%s: it goes on to stand by", name)
		}
		if _, ok := c.m.Master(); ok {
			t.Errorf("%s: it is the master still", name)
		}
		c.answer(t, beta, c.poll(t), info)
		if c.m.State() != mad.SMMaster {
			t.Errorf("%s: %s", name, c.m.State())
		}
	}
}

// Discovery asks anew: what was heard before does not end it.
func TestDiscoveryAsksAnew(t *testing.T) {
	c := standby(t)
	c.set(beta, true, mad.SMDiscover, mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster})
	q := c.poll(t)
	if c.m.State() != mad.SMDiscovering {
		t.Error(c.m.State())
	}
	if c.answer(t, beta, q, mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster}); c.m.State() != mad.SMStandby {
		t.Error(c.m.State())
	}
}

// The sm_key is told to managers with the M_Key, and to nobody else. All may ask who the master is.
func TestWhoIsToldTheSMKey(t *testing.T) {
	for _, tc := range []struct {
		from  agent.Requester
		known bool
		key   mad.Key
	}{{beta, true, ourKey}, {beta, false, 0}, {impostor, true, 0}, {stranger, false, 0}, {stranger, true, 0}} {
		c := standby(t)
		a := c.m.ServeSMInfo(tc.from, &mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: 1, Method: mad.MethodGet, Attribute: mad.AttrSMInfo}}, tc.known)
		info, err := mad.ParseSMInfo(a.Data[:mad.SMInfoLen])
		if err != nil || info.SMKey != tc.key || info.GUID != 0xa || info.State != mad.SMStandby || a.MKey != 0 {
			t.Errorf("%s, M_Key %v: %#x %+v", tc.from.Name, tc.known, uint64(info.SMKey), info)
		}
	}
	c := standby(t)
	for method, status := range map[mad.Method]mad.Status{mad.MethodSend: mad.StatusUnsupportedMethod, mad.MethodGetTable: mad.StatusUnsupportedMethod} {
		a := c.m.ServeSMInfo(beta, &mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: 1, Method: method, Attribute: mad.AttrSMInfo}}, true)
		if a.Status != status {
			t.Error(method, a.Status)
		}
	}
	if a := c.m.ServeSMInfo(beta, &mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: 2, Method: mad.MethodGet, Attribute: mad.AttrSMInfo}}, true); a.Status != mad.StatusBadVersion {
		t.Error(a.Status)
	}
}

// A rival with another sm_key is ignored and reported, in the words of OpenSM.
func TestRivalWithAnotherKey(t *testing.T) {
	for key, shown := range map[mad.Key]string{rivalKey: "0x6122334455667788", 0: "0x0000000000000000", ourM: "[secret]", 0xb << 32: "[secret]", 0xa << 32: "[secret]"} {
		c := newCall(t)
		for range discoverPolls {
			c.answer(t, beta, c.poll(t), mad.SMInfo{GUID: 0xb, SMKey: key, State: mad.SMMaster, Priority: 15})
		}
		if c.m.State() != mad.SMMaster {
			t.Errorf("it stands by for a rival with another key: %s", c.m.State())
		}
		if views := c.m.Managers(); views[1].Rivals != 3 || views[1].Heard {
			t.Errorf("%+v", views)
		}
		var lines []Event
		for _, e := range c.events {
			if e.Kind == Rival {
				lines = append(lines, e)
			}
		}
		if len(lines) != 2 || !lines[0].Alarm || lines[0].Peer != "beta" || lines[0].Number != 1 || lines[1].Number != 2 {
			t.Fatalf("%+v", lines)
		}
		if want := "ERR 2F18: Got SM beta (LID 11, GUID 0x000000000000000b) with sm_key " + shown + " that doesn't match our local sm_key. Ignoring SMInfo."; lines[0].Text != want {
			t.Errorf("%q, want %q", lines[0].Text, want)
		}
		if want := "Found remote SM beta (LID 11, GUID 0x000000000000000b) with non-matching sm_key"; lines[0].Syslog != want {
			t.Errorf("%q, want %q", lines[0].Syslog, want)
		}
		// With the right key it counts again, and keys of before are not shown either.
		c.answer(t, beta, c.poll(t), mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMStandby})
		if views := c.m.Managers(); views[1].Rivals != 0 || !views[1].Heard {
			t.Errorf("%+v", views)
		}
		c.m.SetKeys(conf.NewKeys(ourM, 99, 0))
		c.answer(t, beta, c.poll(t), mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMStandby})
		if e := c.lastEvent(); e.Kind != Rival || strings.Contains(e.Text, "7122") || !strings.Contains(e.Text, "sm_key [secret] that") {
			t.Errorf("%+v", e)
		}
	}
	// Without a key of our own there is nothing to compare.
	c := newCall(t)
	c.m.SetKeys(conf.Keys{})
	c.answer(t, beta, c.poll(t), mad.SMInfo{GUID: 0xb, SMKey: rivalKey, State: mad.SMMaster})
	if c.m.State() != mad.SMStandby {
		t.Error(c.m.State())
	}
}

// A rival with the right key that is no manager by its identity is ignored before the key is looked at.
func TestRivalWithAnotherIdentity(t *testing.T) {
	for _, from := range []agent.Requester{impostor, stranger} {
		for _, key := range []mad.Key{ourKey, rivalKey} {
			c := newCall(t)
			for range discoverPolls + 1 {
				c.answer(t, from, c.poll(t), mad.SMInfo{GUID: from.GUID, SMKey: key, State: mad.SMMaster, Priority: 15})
			}
			if c.m.State() != mad.SMMaster {
				t.Errorf("%s", c.m.State())
			}
			e := c.events[0]
			if e.Kind != NotManager || e.Peer != from.Name || strings.Contains(fmt.Sprint(c.events), "ERR 2F18") {
				t.Errorf("%+v", c.events)
			}
		}
	}
}

// An answer counts that is to the last question to that manager, and about it.
func TestAnswersThatDoNotCount(t *testing.T) {
	master := mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster}
	for name, change := range map[string]func(a *mad.SMP){
		"another transaction":    func(a *mad.SMP) { a.TransactionID++ },
		"about another":          func(a *mad.SMP) { a.Data = sminfo(mad.SMInfo{GUID: 0xd, SMKey: ourKey, State: mad.SMMaster}) },
		"an error":               func(a *mad.SMP) { a.Status = mad.StatusBusy },
		"to a Set":               func(a *mad.SMP) { a.Modifier = mad.SMHandover },
		"of another attribute":   func(a *mad.SMP) { a.Attribute = mad.AttrPortInfo },
		"a Report, not a answer": func(a *mad.SMP) { a.Method = mad.MethodReportResp },
	} {
		c := newCall(t)
		a := func() mad.SMP { q := c.poll(t); return q.Answer(mad.StatusOK) }()
		a.Data = sminfo(master)
		changed := a
		change(&changed)
		c.m.Receive(beta, &changed)
		if c.m.State() != mad.SMDiscovering || c.m.Managers()[1].Heard {
			t.Errorf("%s: it counts", name)
		}
		if name == "to a Set" {
			continue
		}
		c.m.Receive(beta, &a)
		if c.m.State() != mad.SMStandby {
			t.Errorf("%s: the right one does not count then", name)
		}
		// A replay of it keeps nobody alive.
		for range 10 {
			c.poll(t)
			c.m.Receive(beta, &a)
		}
		if c.m.State() == mad.SMStandby {
			t.Errorf("%s: a replayed answer counts", name)
		}
	}
}

// The master passes on what agents report, and represses the trap with the M_Key of a host that has it.
func TestTraps(t *testing.T) {
	c := newCall(t)
	notice := mad.Notice{Generic: true, Type: mad.NoticeSecurity, ProducerType: uint32(mad.NodeCA), TrapNumber: mad.TrapMKey, IssuerLID: 11}
	mad.MKeyDetails{LID: 11, Method: mad.MethodSet, Attribute: mad.AttrPortInfo, MKey: rivalKey}.Set(&notice)
	trap := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: 1, Method: mad.MethodTrap, Attribute: mad.AttrNotice, TransactionID: 5}}
	copy(trap.Data[:], notice.Append(nil))
	if c.m.Trap(beta, &trap) != nil {
		t.Error("who is not the master takes a trap")
	}
	for c.m.State() != mad.SMMaster {
		c.poll(t)
	}
	c.events = nil
	r := c.m.Trap(beta, &trap)
	if r == nil || r.Method != mad.MethodTrapRepress || r.MKey != 0xb<<32 || r.TransactionID != 5 || r.Data != trap.Data {
		t.Fatalf("%+v", r)
	}
	if e := c.lastEvent(); e.Kind != MKeyTrap || !e.Alarm || e.Text != "trap 256 of beta (LID 11, GUID 0x000000000000000b): Set of PortInfo with a wrong M_Key by beta" {
		t.Errorf("%+v", e)
	}
	// A host that has not been told LIDs does not have another manager accused.
	c.m.others[0].LID = 0
	mad.MKeyDetails{Method: mad.MethodSet, Attribute: mad.AttrPortInfo}.Set(&notice)
	nameless := trap
	copy(nameless.Data[:], notice.Append(nil))
	c.m.Trap(beta, &nameless)
	if e := c.lastEvent(); e.Text != "trap 256 of beta (LID 11, GUID 0x000000000000000b): Set of PortInfo with a wrong M_Key by a manager that the host's own log names" {
		t.Errorf("%+v", e)
	}
	if r := c.m.Trap(stranger, &trap); r != nil {
		t.Error("a host that is not known to have the M_Key is sent it")
	}
	trap.Method = mad.MethodGet
	if c.m.Trap(beta, &trap) != nil {
		t.Error("a Get is a trap")
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	good := conf.Default().Options
	many := make([]Peer, conf.MaxManagers)
	for i := range many {
		many[i].GUID = mad.GUID(i + 2)
	}
	for what, c := range map[string]Config{
		"itself":        {GUID: 1, Options: good, Managers: []Peer{{GUID: 1}}},
		"twice":         {GUID: 1, Options: good, Managers: []Peer{{GUID: 2}, {GUID: 2}}},
		"many":          {GUID: 1, Options: good, Managers: many},
		"no interval":   {GUID: 1},
		"high priority": {GUID: 1, Options: func() conf.Options { o := good; o.SMPriority = 16; return o }()},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestKeysAreNeverShown(t *testing.T) {
	c := standby(t)
	c.set(beta, true, mad.SMHandover, mad.SMInfo{GUID: 0xb, SMKey: ourM, State: mad.SMMaster})
	type holder struct{ m *Manager }
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "m", c.m, "in", holder{c.m}, "views", c.m.Managers(), "events", c.events)
	js, err := json.Marshal(map[string]any{"m": c.m, "views": c.m.Managers(), "events": c.events})
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(js)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{c.m, *c.m, holder{c.m}, &holder{c.m}, c.events, c.m.Managers()} {
			shown = append(shown, fmt.Sprintf(verb, v))
		}
	}
	for _, text := range shown {
		for _, k := range []mad.Key{ourKey, ourM} {
			for _, leak := range []string{fmt.Sprintf("%x", uint64(k)), fmt.Sprintf("%d", uint64(k))} {
				if strings.Contains(text, leak) {
					t.Errorf("a key is in %.300q", text)
				}
			}
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for k := range MKeyTrap + 1 {
		if seen[k.String()] || k.String() == "" {
			t.Errorf("kind %d is called %q", k, k)
		}
		seen[k.String()] = true
	}
}

// Rivals fill no log.
func TestWorthALine(t *testing.T) {
	var lines []uint64
	for n := range uint64(1001) {
		if worthALine(n) {
			lines = append(lines, n)
		}
	}
	if want := []uint64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}; !slices.Equal(lines, want) {
		t.Errorf("%v", lines)
	}
}

// Nothing that another host sends makes a manager panic, or one without the keys change what it is.
func FuzzManager(f *testing.F) {
	for modifier := range uint32(6) {
		s := mad.SMP{Data: sminfo(mad.SMInfo{GUID: 0xb, SMKey: ourKey, State: mad.SMMaster}), Header: mad.Header{Class: mad.ClassSubn, ClassVersion: 1, Method: mad.MethodSet, Attribute: mad.AttrSMInfo, Modifier: modifier}}
		m := s.MAD()
		f.Add(m[:], true, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, manager, known bool) {
		var m mad.MAD
		copy(m[:], b)
		s, err := mad.ParseSMP(&m)
		if err != nil {
			return
		}
		c := standby(t)
		from := beta
		from.Manager = manager
		c.m.ServeSMInfo(from, &s, known)
		c.m.Receive(from, &s)
		c.m.Trap(from, &s)
		if info, _ := mad.ParseSMInfo(s.Data[:mad.SMInfoLen]); c.m.State() != mad.SMStandby && (!manager || !known || info.SMKey != ourKey) {
			t.Fatalf("%+v", s.Header)
		}
		c.m.Tick(c.m.Next())
	})
}
