package attack

import (
	"bytes"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

var (
	evil   = []byte("evil")
	canary = lab.NewCanary() // of every lab here
	secret = []byte(canary)
	all    = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic
)

// Terminates of RFC 5041 section 7.2 (ddp) and RFC 5040 section 4.8 (remote).
func ddpTagged(code uint8) rdmap.Terminate {
	return rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: code}
}

func ddpUntagged(code uint8) rdmap.Terminate {
	return rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: code}
}

func protectionError(code uint8) rdmap.Terminate {
	return rdmap.Terminate{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteProtection, Code: code}
}

func operationError(code uint8) rdmap.Terminate {
	return rdmap.Terminate{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteOperation, Code: code}
}

// access is one way for a peer to use an STag.
type access struct {
	name string
	// try uses stag as f and reports whether that succeeded: memory has changed, has
	// been read, or owner has lost access to it.
	try func(f, owner *stream, mr *verbs.MR, stag uint32) bool
	// How the stream ends otherwise, by what is wrong with the STag.
	notAssociated, invalid rdmap.Terminate
}

var accesses = []access{
	{"write", func(f, _ *stream, mr *verbs.MR, stag uint32) bool {
		f.write(stag, 0, evil)
		f.settled()
		return bytes.HasPrefix(mr.Bytes(), evil)
	}, ddpTagged(ddp.CodeTaggedNotAssociated), ddpTagged(ddp.CodeTaggedInvalidSTag)},
	{"read", func(f, _ *stream, mr *verbs.MR, stag uint32) bool {
		copy(mr.Bytes(), secret)
		f.read(stag, 0, uint32(len(secret)))
		s, ok := f.hear()
		return ok && s.Tagged && bytes.Equal(s.Payload, secret)
	}, protectionError(rdmap.CodeNotAssociated), protectionError(rdmap.CodeInvalidSTag)},
	{"atomic", func(f, _ *stream, mr *verbs.MR, stag uint32) bool {
		f.fetchAdd(stag, 0, 1)
		f.settled()
		return !bytes.Equal(mr.Bytes()[:8], make([]byte, 8))
	}, protectionError(rdmap.CodeNotAssociated), protectionError(rdmap.CodeInvalidSTag)},
	{"invalidate", func(f, owner *stream, mr *verbs.MR, stag uint32) bool {
		f.v.granted(f.qp.PostRecv(verbs.RecvWR{}))
		f.send(stag, nil)
		f.settled()
		owner.write(stag, 8, []byte("fine"))
		return !owner.settled() || !bytes.Equal(mr.Bytes()[8:12], []byte("fine"))
	}, protectionError(rdmap.CodeCannotInvalidate), protectionError(rdmap.CodeInvalidSTag)},
}

// tries makes attacks of each kind of access with an STag that is none of the peer's.
func tries(c checks.Check, set func(v *target) (f, owner *stream, mr *verbs.MR, stag uint32)) (attacks []attack) {
	for _, a := range accesses {
		attacks = append(attacks, attack{a.name, c, func(v *target) bool {
			f, owner, mr, stag := set(v)
			succeeded := a.try(f, owner, mr, stag)
			if !succeeded {
				f.wantTerminated(a.notAssociated)
			}
			return succeeded
		}})
	}
	return attacks
}

// anothersDomain is an STag of one protection domain and a stream in another.
func anothersDomain(v *target) (f, owner *stream, mr *verbs.MR, stag uint32) {
	owner = v.stream(v.pd, "owner")
	mr, stag = owner.grant(64, all)
	return v.stream(v.domain(), "mallory"), owner, mr, stag
}

// anothersStream is an STag for one stream and a stream in its protection domain.
func anothersStream(v *target) (f, owner *stream, mr *verbs.MR, stag uint32) {
	owner = v.stream(v.pd, "owner")
	mr = v.region(v.pd, 64, verbs.LocalWrite|verbs.WindowBind)
	_, stag = owner.bind(mr, 0, 64, all)
	return v.stream(v.pd, "mallory"), owner, mr, stag
}

