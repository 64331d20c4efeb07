package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

var (
	manager  = Requester{Name: "alpha", GUID: 0xa, LID: 10, Manager: true}
	stranger = Requester{Name: "beta", GUID: 0xb, LID: 11}
	start    = time.Unix(1_000_000, 0)
)

const (
	right mad.Key = 0x1122334455667788
	wrong mad.Key = 0x2122334455667788
)

// host is an agent and what it has reported.
type host struct {
	*testing.T
	*Agent
	events []Event
}

func newHost(t *testing.T, c Config) *host {
	t.Helper()
	h := &host{T: t}
	c.GUID, c.LID, c.Name = 0x42, 42, "gamma"
	c.Event = func(e Event) { h.events = append(h.events, e) }
	var err error
	if h.Agent, err = New(c); err != nil {
		t.Fatal(err)
	}
	return h
}

func smp(method mad.Method, attribute mad.Attribute, modifier uint32, key mad.Key, data []byte) *mad.SMP {
	s := &mad.SMP{MKey: key, Header: mad.Header{
		Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: method, Attribute: attribute, Modifier: modifier, TransactionID: 7,
	}}
	copy(s.Data[:], data)
	return s
}

// portInfo asks for PortInfo, and reports whether there was an answer.
func (h *host) portInfo(now time.Time, key mad.Key) (info mad.PortInfo, answered bool) {
	h.Helper()
	r := h.Handle(now, manager, smp(mad.MethodGet, mad.AttrPortInfo, 0, key, nil))
	if r.Answer == nil {
		return info, false
	}
	info, err := mad.ParsePortInfo(r.Answer.Data[:])
	if err != nil || r.Answer.Status != mad.StatusOK || r.Answer.Method != mad.MethodGetResp || r.Answer.TransactionID != 7 || r.Answer.MKey != 0 {
		h.Fatalf("%+v %v", r.Answer.Header, err)
	}
	return info, true
}

// set sets PortInfo as change makes it of what it is.
func (h *host) set(now time.Time, from Requester, key mad.Key, change func(*mad.PortInfo)) Result {
	h.Helper()
	info := h.Agent.portInfo()
	info.MKey = h.Keys().MKey
	change(&info)
	return h.Handle(now, from, smp(mad.MethodSet, mad.AttrPortInfo, 1, key, info.Append(nil)))
}

// The levels of protection, as the manual and IBTA 14.2.4.1 have them. Set and TrapRepress need the key at
// each; where a port has no key, any key is right.
func TestLevelsOfProtection(t *testing.T) {
	for _, tc := range []struct {
		port       mad.Key
		protect    uint8
		key        mad.Key
		get        bool
		shown      mad.Key
		set        bool
		violations uint16 // of a Get, a Set and a TrapRepress
	}{
		{right, 0, right, true, right, true, 0},
		{right, 0, wrong, true, right, false, 2},
		{right, 0, 0, true, right, false, 2},
		{right, 1, right, true, right, true, 0},
		{right, 1, wrong, true, 0, false, 2},
		{right, 1, 0, true, 0, false, 2},
		{right, 2, right, true, right, true, 0},
		{right, 2, wrong, false, 0, false, 3},
		{right, 3, right, true, right, true, 0},
		{right, 3, wrong, false, 0, false, 3},
		{right, 3, 0, false, 0, false, 3},
		{0, 0, wrong, true, 0, true, 0},
		{0, 3, wrong, true, 0, true, 0},
	} {
		t.Run(fmt.Sprintf("level %d, port's key %d, request's %d", tc.protect, uint64(tc.port)>>60, uint64(tc.key)>>60), func(t *testing.T) {
			h := newHost(t, Config{Keys: KeyFields{MKey: tc.port, Protect: tc.protect}})
			info, answered := h.portInfo(start, tc.key)
			if answered != tc.get || info.MKey != tc.shown || answered && info.MKeyProtect != tc.protect {
				t.Errorf("Get: answered %v, shows %#x", answered, uint64(info.MKey))
			}
			r := h.set(start, manager, tc.key, func(i *mad.PortInfo) { i.MKeyLeasePeriod = 5 })
			if (r.Answer != nil) != tc.set || (h.Keys().LeasePeriod == 5) != tc.set || r.Changed != tc.set {
				t.Errorf("Set: %+v, %v", r, h.Keys())
			}
			if r.Answer != nil {
				if after, err := mad.ParsePortInfo(r.Answer.Data[:]); err != nil || after.MKey != tc.port || after.MKeyLeasePeriod != 5 {
					t.Errorf("the answer to the Set has %+v", after)
				}
			}
			if r := h.Handle(start, manager, smp(mad.MethodTrapRepress, mad.AttrNotice, 0, tc.key, nil)); r.Answer != nil {
				t.Error("a TrapRepress is answered")
			}
			if h.Violations() != tc.violations {
				t.Errorf("%d violations, want %d", h.Violations(), tc.violations)
			}
			for _, attribute := range []mad.Attribute{mad.AttrNodeInfo, mad.AttrNodeDescription, mad.AttrGUIDInfo, mad.AttrPKeyTable} {
				if r := h.Handle(start, manager, smp(mad.MethodGet, attribute, 0, tc.key, nil)); (r.Answer != nil) != tc.get {
					t.Errorf("Get of %s: %+v", attribute.Name(mad.ClassSubn), r.Answer)
				}
			}
		})
	}
}

