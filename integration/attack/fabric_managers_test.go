package attack

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/manager"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// managerAttack is what somebody tries at one of two managers.
type managerAttack struct {
	name  string
	check checks.Check
	try   func(m *managing) (succeeded bool)
}

const (
	fabricSMKey mad.Key = 0x7122334455667788
	otherSMKey  mad.Key = 0x6122334455667788
)

// managing is a manager, whose colleague is "second".
type managing struct {
	*testing.T
	m   *manager.Manager
	now time.Time
}

// The colleague, and a host whose identity has the same GUID without being a manager's.
var (
	second   = agent.Requester{Name: "second", GUID: 0x2, LID: 2, Manager: true}
	namesake = agent.Requester{Name: "namesake", GUID: 0x2, LID: 3}
)

func runManagers(t *testing.T, attacks ...managerAttack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			m := &managing{T: t, now: time.Unix(1_000_000, 0)}
			m.m = must(manager.New(manager.Config{
				GUID: 0x1, Options: conf.Default().Options, Keys: conf.NewKeys(hostKey, fabricSMKey, 0),
				Managers: []manager.Peer{{Name: "second", GUID: 0x2, LID: 2}},
				PortKey:  func(port mad.GUID) (mad.Key, bool) { return hostKey, port == 0x2 },
			}))(t)
			switch succeeded := a.try(m); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// asked has the manager ask its colleague, and returns the question.
func (m *managing) asked() (q mad.SMP) {
	m.Helper()
	if next := m.m.Next(); next.After(m.now) {
		m.now = next
	}
	for _, o := range m.m.Tick(m.now) {
		q = o.SMP
	}
	return q
}

// claim is an answer to q by who claims to be the master.
func claim(q mad.SMP, guid mad.GUID, key mad.Key) *mad.SMP {
	a := q.Answer(mad.StatusOK)
	copy(a.Data[:], mad.SMInfo{GUID: guid, SMKey: key, State: mad.SMMaster, Priority: 15}.Append(nil))
	return &a
}

// Somebody claims to be the master, and wants to be stood by for.
func TestRivalManagers(t *testing.T) {
	standsBy := func(from agent.Requester, key mad.Key) func(m *managing) bool {
		return func(m *managing) bool {
			for range 5 {
				m.m.Receive(from, claim(m.asked(), from.GUID, key))
			}
			return m.m.State() == mad.SMStandby
		}
	}
	// ordered is told to give up by who has once been the master.
	ordered := func(from agent.Requester, key mad.Key) func(m *managing) bool {
		return func(m *managing) bool {
			m.m.Receive(second, claim(m.asked(), second.GUID, fabricSMKey))
			order := smpRequest(mad.MethodSet, mad.AttrSMInfo, hostKey, mad.SMInfo{GUID: from.GUID, SMKey: key, State: mad.SMMaster}.Append(nil))
			order.Modifier = mad.SMDisable
			m.m.ServeSMInfo(from, order, true)
			return m.m.State() == mad.SMNotActive
		}
	}
	runManagers(t,
		managerAttack{"with another sm_key", checks.RivalKey, standsBy(second, otherSMKey)},
		managerAttack{"without sm_key", checks.RivalKey, standsBy(second, 0)},
		managerAttack{"with the sm_key, and no manager's identity", checks.RivalIdentity, standsBy(namesake, fabricSMKey)},
		managerAttack{"that orders it to give up, with another sm_key", checks.RivalKey, ordered(second, otherSMKey)},
		managerAttack{"that orders it to give up, with the sm_key, and no manager's identity", checks.RivalIdentity, ordered(namesake, fabricSMKey)},
	)
}

// Answers of the master are recorded, and replayed when it is gone, so that nobody takes over; or one manager
// speaks for another.
func TestAnswersOfAManagerThatIsGone(t *testing.T) {
	runManagers(t,
		managerAttack{"replayed", checks.SMInfoAnswer, func(m *managing) bool {
			recorded := claim(m.asked(), second.GUID, fabricSMKey)
			m.m.Receive(second, recorded)
			for range 20 {
				m.asked()
				m.m.Receive(second, recorded)
			}
			return m.m.State() == mad.SMStandby
		}},
		managerAttack{"about another", checks.SMInfoAnswer, func(m *managing) bool {
			for range 5 {
				m.m.Receive(second, claim(m.asked(), 0x3, fabricSMKey))
			}
			return m.m.State() == mad.SMStandby
		}},
	)
}

// Somebody wants to learn the keys of the managers.
func TestKeysThatManagersDoNotTell(t *testing.T) {
	told := func(from agent.Requester, known bool) func(m *managing) bool {
		return func(m *managing) bool {
			a := m.m.ServeSMInfo(from, smpRequest(mad.MethodGet, mad.AttrSMInfo, 0, nil), known)
			return must(mad.ParseSMInfo(a.Data[:mad.SMInfoLen]))(m).SMKey == fabricSMKey
		}
	}
	runManagers(t,
		managerAttack{"the sm_key, to a host that is no manager", checks.SMKeyTold, told(bystander, true)},
		managerAttack{"the sm_key, to a manager without the M_Key", checks.SMKeyTold, told(second, false)},
		// The answer to a trap has the M_Key of the host in it, which one without an agent has not been given.
		managerAttack{"the m_key, to a host that makes a trap up", checks.MKeyOfTrap, func(m *managing) bool {
			for range 10 {
				m.asked()
			}
			repress := m.m.Trap(bystander, smpRequest(mad.MethodTrap, mad.AttrNotice, 0, mad.Notice{Generic: true, TrapNumber: mad.TrapMKey}.Append(nil)))
			return repress != nil && repress.MKey == hostKey
		}},
	)
}
