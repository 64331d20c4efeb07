package agent

import (
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// trap is a trap 256 that is under way. A first violation sends one; it is repeated until a
// manager represses it, a few times at most, and violations meanwhile send none.
type trap struct {
	smp  mad.SMP
	next time.Time
	left int // how often it is still sent
}

// violated reports a violation of the M_Key.
func (a *Agent) violated(now time.Time, from Requester, request *mad.SMP) {
	a.event(Event{Kind: Violation, From: from, Method: request.Method, Attribute: request.Attribute})
	if a.trap != nil {
		return
	}
	details := mad.MKeyDetails{
		LID: from.LID, Method: request.Method, Attribute: request.Attribute, Modifier: request.Modifier, MKey: request.MKey,
	}
	if request.Class == mad.ClassSubnDirected {
		details.Directed, details.DrSLID = true, request.SLID
	}
	notice := mad.Notice{
		Generic: true, Type: mad.NoticeSecurity, ProducerType: uint32(mad.NodeCA), TrapNumber: mad.TrapMKey, IssuerLID: a.c.LID,
	}
	details.Set(&notice)
	a.nextTID++
	a.trap = &trap{next: now, left: maxTraps, smp: mad.SMP{Header: mad.Header{
		Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodTrap, Attribute: mad.AttrNotice, TransactionID: a.nextTID,
	}}}
	copy(a.trap.smp.Data[:], notice.Append(nil))
}

func (a *Agent) dueTraps(now time.Time) []mad.SMP {
	if a.trap == nil || now.Before(a.trap.next) {
		return nil
	}
	due := []mad.SMP{a.trap.smp}
	if a.trap.left--; a.trap.left == 0 {
		a.trap = nil
		return due
	}
	a.trap.next = now.Add(trapInterval)
	return due
}

// repress ends the trap that a TrapRepress names by its transaction.
func (a *Agent) repress(request *mad.SMP) {
	if a.trap != nil && request.Attribute == mad.AttrNotice && request.TransactionID == a.trap.smp.TransactionID {
		a.trap = nil
	}
}
