package iwarptest

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// Peer is the far end of an in-memory LLP, played by a test: a peer that can
// send anything, and sees every segment of the stack under test. It never
// answers by itself.
//
// Above it everything is real: give the LLP to verbs.PD.Adopt or rdmap.New. End
// a Peer with Close, or with CloseWrite as a peer that ends gracefully.
type Peer struct {
	*LLP // its Send takes raw segments, its Stall is a peer that reads nothing

	pending [][]byte
}

// NewPeer returns a Peer and the LLP of the stack that it talks to.
func NewPeer(o Options) (*Peer, *LLP) {
	a, b := Pair(o)
	return &Peer{LLP: a}, b
}

// Say sends segments that are made of fields. It fails as LLP.Send does.
func (p *Peer) Say(segs ...Segment) error {
	raw := make([][]byte, len(segs))
	for i, s := range segs {
		raw[i] = s.Append(nil)
	}
	return p.Send(raw...)
}

// Hear waits for the next segment that the stack sends, io.EOF at its graceful
// end. It fails where what comes is no DDP segment.
func (p *Peer) Hear() (Segment, error) {
	for len(p.pending) == 0 {
		segs, err := p.Recv()
		if err != nil {
			return Segment{}, err
		}
		p.pending = segs
	}
	raw := p.pending[0]
	p.pending = p.pending[1:]
	s, ok := ParseSegment(raw)
	if !ok {
		return s, fmt.Errorf("iwarptest: the stack sent %d bytes that are no DDP segment: %x", len(raw), raw)
	}
	return s, nil
}

// ErrNoTerminate is what HearTerminate returns for a message on the Terminate
// queue that does not parse.
var ErrNoTerminate = errors.New("iwarptest: the Terminate does not parse")

// HearTerminate takes what the stack sends up to its Terminate message (RFC 5040
// section 4.8). It fails with ErrNoTerminate, and as Hear does.
func (p *Peer) HearTerminate() (rdmap.Terminate, error) {
	for {
		s, err := p.Hear()
		switch {
		case err != nil:
			return rdmap.Terminate{}, err
		case s.Tagged || s.QN != rdmap.QNTerminate:
			continue
		}
		t, ok := rdmap.ParseTerminate(s.Payload)
		if !ok {
			return t, fmt.Errorf("%w: %x", ErrNoTerminate, s.Payload)
		}
		return t, nil
	}
}

// Segment is one DDP segment with the fields of RDMAP, any of which may be
// wrong. Those of the other buffer model are ignored. Versions are 1 when 0; to
// send others, change the bytes.
type Segment struct {
	Tagged bool
	Last   bool
	Op     rdmap.Opcode
	DDP    uint8 // DDP version, 2 bits
	RDMAP  uint8 // RDMAP version, 2 bits

	STag uint32 // tagged: the buffer; untagged: the STag to invalidate
	TO   uint64 // tagged

	QN, MSN, MO uint32 // untagged

	Payload []byte // headers of RDMAP included, as rdmap.ReadRequest.Append makes them
}

// Append appends the segment as it goes over the wire.
func (s Segment) Append(b []byte) []byte {
	ddpVersion, version := s.DDP, s.RDMAP
	if ddpVersion == 0 {
		ddpVersion = ddp.Version
	}
	if version == 0 {
		version = rdmap.Version
	}
	at := len(b)
	ulp := version<<6 | uint8(s.Op)&0x0f
	if s.Tagged {
		b = ddp.AppendTagged(b, s.Last, ulp, s.STag, s.TO)
	} else {
		b = ddp.AppendUntagged(b, s.Last, ulp, s.STag, s.QN, s.MSN, s.MO)
	}
	b[at] = b[at]&^3 | ddpVersion&3
	return append(b, s.Payload...)
}

// ParseSegment takes a segment apart. The payload points into b. ok is false
// when b is shorter than its header.
func ParseSegment(b []byte) (s Segment, ok bool) {
	if ddp.HeaderLen(b) == 0 {
		return s, false
	}
	if ddp.IsTagged(b) {
		t := ddp.Tagged(b)
		s = Segment{Tagged: true, Last: t.Last(), DDP: t.Version(), STag: t.STag(), TO: t.TO(), Payload: t.Payload()}
	} else {
		u := ddp.Untagged(b)
		s = Segment{Last: u.Last(), DDP: u.Version(), STag: u.ULPWord(), QN: u.QN(), MSN: u.MSN(), MO: u.MO(), Payload: u.Payload()}
	}
	s.RDMAP, s.Op = rdmap.ParseControl(b[1])
	return s, true
}