// Who is no manager gets no answer, with the right key too, and can't wear the lease out: no violation is
// counted, no timer starts, no trap is sent.
func TestIdentityComesFirst(t *testing.T) {
	for _, key := range []mad.Key{right, wrong} {
		h := newHost(t, Config{Keys: KeyFields{MKey: right, Protect: 2, LeasePeriod: 1}, PKeys: []uint16{0x8001}})
		for _, method := range []mad.Method{mad.MethodGet, mad.MethodSet, mad.MethodTrapRepress, mad.MethodSend, mad.MethodTrap, 0x7f} {
			for _, attribute := range []mad.Attribute{mad.AttrPortInfo, mad.AttrPKeyTable, mad.AttrNotice, mad.AttrNodeInfo, mad.AttrSMInfo} {
				if r := h.Handle(start, stranger, smp(method, attribute, 0, key, nil)); r.Answer != nil || r.Changed {
					t.Errorf("%s of %#x: %+v", method, attribute, r)
				}
			}
		}
		if _, due := h.Next(); due || h.Violations() != 0 || len(h.PKeys()) != 1 {
			t.Error("who is no manager has an effect")
		}
		if len(h.events) != 30 || h.events[0].Kind != NotManager || !h.events[0].Alarm() || !strings.Contains(h.events[0].String(), "beta") {
			t.Errorf("%v", h.events)
		}
	}
}

