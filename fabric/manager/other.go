package manager

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// other is what is known of another manager.
type other struct {
	Peer
	asked    uint64 // the transaction of the question that is not answered yet, 0 if there is none
	handover uint64 // likewise of a HANDOVER
	info     mad.SMInfo
	heard    bool // it has answered with the right key, and not gone silent since
	answered bool // it has answered since discovery began, as whatever
	missed   int  // questions in a row that were not answered
	rival    uint64
}

// missedAnswer is called when the time for an answer is over.
func (o *other) missedAnswer() {
	if o.asked != 0 {
		o.missed++
	}
	o.asked = 0
}

// take is called with an answer that counts.
func (o *other) take(info mad.SMInfo) {
	info.SMKey = 0 // it is ours, or nothing that is needed
	o.info, o.heard, o.missed, o.rival = info, true, 0, 0
}

// alive reports whether a manager takes part.
func (m *Manager) alive(o *other) bool {
	return o.heard && o.missed <= m.c.Options.PollingRetryNumber
}

// best is the highest of the others that are alive and of which is is true, nil if there is none.
func (m *Manager) best(is func(*other) bool) (best *other) {
	for _, o := range m.others {
		if m.alive(o) && is(o) && (best == nil || higher(o.info.Priority, o.GUID, best.info.Priority, best.GUID)) {
			best = o
		}
	}
	return best
}

func (m *Manager) isHigher(o *other) bool {
	return higher(o.info.Priority, o.GUID, m.c.Options.SMPriority, m.c.GUID)
}

// higher is IBTA's order of managers (14.4.1): the higher priority, then the lower GUID.
func higher(priority uint8, guid mad.GUID, than uint8, thanGUID mad.GUID) bool {
	return priority > than || priority == than && guid < thanGUID
}

func (m *Manager) other(guid mad.GUID) *other {
	for _, o := range m.others {
		if o.GUID == guid {
			return o
		}
	}
	return nil
}
