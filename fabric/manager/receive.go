package manager

import (
	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Receive takes an answer to what was sent, and returns what to send on it.
func (m *Manager) Receive(from agent.Requester, answer *mad.SMP) []Outgoing {
	if answer.Attribute != mad.AttrSMInfo || answer.Method != mad.MethodGetResp {
		return nil
	}
	o := m.sender(from)
	if o == nil {
		return nil
	}
	info, err := mad.ParseSMInfo(answer.Data[:mad.SMInfoLen])
	if err != nil {
		return nil
	}
	if answersQuestion(o.handover, answer.TransactionID, from.GUID, info.GUID) && answer.Modifier == mad.SMHandover {
		return m.handedOver(o, answer, info)
	}
	if !answersQuestion(o.asked, answer.TransactionID, from.GUID, info.GUID) || answer.Status != mad.StatusOK || answer.Modifier != 0 {
		return nil
	}
	o.asked, o.answered = 0, true
	if !m.accept(o, from, info) {
		return m.decide()
	}
	o.take(info)
	return m.decide()
}

// sender is the manager that from is, nil if it is none.
func (m *Manager) sender(from agent.Requester) *other {
	if !mayRival(from) {
		m.c.Event(Event{Kind: NotManager, Peer: from.Name, Text: "SMInfo of " + path(from) + ", which is no manager. Ignoring it without a look at its sm_key"})
		return nil
	}
	return m.other(from.GUID)
}

// accept compares a manager's sm_key with ours. One with another is ignored from then on.
func (m *Manager) accept(o *other, from agent.Requester, info mad.SMInfo) bool {
	if sameSMKey(m.c.Keys.SM(), info.SMKey) {
		return true
	}
	o.heard, o.info, o.missed = false, mad.SMInfo{}, 0
	o.rival++
	if worthALine(o.rival) {
		m.c.Event(m.rivalEvent(from, info.SMKey, o.rival))
	}
	return false
}

// handedOver takes the answer to our HANDOVER.
func (m *Manager) handedOver(o *other, answer *mad.SMP, info mad.SMInfo) []Outgoing {
	o.handover = 0
	if answer.Status != mad.StatusOK || m.state != mad.SMMaster || !sameSMKey(m.c.Keys.SM(), info.SMKey) {
		return nil // it is asked again, and what it says then counts
	}
	o.info.State, o.missed, o.asked = mad.SMMaster, 0, 0
	m.become(mad.SMStandby)
	return m.decide()
}

// ServeSMInfo implements agent.SMInfoServer.
func (m *Manager) ServeSMInfo(from agent.Requester, request *mad.SMP, known bool) *mad.SMP {
	status := mad.StatusOK
	switch {
	case request.ClassVersion != mad.SMPClassVersion:
		status = mad.StatusBadVersion
	case request.Method == mad.MethodSet:
		var silent bool
		if status, silent = m.set(from, request, known); silent {
			return nil
		}
	case request.Method != mad.MethodGet:
		status = mad.StatusUnsupportedMethod
	}
	answer := request.Answer(status)
	m.sent++
	copy(answer.Data[:], m.info(tellsSMKey(from, known)).Append(nil))
	return &answer
}

// set takes what another manager tells this one to do (14.4.3).
func (m *Manager) set(from agent.Requester, request *mad.SMP, known bool) (status mad.Status, silent bool) {
	o := m.sender(from)
	if o == nil || !known {
		return 0, true
	}
	info, err := mad.ParseSMInfo(request.Data[:mad.SMInfoLen])
	if err != nil || info.GUID != from.GUID || !m.accept(o, from, info) {
		return 0, true
	}
	byMaster := info.State == mad.SMMaster
	switch modifier := request.Modifier; {
	case modifier == mad.SMHandover && byMaster && m.state != mad.SMNotActive:
		// It goes to standby when it has our answer; one to an older question may still say otherwise.
		info.State = mad.SMStandby
		o.take(info)
		o.asked = 0
		if m.state == mad.SMStandby {
			m.become(mad.SMMaster)
		}
	case modifier == mad.SMDisable && byMaster && m.state == mad.SMStandby:
		m.become(mad.SMNotActive)
	case modifier == mad.SMToStandby && byMaster && m.state == mad.SMNotActive:
		o.take(info)
		m.become(mad.SMStandby)
	case modifier == mad.SMDiscover && byMaster && m.state == mad.SMStandby:
		m.become(mad.SMDiscovering)
	case modifier == mad.SMAcknowledge && info.State == mad.SMStandby && m.state == mad.SMStandby:
	default:
		return mad.StatusInvalidField, false
	}
	return mad.StatusOK, false
}

// Trap takes a trap of a host's agent. It reports violations of the host's M_Key, and returns the TrapRepress
// to answer with, nil for none: it has the host's M_Key in it, so a host that makes a trap up learns no key
// that it does not have.
func (m *Manager) Trap(from agent.Requester, trap *mad.SMP) *mad.SMP {
	notice, err := mad.ParseNotice(trap.Data[:])
	if err != nil || trap.Method != mad.MethodTrap || trap.Attribute != mad.AttrNotice || m.state != mad.SMMaster {
		return nil
	}
	if details, err := notice.MKey(); err == nil {
		m.c.Event(Event{Kind: MKeyTrap, Peer: from.Name, Alarm: true, Text: "trap 256 of " + path(from) + ": " + m.violation(details)})
	}
	key, known := m.c.PortKey(from.GUID)
	if !repressWith(known) {
		return nil
	}
	repress := trap.Answer(mad.StatusOK)
	repress.MKey, repress.Data = key, trap.Data
	m.sent++
	return &repress
}