func TestLease(t *testing.T) {
	h := newHost(t, Config{Keys: KeyFields{MKey: right, Protect: 2, LeasePeriod: 60}})
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	if _, answered := h.portInfo(at(0), wrong); answered {
		t.Fatal("level 2 answers")
	}
	// Another violation does not start it again.
	h.portInfo(at(59), wrong)
	if info, answered := h.portInfo(at(59.9), right); !answered || info.MKeyProtect != 2 {
		t.Fatal("the lease ends too soon")
	}
	// That request has cleared it.
	if info, answered := h.portInfo(at(100), right); !answered || info.MKeyProtect != 2 {
		t.Fatal("a valid request does not clear the timer")
	}
	// What is valid without the key does not.
	h.set(at(200), manager, right, func(i *mad.PortInfo) { i.MKeyProtect = 1 })
	h.set(at(201), manager, wrong, func(i *mad.PortInfo) { i.MKeyProtect = 0 })
	if info, answered := h.portInfo(at(202), wrong); !answered || info.MKey != 0 {
		t.Fatalf("%+v", info)
	}
	h.events = nil
	var ended time.Time
	for now, due := h.Next(); due; now, due = h.Next() {
		if _, changed := h.Tick(now); changed {
			ended = now
		}
	}
	if ended != at(261) || h.Keys() != (KeyFields{MKey: right, Protect: 0, LeasePeriod: 60}) {
		t.Errorf("at its end: %v", h.Keys())
	}
	if len(h.events) != 1 || h.events[0].Kind != LeaseEnded || !h.events[0].Alarm() {
		t.Errorf("%v", h.events)
	}
	if lines := h.Insecure(); len(lines) != 1 || !strings.Contains(lines[0], "lease") {
		t.Error(lines)
	}
	// The key stays: it is shown, and Sets need it.
	if info, _ := h.portInfo(at(262), wrong); info.MKey != right {
		t.Error("at level 0 the key is shown")
	}
	if r := h.set(at(263), manager, wrong, func(i *mad.PortInfo) { i.MKey = 0 }); r.Answer != nil || h.Keys().MKey != right {
		t.Error("a Set with a wrong key is taken after the end of the lease")
	}
	if r := h.set(at(264), manager, right, func(i *mad.PortInfo) { i.MKeyProtect = 2 }); r.Answer == nil || h.Keys().Protect != 2 || h.Insecure() != nil {
		t.Error("the master can't set protection again")
	}
	// Without a period nothing ends.
	h = newHost(t, Config{Keys: KeyFields{MKey: right, Protect: 2}})
	h.portInfo(at(0), wrong)
	h.Tick(at(0))
	if _, answered := h.portInfo(at(1e8), wrong); answered {
		t.Error("a lease without a period ends")
	}
}

func TestTrapOfAViolation(t *testing.T) {
	h := newHost(t, Config{Keys: KeyFields{MKey: right, Protect: 2}})
	request := smp(mad.MethodGet, mad.AttrPortInfo, 1, wrong, nil)
	request.Class, request.SLID = mad.ClassSubnDirected, 13
	h.Handle(start, manager, request)
	h.portInfo(start, wrong) // under way already
	traps, _ := h.Tick(start)
	if len(traps) != 1 || traps[0].Method != mad.MethodTrap || traps[0].Attribute != mad.AttrNotice || traps[0].MKey != 0 {
		t.Fatalf("%+v", traps)
	}
	notice, err := mad.ParseNotice(traps[0].Data[:])
	if err != nil || !notice.Security() || notice.IssuerLID != 42 {
		t.Fatalf("%+v %v", notice, err)
	}
	want := mad.MKeyDetails{LID: 10, DrSLID: 13, Directed: true, Method: mad.MethodGet, Attribute: mad.AttrPortInfo, Modifier: 1, MKey: wrong}
	if details, err := notice.MKey(); err != nil || details != want {
		t.Errorf("%+v, want %+v, %v", details, want, err)
	}
	if more, _ := h.Tick(start.Add(trapInterval - 1)); more != nil {
		t.Error("it is repeated too soon")
	}
	if more, _ := h.Tick(start.Add(trapInterval)); len(more) != 1 || more[0].TransactionID != traps[0].TransactionID {
		t.Error("it is not repeated")
	}
	// A manager represses it by its transaction, and with the key.
	repress := smp(mad.MethodTrapRepress, mad.AttrNotice, 0, wrong, nil)
	repress.TransactionID = traps[0].TransactionID
	h.Handle(start, manager, repress)
	if _, due := h.Next(); !due {
		t.Fatal("a wrong key represses it")
	}
	repress.MKey, repress.TransactionID = right, traps[0].TransactionID+1
	h.Handle(start, manager, repress)
	if _, due := h.Next(); !due {
		t.Fatal("another transaction represses it")
	}
	repress.TransactionID--
	h.Handle(start, manager, repress)
	if _, due := h.Next(); due {
		t.Fatal("it is not repressed")
	}
	// Without a manager that represses it, it ends.
	h.portInfo(start, wrong)
	sent := 0
	for now, due := h.Next(); due; now, due = h.Next() {
		traps, _ := h.Tick(now)
		sent += len(traps)
	}
	if sent != maxTraps {
		t.Errorf("it is sent %d times", sent)
	}
}

