package iscsi

// SentStatus names a status that was sent.
type SentStatus struct {
	CID    uint16
	StatSN uint32
}

// Fence keeps the order of responses over the connections of a session (RFC 7143 section
// 4.2.2.3.3): a response with a fence is sent once all before it are acknowledged, and those behind it
// once it is. The zero Fence is not raised.
//
//	open --Raise--> raised --all acknowledged, Send--> sent --acknowledged--> open
type Fence struct {
	before []SentStatus // to be acknowledged before
	sent   SentStatus
	state  fenceState
}

type fenceState uint8

const (
	fenceOpen fenceState = iota
	fenceRaised
	fenceSent
)

// Raise begins the fence of a response. unacknowledged is the last status of each connection that
// has one which is not acknowledged.
func (f *Fence) Raise(unacknowledged []SentStatus) {
	f.before = append(f.before[:0], unacknowledged...)
	f.state = fenceRaised
}

// Send notes that the response was sent.
func (f *Fence) Send(s SentStatus) { f.sent, f.state = s, fenceSent }

// Open reports that there is no fence.
func (f *Fence) Open() bool { return f.state == fenceOpen }

// MaySend reports whether all that was sent before a response is acknowledged.
func (f *Fence) MaySend() bool { return f.state == fenceRaised && len(f.before) == 0 }

// Acknowledge notes a connection's ExpStatSN.
func (f *Fence) Acknowledge(cid uint16, exp uint32) {
	f.settle(func(s SentStatus) bool { return s.CID == cid && int32(exp-s.StatSN) > 0 })
}

// Lost notes that a connection has ended: nothing more is acknowledged by it.
func (f *Fence) Lost(cid uint16) { f.settle(func(s SentStatus) bool { return s.CID == cid }) }

func (f *Fence) settle(done func(s SentStatus) bool) {
	kept := f.before[:0]
	for _, s := range f.before {
		if !done(s) {
			kept = append(kept, s)
		}
	}
	f.before = kept
	if f.state == fenceSent && done(f.sent) {
		f.state = fenceOpen
	}
}
