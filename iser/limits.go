package iser

import "time"

const (
	// Segment is the longest data segment that the target takes in one PDU: what login takes. A
	// target whose FirstBurstLength is no longer gets no Data-Out PDU from an initiator that sends
	// immediate data; what is longer is read by RDMA without a copy.
	Segment = 8192

	// maxUnsolicited is how many Data-Out PDUs an initiator may send for a command that it was not
	// asked for: as many as the default of FirstBurstLength takes.
	maxUnsolicited = 65536 / Segment

	// linuxSegment is the longest data segment that Linux' and libiscsi's initiators have room for
	// after login, whatever they offered.
	linuxSegment = 128

	// maxAHS is the default of MaxAHSLength (RFC 7145 section 6.8), which nobody negotiates.
	maxAHS = 256

	// spare are receives beyond those that RFC 7145 section 8.1.1 counts: for the PDU that is being
	// handled while its answer lets the initiator send the next, and for an iSER Hello.
	spare = 4

	// maxSend is how many Sends, Writes and Reads may be under way; more wait.
	maxSend = 1024

	// signalEvery bounds how many operations may pass without a completion, so that there is one
	// to wait for when maxSend are under way.
	signalEvery = 64

	// logoutTime is how long an initiator that has logged out has to end the connection itself.
	// libiscsi 1.19 can't handle that the target does while it frees what it has.
	logoutTime = time.Second

	// farewell is how long the end of a connection waits for what is still to be sent.
	farewell = 2 * time.Second

	// Defaults of Config. An initiator's memory is read by as many Reads as siw and ib_iser offer
	// at most a quarter of; Linux gives a command up after 30 seconds.
	defaultORD     = 32
	defaultReadAge = time.Minute
)