func TestAnswersToGets(t *testing.T) {
	aliases := []mad.GUID{1, 2, 3, 4, 5, 6, 7, 8, 9}
	h := newHost(t, Config{GIDPrefix: mad.LinkLocalPrefix, GUIDs: aliases, PKeys: []uint16{0xffff, 0x0012}})
	h.SetMaster(77)
	get := func(attribute mad.Attribute, modifier uint32) *mad.SMP {
		return h.Handle(start, manager, smp(mad.MethodGet, attribute, modifier, 0, nil)).Answer
	}
	node, err := mad.ParseNodeInfo(get(mad.AttrNodeInfo, 0).Data[:mad.NodeInfoLen])
	if err != nil || node.PortGUID != 0x42 || node.Ports != 1 || node.Type != mad.NodeCA || node.PartitionCap != 32 {
		t.Errorf("%+v %v", node, err)
	}
	name := mad.Name(get(mad.AttrNodeDescription, 0).Data[:])
	if text, err := name.Text(); err != nil || text != "gamma" {
		t.Error(text, err)
	}
	info, _ := h.portInfo(start, 0)
	if info.LID != 42 || info.MasterSMLID != 77 || info.State != mad.PortActive || info.GUIDCap != 10 || info.GIDPrefix != mad.LinkLocalPrefix {
		t.Errorf("%+v", info)
	}
	first, err := mad.ParseGUIDInfo(get(mad.AttrGUIDInfo, 0).Data[:])
	if err != nil || first.GUIDs != [8]mad.GUID{0x42, 1, 2, 3, 4, 5, 6, 7} {
		t.Error(first, err)
	}
	second, err := mad.ParseGUIDInfo(get(mad.AttrGUIDInfo, 1).Data[:])
	if err != nil || second.GUIDs != [8]mad.GUID{8, 9} {
		t.Error(second, err)
	}
	pkeys, err := mad.ParsePKeyTable(get(mad.AttrPKeyTable, 0).Data[:])
	if err != nil || pkeys.PKeys != [32]uint16{0xffff, 0x12} {
		t.Error(pkeys, err)
	}
	for _, tc := range []struct {
		attribute mad.Attribute
		modifier  uint32
		status    mad.Status
	}{
		{mad.AttrPortInfo, 2, mad.StatusInvalidField}, {mad.AttrGUIDInfo, 2, mad.StatusInvalidField}, {mad.AttrGUIDInfo, 1 << 29, mad.StatusInvalidField},
		{mad.AttrPKeyTable, 1, mad.StatusInvalidField}, {mad.AttrPKeyTable, 1 << 16, mad.StatusInvalidField}, {mad.AttrPKeyTable, 1<<32 - 1, mad.StatusInvalidField},
		{mad.AttrSMInfo, 0, mad.StatusUnsupportedAttribute}, {mad.AttrNotice, 0, mad.StatusUnsupportedAttribute}, {0x19, 0, mad.StatusUnsupportedAttribute},
	} {
		if a := get(tc.attribute, tc.modifier); a.Status != tc.status || a.Data != [64]byte{} {
			t.Errorf("%#x modifier %#x: %s", tc.attribute, tc.modifier, a.Status)
		}
	}
	request := smp(mad.MethodGet, mad.AttrNodeInfo, 0, 0, nil)
	request.ClassVersion = 2
	if a := h.Handle(start, manager, request).Answer; a.Status != mad.StatusBadVersion {
		t.Error(a.Status)
	}
	if r := h.Handle(start, manager, smp(mad.MethodTrap, mad.AttrNotice, 0, 0, nil)); r.Answer != nil {
		t.Error("a trap is answered")
	}
	for _, method := range []mad.Method{mad.MethodSend, mad.MethodGetTable, 0x7f} {
		if a := h.Handle(start, manager, smp(method, mad.AttrNodeInfo, 0, 0, nil)).Answer; a.Status != mad.StatusUnsupportedMethod {
			t.Error(method, a.Status)
		}
	}
	if r := h.Handle(start, manager, smp(mad.MethodGetResp, mad.AttrNodeInfo, 0, 0, nil)); r.Answer != nil {
		t.Error("an answer is answered")
	}
}

