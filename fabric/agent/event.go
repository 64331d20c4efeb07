package agent

import (
	"fmt"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Kind is what an [Event] is about.
type Kind uint8

// The kinds.
const (
	NotManager Kind = iota // a request of somebody who is no manager, which got no answer
	Violation              // a request with a wrong M_Key, which got no answer
	SetRefused             // a Set of what managers may not set
	KeysSet                // M_Key, protection or lease period
	LeaseEnded             // the protection is 0 until a manager sets it
	Drained
	Undrained
	PKeysSet
)

var kinds = [...]string{
	NotManager: "a host that is no manager asks the agent", Violation: "a manager has a wrong M_Key", SetRefused: "a manager sets what managers may not set",
	KeysSet: "a manager has set the M_Key's fields", LeaseEnded: "the lease of the M_Key has ended", Drained: "a manager has drained this host",
	Undrained: "a manager has ended the drain of this host", PKeysSet: "a manager has set the partitions of this host",
}

// String returns what happens, the same for all events of a kind: so who causes many has them counted as one
// when the log represses repetitions.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return "unknown"
}

// Event is something to log: its kind is the message, its text has the details. It has no keys in it.
type Event struct {
	Kind          Kind
	From          Requester // zero for LeaseEnded
	Method        mad.Method
	Attribute     mad.Attribute
	Violations    uint16    // of the M_Key so far
	Before, After KeyFields // of KeysSet
}

func (a *Agent) event(e Event) {
	e.Violations = a.guard.violations
	a.c.Event(e)
}

// Alarm reports whether somebody tries what he may not.
func (e Event) Alarm() bool {
	return e.Kind == NotManager || e.Kind == Violation || e.Kind == SetRefused || e.Kind == LeaseEnded
}

// String returns what has happened in words.
func (e Event) String() string {
	switch e.Kind {
	case NotManager:
		return fmt.Sprintf("%s of %s by %s, which is no manager: no answer", e.Method, e.Attribute.Name(mad.ClassSubn), e.From.Name)
	case Violation:
		return fmt.Sprintf("%s of %s by the manager %s with a wrong M_Key: no answer; violations so far: %d", e.Method, e.Attribute.Name(mad.ClassSubn), e.From.Name, e.Violations)
	case SetRefused:
		return fmt.Sprintf("%s of %s by the manager %s: not what managers may set on this host", e.Method, e.Attribute.Name(mad.ClassSubn), e.From.Name)
	case KeysSet:
		text := fmt.Sprintf("the manager %s has set %v, before: %v", e.From.Name, e.After, e.Before)
		if e.After.MKey != 0 && e.Before.MKey != 0 && !e.After.MKey.Equal(e.Before.MKey) {
			text += "; it is another M_Key"
		}
		return text
	case LeaseEnded:
		return "the lease of the M_Key has ended: no manager with the right key has come since a violation; the protection is 0 until one sets it"
	case Drained:
		return fmt.Sprintf("the manager %s has drained this host: no new stream begins", e.From.Name)
	case Undrained:
		return fmt.Sprintf("the manager %s has ended the drain", e.From.Name)
	case PKeysSet:
		return fmt.Sprintf("the manager %s has set the partitions that this host is in", e.From.Name)
	}
	return "unknown event"
}
