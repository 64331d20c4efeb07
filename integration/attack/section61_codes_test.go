package attack

import (
	"math"
	"runtime"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// fault is something that breaks a rule, and the Terminate that answers it.
type fault struct {
	name string
	want rdmap.Terminate
	do   func(f *stream)
}

// faults are all error codes that a peer can provoke, by RFC 5041 section 7.2 and
// RFC 5040 section 4.8.
var faults = []fault{
	{"tagged: invalid STag", ddpTagged(ddp.CodeTaggedInvalidSTag), func(f *stream) { f.write(0xdead, 0, evil) }},
	{"tagged: base or bounds", ddpTagged(ddp.CodeTaggedBounds), func(f *stream) { f.write(f.some(all), 61, evil) }},
	{"tagged: STag of another stream", ddpTagged(ddp.CodeTaggedNotAssociated), func(f *stream) {
		_, stag := f.v.stream(f.v.domain(), "owner").grant(64, all)
		f.write(stag, 0, evil)
	}},
	{"tagged: TO wrap", ddpTagged(ddp.CodeTaggedTOWrap), func(f *stream) { f.write(f.some(all), math.MaxUint64-2, evil) }},
	{"tagged: DDP version", ddpTagged(ddp.CodeTaggedInvalidVersion), func(f *stream) {
		_ = f.Say(iwarptest.Segment{Tagged: true, Last: true, DDP: 2, STag: f.some(all), Payload: evil})
	}},
	{"tagged: access rights", protectionError(rdmap.CodeAccess), func(f *stream) { f.write(f.some(verbs.LocalWrite|verbs.RemoteRead), 0, evil) }},
	{"untagged: queue number", ddpUntagged(ddp.CodeUntaggedInvalidQN), func(f *stream) {
		_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: 4, MSN: 1})
	}},
	{"untagged: no buffer", ddpUntagged(ddp.CodeUntaggedNoBuffer), func(f *stream) { f.send(0, evil) }},
	{"untagged: more Reads than agreed", ddpUntagged(ddp.CodeUntaggedNoBuffer), func(f *stream) {
		f.Stall(true) // what the target answers with goes nowhere
		stag := f.some(all)
		for range 64 {
			f.read(stag, 0, 64)
		}
		<-f.ending()
		f.Stall(false)
	}},
	{"untagged: message sequence number", ddpUntagged(ddp.CodeUntaggedMSNRange), func(f *stream) {
		f.msn = 1
		f.send(0, evil)
	}},
	{"untagged: message offset", ddpUntagged(ddp.CodeUntaggedInvalidMO), func(f *stream) {
		_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1, MO: 4, Payload: evil})
	}},
	{"untagged: message too long", ddpUntagged(ddp.CodeUntaggedTooLong), func(f *stream) {
		f.v.granted(f.qp.PostRecv(verbs.RecvWR{}))
		f.send(0, evil)
	}},
	{"untagged: DDP version", ddpUntagged(ddp.CodeUntaggedInvalidVersion), func(f *stream) {
		_ = f.Say(iwarptest.Segment{Last: true, DDP: 3, Op: rdmap.OpSend, MSN: 1})
	}},
	{"read: invalid STag", protectionError(rdmap.CodeInvalidSTag), func(f *stream) { f.read(0xdead, 0, 4) }},
	{"read: base or bounds", protectionError(rdmap.CodeBounds), func(f *stream) { f.read(f.some(all), 61, 4) }},
	{"read: access rights", protectionError(rdmap.CodeAccess), func(f *stream) { f.read(f.some(verbs.LocalWrite|verbs.RemoteWrite), 0, 4) }},
	{"read: STag of another stream", protectionError(rdmap.CodeNotAssociated), func(f *stream) {
		_, stag := f.v.stream(f.v.domain(), "owner").grant(64, all)
		f.read(stag, 0, 4)
	}},
	{"read: TO wrap", protectionError(rdmap.CodeTOWrap), func(f *stream) { f.read(f.some(all), math.MaxUint64-2, 4) }},
	{"invalidate: invalid STag", protectionError(rdmap.CodeInvalidSTag), func(f *stream) {
		f.v.granted(f.qp.PostRecv(verbs.RecvWR{}))
		f.send(0xdead, nil)
	}},
	{"invalidate: STag without remote rights", protectionError(rdmap.CodeCannotInvalidate), func(f *stream) {
		f.v.granted(f.qp.PostRecv(verbs.RecvWR{}))
		f.send(f.v.region(f.qp.PD(), 8, verbs.LocalWrite).STag(), nil)
	}},
	{"RDMAP version", operationError(rdmap.CodeInvalidVersion), func(f *stream) {
		_ = f.Say(iwarptest.Segment{Last: true, RDMAP: 2, Op: rdmap.OpSend, MSN: 1})
	}},
	{"unexpected opcode", operationError(rdmap.CodeUnexpectedOpcode), func(f *stream) {
		_ = f.Say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpSend, STag: f.some(all)})
	}},
	{"Atomic that is not aligned", operationError(rdmap.CodeCatastrophicStream), func(f *stream) { f.fetchAdd(f.some(all), 4, 1) }},
	{"segment that ends in its header", operationError(rdmap.CodeUnspecified), func(f *stream) {
		_ = f.Send(iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1}.Append(nil)[:10])
	}},
}

// some is an STag that the peer may use with this access.
func (f *stream) some(access verbs.Access) uint32 {
	_, stag := f.grant(64, access)
	return stag
}

// ending is closed when the target has begun to end the stream.
func (f *stream) ending() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		for f.qp.State() == verbs.QPRTS && f.v.Context().Err() == nil {
			runtime.Gosched()
		}
	}()
	return c
}

// A peer that probes with each kind of fault that there is gets a Terminate with its code, and
// its stream is over (R10).
func TestFaultIsAnsweredByTheTerminateThatNamesIt(t *testing.T) { run(t, probes()...) }

func probes() (attacks []attack) {
	for _, a := range faults {
		attacks = append(attacks, attack{a.name, checks.Terminate, func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			a.do(f)
			got, _ := f.end()
			if got.Layer != a.want.Layer || got.Type != a.want.Type || got.Code != a.want.Code {
				v.Logf("the Terminate is %v %d.%#02x, it should be %v %d.%#02x", got.Layer, got.Type, got.Code, a.want.Layer, a.want.Type, a.want.Code)
				return true
			}
			return false
		}})
	}
	return attacks
}

// The same: the attack succeeds if the administrator gets no event (R10).
func TestFaultIsReportedInAnEvent(t *testing.T) {
	var attacks []attack
	for _, a := range faults {
		attacks = append(attacks, attack{a.name, checks.FaultEvent, func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			a.do(f)
			_, event := f.end()
			return !event
		}})
	}
	run(t, attacks...)
}