// A manager sets what is on the list, all of a request or nothing.
func TestSets(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*mad.PortInfo)
		taken  bool
		want   func(h *host, r Result) bool
	}{
		{"nothing", func(*mad.PortInfo) {}, true, func(_ *host, r Result) bool { return !r.Changed && r.Drain == nil }},
		{"the key fields", func(i *mad.PortInfo) { i.MKey, i.MKeyProtect, i.MKeyLeasePeriod = wrong, 3, 9 }, true, func(h *host, r Result) bool {
			return r.Changed && h.Keys() == KeyFields{wrong, 3, 9}
		}},
		{"no key", func(i *mad.PortInfo) { i.MKey = 0 }, true, func(h *host, _ Result) bool { return h.Keys().MKey == 0 && len(h.Insecure()) == 1 }},
		{"violations to 0", func(i *mad.PortInfo) { i.MKeyViolations = 0 }, true, func(h *host, _ Result) bool { return h.Violations() == 0 }},
		{"violations", func(i *mad.PortInfo) { i.MKeyViolations = 9 }, true, func(h *host, _ Result) bool { return h.Violations() == 1 }},
		{"drain", func(i *mad.PortInfo) { i.State = mad.PortArmed }, true, func(h *host, r Result) bool { return r.Changed && r.Drain != nil && *r.Drain && h.Drained() }},
		{"no change of the state", func(i *mad.PortInfo) { i.State = mad.PortNoChange }, true, func(h *host, r Result) bool { return !r.Changed && r.Drain == nil }},
		{"components without change", func(i *mad.PortInfo) {
			i.LinkWidthEnabled, i.LinkSpeedEnabled, i.PhysicalState, i.LinkDownDefault, i.OperationalVLs = 0, 0, 0, 0, 0
		}, true, func(_ *host, r Result) bool { return !r.Changed }},
		{"down", func(i *mad.PortInfo) { i.State = mad.PortDown }, false, nil},
		{"init", func(i *mad.PortInfo) { i.State = mad.PortInit }, false, nil},
		{"the LID", func(i *mad.PortInfo) { i.LID++ }, false, nil},
		{"the master", func(i *mad.PortInfo) { i.MasterSMLID++ }, false, nil},
		{"the prefix", func(i *mad.PortInfo) { i.GIDPrefix++ }, false, nil},
		{"the MTU", func(i *mad.PortInfo) { i.NeighborMTU-- }, false, nil},
		{"reregistration", func(i *mad.PortInfo) { i.ClientReregister = true }, false, nil},
		{"disabling the link", func(i *mad.PortInfo) { i.PhysicalState = 3 }, false, nil},
		{"a key and the LID", func(i *mad.PortInfo) { i.MKey, i.LID = wrong, 9 }, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t, Config{Keys: KeyFields{MKey: right, Protect: 2}})
			h.portInfo(start, wrong)
			before := h.Keys()
			r := h.set(start, manager, right, tc.change)
			if r.Answer == nil || (r.Answer.Status == mad.StatusOK) != tc.taken {
				t.Fatalf("%+v", r)
			}
			if tc.taken {
				if info, err := mad.ParsePortInfo(r.Answer.Data[:]); err != nil || !tc.want(h, r) || info.MKey != h.Keys().MKey || (info.State == mad.PortArmed) != h.Drained() {
					t.Errorf("%+v %v %+v", r, h.Keys(), info)
				}
			} else if r.Answer.Status != mad.StatusInvalidField || r.Changed || h.Keys() != before || h.Drained() || h.events[len(h.events)-1].Kind != SetRefused {
				t.Errorf("%+v %v", r, h.Keys())
			}
			if r := h.set(start, manager, h.Keys().MKey, func(i *mad.PortInfo) { i.State = mad.PortActive }); h.Drained() || r.Answer == nil {
				t.Error("the drain does not end")
			}
		})
	}
	h := newHost(t, Config{})
	for _, attribute := range []mad.Attribute{mad.AttrNodeInfo, mad.AttrNodeDescription, mad.AttrGUIDInfo, mad.AttrNotice, 0x17, 0x18, 0x1b} {
		if a := h.Handle(start, manager, smp(mad.MethodSet, attribute, 0, 0, nil)).Answer; a.Status != mad.StatusUnsupportedAttribute {
			t.Errorf("Set of %#x: %s", attribute, a.Status)
		}
	}
	info := h.Agent.portInfo()
	if a := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPortInfo, 2, 0, info.Append(nil))).Answer; a.Status != mad.StatusInvalidField {
		t.Error("another port is set")
	}
	h = newHost(t, Config{ReadOnly: true, PKeys: []uint16{0x8001}})
	if r := h.set(start, manager, 0, func(i *mad.PortInfo) { i.MKey = right }); r.Answer.Status != mad.StatusUnsupportedAttribute || h.Keys().MKey != 0 {
		t.Error("an agent that takes no Sets takes one")
	}
	if r := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 0, 0, nil)); r.PKeys != nil || len(h.PKeys()) != 1 {
		t.Error("an agent that takes no Sets takes one")
	}
	if _, answered := h.portInfo(start, 0); !answered {
		t.Error("it answers no Gets either")
	}
}

