package attack

import (
	"fmt"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// keyAttack is what somebody tries at a host's agent.
type keyAttack struct {
	name  string
	check checks.Check
	keys  agent.KeyFields
	try   func(h *managed) (succeeded bool)
}

// The M_Key of the host and one that is not.
const (
	hostKey  mad.Key = 0x1122334455667788
	wrongKey mad.Key = 0x2122334455667788
)

// managed is a host with an agent. It is a limited member of partition 2 and in no partition 3.
type managed struct {
	*testing.T
	agent *agent.Agent
	now   time.Time
}

// Who asks: a manager that is not what it should be, and a host that is no manager.
var (
	rogue     = agent.Requester{Name: "rogue", GUID: 0xbad, LID: 13, Manager: true}
	bystander = agent.Requester{Name: "bystander", GUID: 0xb, LID: 11}
)

func runKeys(t *testing.T, attacks ...keyAttack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			h := &managed{T: t, now: time.Unix(1_000_000, 0)}
			if a.keys.MKey == 0 {
				a.keys.MKey = hostKey
			}
			h.agent = must(agent.New(agent.Config{GUID: 0x42, LID: 42, Name: "host", Keys: a.keys, PKeys: []uint16{0x8001, 0x0002}}))(t)
			switch succeeded := a.try(h); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

func smpRequest(method mad.Method, attribute mad.Attribute, key mad.Key, data []byte) *mad.SMP {
	s := &mad.SMP{MKey: key, Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: method, Attribute: attribute, TransactionID: 1}}
	copy(s.Data[:], data)
	return s
}

// get asks for PortInfo: whether there is an answer, and the M_Key in it.
func (h *managed) get(from agent.Requester, key mad.Key) (info mad.PortInfo, answered bool) {
	h.Helper()
	r := h.agent.Handle(h.now, from, smpRequest(mad.MethodGet, mad.AttrPortInfo, key, nil))
	if r.Answer == nil {
		return info, false
	}
	return must(mad.ParsePortInfo(r.Answer.Data[:]))(h), true
}

// takeOver gives the host a key of the attacker's, and reports whether it has that.
func (h *managed) takeOver(from agent.Requester, key mad.Key) bool {
	h.Helper()
	// What an attacker does not read, he knows from hosts of the same kind.
	info, answered := h.get(rogue, hostKey)
	if !answered {
		h.Fatal("PortInfo can't be read with the right key")
	}
	info.MKey, info.MKeyProtect = 0xbad, 2
	h.agent.Handle(h.now, from, smpRequest(mad.MethodSet, mad.AttrPortInfo, key, info.Append(nil)))
	return h.agent.Keys().MKey == 0xbad
}

// A host that is no manager tries what needs one, even with the M_Key.
func TestManagementByWhoIsNoManager(t *testing.T) {
	runKeys(t,
		keyAttack{"read the port", checks.ManagerIdentity, agent.KeyFields{}, func(h *managed) bool {
			_, answered := h.get(bystander, hostKey)
			return answered
		}},
		keyAttack{"set a key of his own", checks.ManagerIdentity, agent.KeyFields{Protect: 2}, func(h *managed) bool {
			return h.takeOver(bystander, hostKey)
		}},
		// He violates the key, keeps the manager away until the lease has ended, and is shown the key then.
		keyAttack{"wear out the lease", checks.ManagerIdentity, agent.KeyFields{Protect: 2, LeasePeriod: 60}, func(h *managed) bool {
			h.get(bystander, wrongKey)
			h.now = h.now.Add(time.Minute)
			info, _ := h.get(bystander, wrongKey)
			return info.MKey == hostKey
		}},
		keyAttack{"fill the count of violations", checks.ManagerIdentity, agent.KeyFields{}, func(h *managed) bool {
			h.agent.Handle(h.now, bystander, smpRequest(mad.MethodSet, mad.AttrPortInfo, wrongKey, nil))
			return h.agent.Violations() > 0
		}},
	)
}

// A manager without the M_Key tries what needs it, at each level of protection.
func TestManagementWithoutTheKey(t *testing.T) {
	var attacks []keyAttack
	for level := range uint8(4) {
		for name, key := range map[string]mad.Key{"no key": 0, "a wrong key": wrongKey, "the key of all ones": ^mad.Key(0), "the key with other bits above": hostKey ^ 1<<63, "and below": hostKey ^ 1} {
			attacks = append(attacks, keyAttack{fmt.Sprintf("set another key, level %d, by %s", level, name), checks.MKeyOfPort, agent.KeyFields{Protect: level}, func(h *managed) bool {
				return h.takeOver(rogue, key)
			}})
		}
		attacks = append(attacks, keyAttack{fmt.Sprintf("drain the host, level %d", level), checks.MKeyOfPort, agent.KeyFields{Protect: level}, func(h *managed) bool {
			info, _ := h.get(rogue, hostKey)
			info.State = mad.PortArmed
			h.agent.Handle(h.now, rogue, smpRequest(mad.MethodSet, mad.AttrPortInfo, wrongKey, info.Append(nil)))
			return h.agent.Drained()
		}}, keyAttack{fmt.Sprintf("take it out of its partitions, level %d", level), checks.MKeyOfPort, agent.KeyFields{Protect: level}, func(h *managed) bool {
			h.agent.Handle(h.now, rogue, smpRequest(mad.MethodSet, mad.AttrPKeyTable, wrongKey, nil))
			return len(h.agent.PKeys()) == 0
		}})
	}
	for level := uint8(2); level < 4; level++ {
		attacks = append(attacks, keyAttack{fmt.Sprintf("read the port, level %d", level), checks.MKeyOfGet, agent.KeyFields{Protect: level}, func(h *managed) bool {
			_, answered := h.get(rogue, wrongKey)
			return answered
		}})
	}
	attacks = append(attacks,
		keyAttack{"be shown the key, level 1", checks.MKeyShown, agent.KeyFields{Protect: 1}, func(h *managed) bool {
			info, _ := h.get(rogue, wrongKey)
			return info.MKey == hostKey
		}},
		// He cuts the master off until the lease has ended. Protection is gone then, the key is not.
		keyAttack{"set another key after the end of the lease", checks.MKeyOfPort, agent.KeyFields{Protect: 2, LeasePeriod: 60}, func(h *managed) bool {
			h.get(rogue, wrongKey)
			h.now = h.now.Add(time.Minute)
			h.agent.Tick(h.now)
			return h.takeOver(rogue, wrongKey)
		}},
		keyAttack{"repress the alarm", checks.MKeyOfPort, agent.KeyFields{Protect: 2}, func(h *managed) bool {
			h.agent.Handle(h.now, rogue, smpRequest(mad.MethodSet, mad.AttrNodeInfo, wrongKey, nil))
			repress := smpRequest(mad.MethodTrapRepress, mad.AttrNotice, wrongKey, nil)
			h.agent.Handle(h.now, rogue, repress)
			traps, _ := h.agent.Tick(h.now)
			return len(traps) == 0
		}},
	)
	runKeys(t, attacks...)
}

// Who has learned the key of one port replays it at another.
func TestReplayedKeyOfAPort(t *testing.T) {
	runKeys(t, keyAttack{"set another key", checks.MKeyPerPort, agent.KeyFields{}, func(h *managed) bool {
		c := conf.Default()
		c.MKeyPerPort, c.MKeyProtection, c.Keys = true, 1, conf.NewKeys(hostKey, 0, 0)
		learned := c.PortKey(0x41)
		h.agent = must(agent.New(agent.Config{GUID: 0x42, Name: "host", Keys: agent.Configured(c, 0x42)}))(h)
		info, _ := h.get(rogue, learned)
		info.MKey = 0xbad
		h.agent.Handle(h.now, rogue, smpRequest(mad.MethodSet, mad.AttrPortInfo, learned, info.Append(nil)))
		return h.agent.Keys().MKey == 0xbad
	}})
}

// A manager puts a host into partitions that its administrator has not given it.
func TestPartitionsBeyondTheConfiguration(t *testing.T) {
	var attacks []keyAttack
	for name, pkey := range map[string]uint16{"one that is not configured": 0x8003, "full membership": 0x8002, "the default partition": 0xffff} {
		attacks = append(attacks, keyAttack{name, checks.AgentPKeys, agent.KeyFields{}, func(h *managed) bool {
			table := mad.PKeyTable{PKeys: [mad.PKeysPerBlock]uint16{pkey}}
			h.agent.Handle(h.now, rogue, smpRequest(mad.MethodSet, mad.AttrPKeyTable, hostKey, table.Append(nil)))
			in := h.agent.PKeys()
			return len(in) > 0 && in[0] == pkey
		}})
	}
	runKeys(t, attacks...)
}
