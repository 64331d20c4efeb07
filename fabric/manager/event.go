package manager

import (
	"fmt"

	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Kind is what an [Event] is about.
type Kind uint8

// The kinds.
const (
	Entering   Kind = iota // a state
	Rival                  // a manager with another sm_key was ignored
	NotManager             // SMInfo of who is no manager was ignored
	MKeyTrap               // a host reports a violation of its M_Key
)

var kinds = [...]string{
	Entering: "the manager enters another state", Rival: "a rival manager has another sm_key", NotManager: "a host that is no manager speaks as one",
	MKeyTrap: "a host reports a wrong M_Key",
}

// String returns what happens, the same for all events of a kind: so who causes many has them counted as one
// when the log represses repetitions.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return "unknown"
}

// Event is something to log. A rival's text is the message, and comes at marks of its number; of others the
// kind is the message, and the text has the details. No key of this manager is in it.
type Event struct {
	Kind   Kind
	Peer   string      // whose doing it is; "" for Entering
	State  mad.SMState // of Entering
	Number uint64      // of Rival: the how many-th time in a row
	Alarm  bool        // somebody tries what he may not
	Text   string      // for the log
	Syslog string      // for syslog, "" if nothing is
}

// path is where an SMP came from.
func path(from agent.Requester) string {
	return fmt.Sprintf("%s (LID %d, GUID %s)", from.Name, from.LID, from.GUID)
}

// rivalEvent has the words of OpenSM.
func (m *Manager) rivalEvent(from agent.Requester, key mad.Key, number uint64) Event {
	shown := fmt.Sprintf("%#016x", uint64(key))
	own, _ := m.c.PortKey(m.c.GUID)
	its, _ := m.c.PortKey(from.GUID)
	if m.hidden.has(key) || key != 0 && (key.Equal(own) || key.Equal(its)) {
		// It has taken one of our keys for its sm_key, or has ours of before.
		shown = key.String()
	}
	return Event{
		Kind: Rival, Peer: from.Name, Number: number, Alarm: true,
		Text:   fmt.Sprintf("ERR 2F18: Got SM %s with sm_key %s that doesn't match our local sm_key. Ignoring SMInfo.", path(from), shown),
		Syslog: fmt.Sprintf("Found remote SM %s with non-matching sm_key", path(from)),
	}
}

// violation describes the details of trap 256, without the key that was tried: it may be another host's.
func (m *Manager) violation(d mad.MKeyDetails) string {
	who := fmt.Sprintf("LID %d", d.LID)
	if d.LID == mad.LIDReserved {
		who = "a manager that the host's own log names"
	}
	for _, o := range m.others {
		if o.LID == d.LID && o.LID != mad.LIDReserved {
			who = o.Name
		}
	}
	return fmt.Sprintf("%s of %s with a wrong M_Key by %s", d.Method, d.Attribute.Name(mad.ClassSubn), who)
}

// worthALine reports whether the n-th time in a row is logged: the 1st, 2nd, 5th, 10th, 20th, 50th and so on.
func worthALine(n uint64) bool {
	for n >= 10 && n%10 == 0 {
		n /= 10
	}
	return n == 1 || n == 2 || n == 5
}

// secrets are keys that are not logged: ours, of now and of before. They are behind two pointers, since package
// fmt follows one.
type secrets struct{ p **[]mad.Key }

func (s *secrets) add(k conf.Keys) {
	var keys []mad.Key
	if s.p != nil {
		keys = **s.p
	}
	for _, key := range []mad.Key{k.M(), k.SM(), k.SA()} {
		if key != 0 && !s.has(key) {
			keys = append(keys, key)
		}
	}
	if len(keys) > maxHidden {
		keys = keys[len(keys)-maxHidden:]
	}
	p := &keys
	s.p = &p
}

func (s *secrets) has(key mad.Key) bool {
	if s.p == nil {
		return false
	}
	for _, k := range **s.p {
		if k.Equal(key) {
			return true
		}
	}
	return false
}