// A manager takes a host out of partitions and lets it in again, into none but those of the configuration, and
// as no more than the member that it is there.
func TestSetsOfPartitions(t *testing.T) {
	for _, tc := range []struct {
		name  string
		table []uint16
		want  []uint16 // nil: refused
	}{
		{"fewer", []uint16{0x8001}, []uint16{0x8001}},
		{"a gap", []uint16{0, 0x8001, 0, 0x8003}, []uint16{0x8001, 0x8003}},
		{"another order", []uint16{0x8003, 0x0002, 0x8001}, []uint16{0x8003, 0x0002, 0x8001}},
		{"limited", []uint16{0x0001}, []uint16{0x0001}},
		{"none", []uint16{0x8000, 0}, []uint16{}},
		{"full where it is limited", []uint16{0x8002}, nil},
		{"one that is not configured", []uint16{0x8001, 0x0004}, nil},
		{"the default partition", []uint16{0x7fff}, nil},
		{"twice", []uint16{0x8001, 0x8001}, nil},
		{"full and limited", []uint16{0x8001, 0x0001}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t, Config{PKeys: []uint16{0x8001, 0x0002, 0x8003}})
			var table mad.PKeyTable
			copy(table.PKeys[:], tc.table)
			r := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 0, 0, table.Append(nil)))
			if tc.want == nil {
				if r.Answer.Status != mad.StatusInvalidField || r.PKeys != nil || r.Changed || len(h.PKeys()) != 3 {
					t.Errorf("%+v %#x", r, h.PKeys())
				}
				return
			}
			if r.Answer.Status != mad.StatusOK || !r.Changed || r.PKeys == nil || !slices.Equal(r.PKeys, tc.want) || !slices.Equal(h.PKeys(), tc.want) || [64]byte(table.Append(nil)) != r.Answer.Data {
				t.Errorf("%+v %#x", r, h.PKeys())
			}
			again := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 0, 0, table.Append(nil)))
			if again.Changed || again.PKeys != nil || again.Answer.Status != mad.StatusOK {
				t.Errorf("the same again: %+v", again)
			}
			table = mad.PKeyTable{}
			copy(table.PKeys[:], []uint16{0x8001, 0x0002, 0x8003})
			if r := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 0, 0, table.Append(nil))); r.Answer.Status != mad.StatusOK || len(h.PKeys()) != 3 {
				t.Error("it is not let in again")
			}
		})
	}
	var many []uint16
	for k := uint16(1); k <= 40; k++ {
		many = append(many, k)
	}
	h := newHost(t, Config{PKeys: many})
	var table mad.PKeyTable
	copy(table.PKeys[:], []uint16{33, 34})
	if r := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 1, 0, table.Append(nil))); r.Answer.Status != mad.StatusOK || len(h.PKeys()) != 34 {
		t.Errorf("%+v %d", r.Answer.Status, len(h.PKeys()))
	}
	copy(table.PKeys[:], []uint16{32})
	if r := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 1, 0, table.Append(nil))); r.Answer.Status != mad.StatusInvalidField {
		t.Error("a partition is in two blocks")
	}
	if r := h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 2, 0, table.Append(nil))); r.Answer.Status != mad.StatusInvalidField {
		t.Error("there is a third block")
	}
}