// An STag of one protection domain on a stream of another (R8).
func TestSTagOfAnotherProtectionDomain(t *testing.T) {
	run(t, tries(checks.PDOfSTag, anothersDomain)...)
}

// An STag that was bound for one stream on another one of its protection domain
// (R9).
func TestSTagOfAnotherStream(t *testing.T) {
	run(t, tries(checks.StreamOfSTag, anothersStream)...)
}

// readFrom has the target read 8 bytes from f into mr and returns the STag of the
// sink, as it stands in the request.
func readFrom(f *stream, mr *verbs.MR) uint32 {
	f.v.Helper()
	wr := verbs.SendWR{ID: 5, Op: verbs.OpRead, SGL: []verbs.SGE{{MR: mr, Len: 8}}, RemoteSTag: 1, Flags: verbs.Signaled}
	f.v.granted(f.qp.PostSend(&wr))
	s, _ := f.hear()
	r, ok := rdmap.ParseReadRequest(s.Payload)
	if !ok {
		f.v.Fatalf("the target sends %+v in place of a Read Request", s)
	}
	return r.SinkSTag
}

func (f *stream) answer(stag uint32, data []byte) {
	_ = f.Say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpReadResponse, STag: stag, Payload: data})
}

// A peer answers the target's RDMA Read with an STag that is not the sink's: of
// another protection domain, of another stream, of memory that it may write to
// (R8, R9).
func TestReadResponseToAnotherSTag(t *testing.T) { run(t, readAnswers()...) }

func readAnswers() []attack {
	answered := func(other func(v *target, f *stream) (*verbs.MR, uint32)) func(v *target) bool {
		return func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			sink := v.region(v.pd, 8, verbs.LocalWrite)
			mr, stag := other(v, f)
			readFrom(f, sink)
			f.answer(stag, []byte("evil!!!!"))
			succeeded := f.completion(5).Err == nil
			if !succeeded {
				f.wantTerminated(ddpTagged(ddp.CodeTaggedInvalidSTag))
			}
			if !bytes.Equal(mr.Bytes(), make([]byte, mr.Len())) {
				v.Error("memory that the target reads nothing into has changed")
			}
			return succeeded
		}
	}
	return []attack{
		{"of another protection domain", checks.ReadAnswer, answered(func(v *target, _ *stream) (*verbs.MR, uint32) {
			return v.stream(v.domain(), "owner").grant(64, all)
		})},
		{"of another stream", checks.ReadAnswer, answered(func(v *target, _ *stream) (*verbs.MR, uint32) {
			mr := v.region(v.pd, 64, verbs.LocalWrite|verbs.WindowBind)
			_, stag := v.stream(v.pd, "owner").bind(mr, 0, 64, all)
			return mr, stag
		})},
		{"of another stream's Read", checks.ReadAnswer, answered(func(v *target, _ *stream) (*verbs.MR, uint32) {
			mr := v.region(v.pd, 8, verbs.LocalWrite)
			return mr, readFrom(v.stream(v.pd, "owner"), mr)
		})},
		{"of memory of its own", checks.ReadAnswer, answered(func(_ *target, f *stream) (*verbs.MR, uint32) {
			return f.grant(64, all)
		})},
	}
}

// An STag after its end, with each kind of access (R10, R12, R15).
func TestSTagThatHasGone(t *testing.T) { run(t, deadSTags()...) }

func deadSTags() (attacks []attack) {
	for _, a := range accesses[:3] {
		attacks = append(attacks, attack{a.name, checks.LiveSTag, func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			mr, stag := f.grant(64, all)
			if err := mr.Invalidate(); err != nil {
				v.Fatal(err)
			}
			succeeded := a.try(f, nil, mr, stag)
			if !succeeded {
				f.wantTerminated(a.invalid)
			}
			return succeeded
		}})
	}
	return attacks
}
