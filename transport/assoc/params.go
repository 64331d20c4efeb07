package assoc

import "time"

const (
	// DefaultStreams is the number of streams requested and allowed in each direction: as
	// many as DDP streams fit into an association. An unused stream costs nothing.
	DefaultStreams = 1024

	// DefaultBacklog bounds the associations set up by peers that wait for Accept.
	DefaultBacklog = 128

	// DefaultBuffer bounds what is queued and in flight, in bytes: the bandwidth-delay
	// product of 10 Gbit/s and 3 ms.
	DefaultBuffer = 4 << 20

	// Reserve is how many bytes SendNow may queue beyond the buffer: some 10,000 short
	// messages.
	Reserve = 1 << 20

	// MessageOverhead is charged for a queued message in addition to its bytes: the size
	// of its queue entry.
	MessageOverhead = 64

	// MaxCauseInfo bounds the information of an error cause, sent or kept, in bytes.
	MaxCauseInfo = 256

	// DefaultAssocMaxRetrans is Association.Max.Retrans.
	DefaultAssocMaxRetrans = 10

	// The other parameters of RFC 9260 section 16. RTO.Min is lower than its second, as
	// in TCP stacks: paths that carry RDMA are short, and a tail loss costs an RTO.
	// It stays above SACK.Delay of any peer that keeps to the usual 200 ms.
	defaultRTOInitial     = time.Second
	defaultRTOMin         = 250 * time.Millisecond
	defaultRTOMax         = 60 * time.Second
	defaultPathMaxRetrans = 5
	defaultMaxInitRetrans = 8
	defaultHeartbeat      = 30 * time.Second

	// SACKDelay is SACK.Delay, below 200 ms (RFC 9260 section 6.2).
	SACKDelay = 100 * time.Millisecond
)

// Params are the parameters of associations over either carrier. The zero value of each
// is useful.
type Params struct {
	// Adaptation is the Adaptation Layer Indication that is sent and required of the peer
	// (RFC 5061 section 4.2.6; 0x00000001 is DDP's, RFC 5043), 0 for none.
	Adaptation uint32

	// Streams is the number of streams requested and allowed in each direction, 0 for
	// 1,024 (RFC 5043 section 8).
	Streams uint16

	// RTOInitial, RTOMin and RTOMax bound the retransmission timeout (RFC 9260
	// section 6.3.1), 0 for 1 s, 250 ms and 60 s.
	RTOInitial, RTOMin, RTOMax time.Duration

	// Heartbeat is HB.interval, 0 for 30 s, negative for none (RFC 9260 section
	// 8.3).
	Heartbeat time.Duration

	// AssocMaxRetrans is how many retransmissions in a row go unanswered before the
	// association is given up, 0 for 10; PathMaxRetrans how many before
	// EventPathDown, 0 for 5 (RFC 9260 sections 8.1 and 8.2); MaxInitRetrans bounds
	// those of the handshake, 0 for 8.
	AssocMaxRetrans, PathMaxRetrans, MaxInitRetrans int

	// DeadAfter, if not 0, replaces AssocMaxRetrans by a time: the association is given
	// up if nothing sent on any path was answered for so long. An unanswered shutdown is
	// always given up by the count.
	DeadAfter time.Duration

	// Backlog bounds the associations that wait for Accept, 0 for 128.
	Backlog int
}

// Filled returns the parameters with defaults for zeros and with RTO.Min, RTO.Initial and
// RTO.Max in ascending order.
func (p Params) Filled() Params {
	fill(&p.Streams, DefaultStreams)
	fill(&p.RTOInitial, defaultRTOInitial)
	fill(&p.RTOMin, defaultRTOMin)
	fill(&p.RTOMax, defaultRTOMax)
	fill(&p.AssocMaxRetrans, DefaultAssocMaxRetrans)
	fill(&p.PathMaxRetrans, defaultPathMaxRetrans)
	fill(&p.MaxInitRetrans, defaultMaxInitRetrans)
	fill(&p.Backlog, DefaultBacklog)
	if p.Heartbeat == 0 {
		p.Heartbeat = defaultHeartbeat
	}
	p.RTOInitial = max(p.RTOInitial, p.RTOMin)
	p.RTOMax = max(p.RTOMax, p.RTOInitial)
	return p
}

func fill[T int | uint16 | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