// What managers have set outlives a restart; what the administrator configures anew wins.
func TestSavedState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	configured := Config{Keys: KeyFields{MKey: right, Protect: 1}, PKeys: []uint16{0x8001, 0x8002, 0x8003}}
	h := newHost(t, configured)
	h.set(start, manager, right, func(i *mad.PortInfo) { i.MKey, i.MKeyProtect, i.State = wrong, 2, mad.PortArmed })
	var table mad.PKeyTable
	copy(table.PKeys[:], []uint16{0x8001, 0x0003})
	h.Handle(start, manager, smp(mad.MethodSet, mad.AttrPKeyTable, 0, wrong, table.Append(nil)))
	if saved, err := LoadSaved(path); saved != nil || err != nil {
		t.Fatal(saved, err)
	}
	if err := h.Saved().Write(path); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatal(st.Mode(), err)
	}
	load := func(c Config) *host {
		if c.Saved, err = LoadSaved(path); err != nil {
			t.Fatal(err)
		}
		return newHost(t, c)
	}
	h = load(configured)
	if h.Keys() != (KeyFields{wrong, 2, 0}) || !h.Drained() || !slices.Equal(h.PKeys(), []uint16{0x8001, 0x0003}) {
		t.Errorf("after a restart: %v %v %#x", h.Keys(), h.Drained(), h.PKeys())
	}
	anew := configured
	anew.Keys.MKey, anew.PKeys = 5, []uint16{0x0001, 0x8002, 0x8003, 0x8004}
	h = load(anew)
	if h.Keys() != anew.Keys || !slices.Equal(h.PKeys(), []uint16{0x0003, 0x0001, 0x8004}) {
		t.Errorf("after another configuration: %v %#x", h.Keys(), h.PKeys())
	}
	var many []uint16
	for k := uint16(1); k <= 40; k++ {
		many = append(many, 0x8000|k)
	}
	anew.PKeys = many
	if h = load(anew); len(h.pkeys) != 64 || len(h.PKeys()) != 39 || slices.Contains(h.PKeys(), 0x8002) {
		t.Errorf("%#x", h.PKeys())
	}
	for _, text := range []string{"", "{", `{"Now":{"Protect":4}}`, `{"PKeys":[65536]}`, strings.Repeat(" ", maxSaved+1), `{"Now":{"MKey":"0x1122334455667788"}}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSaved(path); !errors.Is(err, ErrSaved) || strings.Contains(err.Error(), "1122") {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSaved(path); !errors.Is(err, auth.ErrSecretFile) {
		t.Error(err)
	}
}

func TestConfiguredKeyFields(t *testing.T) {
	c := conf.Default()
	c.Keys, c.MKeyProtection, c.MKeyLeasePeriod = conf.NewKeys(right, 0, 0), 3, 60
	if k := Configured(c, 0x42); k != (KeyFields{right, 3, 60}) {
		t.Errorf("%v", k)
	}
	c.MKeyPerPort = true
	if k := Configured(c, 0x42); k.MKey == right || k.MKey != c.PortKey(0x42) {
		t.Error("the port has no key of its own")
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for what, c := range map[string]Config{
		"protection":    {Keys: KeyFields{Protect: 4}},
		"a long name":   {Name: strings.Repeat("x", 64)},
		"a hostile one": {Name: "a\x1b[2J"},
		"many vports":   {GUIDs: make([]mad.GUID, maxGUIDs)},
		"many P_Keys":   {PKeys: make([]uint16, maxPKeys+1)},
		"no base key":   {PKeys: []uint16{0x8000}},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestKeysAreNeverShown(t *testing.T) {
	h := newHost(t, Config{Keys: KeyFields{MKey: right, Protect: 2, LeasePeriod: 3}})
	h.portInfo(start, wrong)
	h.set(start, manager, right, func(i *mad.PortInfo) { i.MKey = wrong })
	type holder struct {
		agent *Agent
		saved *Saved
	}
	hidden := holder{h.Agent, h.Saved()}
	var log bytes.Buffer
	for _, l := range []*slog.Logger{slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.NewJSONHandler(&log, nil))} {
		l.Info("x", "agent", h.Agent, "saved", h.Saved(), "hidden", hidden, "keys", h.Keys())
	}
	js, err := json.Marshal(map[string]any{"saved": h.Saved(), "keys": h.Keys(), "events": h.events})
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(js)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{h.Agent, *h.Agent, h.Saved(), hidden, &hidden, h.Keys(), h.events} {
			shown = append(shown, fmt.Sprintf(verb, v))
		}
	}
	for _, e := range h.events {
		shown = append(shown, e.String())
	}
	for _, text := range shown {
		for _, k := range []mad.Key{right, wrong} {
			for _, leak := range []string{fmt.Sprintf("%x", uint64(k)), fmt.Sprintf("%d", uint64(k)), fmt.Sprintf("%X", uint64(k))} {
				if strings.Contains(text, leak) {
					t.Errorf("a key is in %.300q", text)
				}
			}
		}
	}
	if !strings.Contains(h.events[1].String(), "another M_Key") {
		t.Error(h.events[1])
	}
	seen := map[string]bool{}
	for k := range PKeysSet + 1 {
		if seen[k.String()] || k.String() == "" {
			t.Errorf("kind %d is called %q", k, k)
		}
		seen[k.String()] = true
	}
}

// Nothing that a peer sends makes an agent panic, or a stranger get an answer.
func FuzzHandle(f *testing.F) {
	for _, method := range []mad.Method{mad.MethodGet, mad.MethodSet, mad.MethodTrapRepress} {
		for _, attribute := range []mad.Attribute{mad.AttrPortInfo, mad.AttrPKeyTable, mad.AttrGUIDInfo, mad.AttrNodeInfo, mad.AttrSMInfo} {
			m := smp(method, attribute, 0, right, nil).MAD()
			f.Add(m[:], true)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, isManager bool) {
		var m mad.MAD
		copy(m[:], b)
		request, err := mad.ParseSMP(&m)
		if err != nil {
			return
		}
		a, err := New(Config{Keys: KeyFields{MKey: right, Protect: 2, LeasePeriod: 1}, PKeys: []uint16{0x8001}, GUIDs: []mad.GUID{1}})
		if err != nil {
			t.Fatal(err)
		}
		from := manager
		from.Manager = isManager
		r := a.Handle(start, from, &request)
		smInfo := request.Attribute == mad.AttrSMInfo && request.Method == mad.MethodGet
		if (!isManager || request.MKey != right) && (r.Changed || a.Keys().MKey != right || r.Answer != nil && !smInfo && request.ClassVersion == 1 && (request.Method == mad.MethodSet || request.Method == mad.MethodGet)) {
			t.Fatalf("%+v: %+v", request.Header, r)
		}
		if r.Answer != nil && (!r.Answer.Method.Response() || r.Answer.TransactionID != request.TransactionID) {
			t.Fatalf("%+v", r.Answer.Header)
		}
		a.Tick(start.Add(time.Hour))
	})
}
