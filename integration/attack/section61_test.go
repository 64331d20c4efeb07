package attack

import (
	"bytes"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

var (
	evil          = []byte("evil")
	notAssociated = rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedNotAssociated}
	invalidSTag   = rdmap.Terminate{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedInvalidSTag}
	all           = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite | verbs.RemoteAtomic
)

// An STag of one protection domain on a stream of another (R8).
func TestSTagOfAnotherProtectionDomain(t *testing.T) {
	other := func(v *victim) (*verbs.MR, *foe) {
		mr := v.region(v.pd, 64, all)
		copy(mr.Bytes(), "secret")
		return mr, v.stream(must(v.ulp.AllocPD())(v.T), "mallory")
	}
	run(t,
		attack{"write", checks.PDOfSTag, func(v *victim) bool {
			mr, f := other(v)
			f.write(mr.STag(), 0, evil)
			if f.settled() {
				return bytes.HasPrefix(mr.Bytes(), evil)
			}
			f.wantTerminated(notAssociated)
			return bytes.HasPrefix(mr.Bytes(), evil)
		}},
		attack{"read", checks.PDOfSTag, func(v *victim) bool {
			mr, f := other(v)
			f.read(mr.STag(), 0, 6)
			s, ok := f.hear()
			return ok && s.Tagged && string(s.Payload) == "secret"
		}},
		attack{"invalidate", checks.PDOfSTag, func(v *victim) bool {
			mr, f := other(v)
			owner := v.stream(v.pd, "owner")
			if err := f.qp.PostRecv(verbs.RecvWR{}); err != nil {
				v.Fatal(err)
			}
			f.send(mr.STag(), nil)
			f.settled()
			owner.write(mr.STag(), 0, []byte("fine"))
			return !owner.settled()
		}},
	)
}

// An STag that was bound for one stream on another one of its protection domain
// (R9).
func TestSTagOfAnotherStream(t *testing.T) {
	bound := func(v *victim) (*verbs.MR, uint32, *foe) {
		mr := v.region(v.pd, 64, verbs.LocalWrite|verbs.WindowBind)
		copy(mr.Bytes(), "secret")
		mw := must(v.pd.AllocMW())(v.T)
		owner := v.stream(v.pd, "owner")
		wr := verbs.SendWR{Op: verbs.OpBind, MW: mw, SGL: []verbs.SGE{{MR: mr, Len: 64}}, Access: verbs.RemoteRead | verbs.RemoteWrite}
		if err := owner.qp.PostSend(&wr); err != nil {
			v.Fatal(err)
		}
		if !owner.settled() {
			v.Fatal("the owner's stream has ended")
		}
		return mr, mw.STag(), v.stream(v.pd, "mallory")
	}
	run(t,
		attack{"write", checks.StreamOfSTag, func(v *victim) bool {
			mr, stag, f := bound(v)
			f.write(stag, 0, evil)
			if !f.settled() {
				f.wantTerminated(notAssociated)
			}
			return bytes.HasPrefix(mr.Bytes(), evil)
		}},
		attack{"read", checks.StreamOfSTag, func(v *victim) bool {
			_, stag, f := bound(v)
			f.read(stag, 0, 6)
			s, ok := f.hear()
			return ok && s.Tagged && string(s.Payload) == "secret"
		}},
	)
}

// An STag after its end (R10, R12, R15).
func TestSTagThatHasGone(t *testing.T) {
	run(t,
		attack{"write", checks.LiveSTag, func(v *victim) bool {
			mr := v.region(v.pd, 64, all)
			f := v.stream(v.pd, "mallory")
			if err := mr.Invalidate(); err != nil {
				v.Fatal(err)
			}
			f.write(mr.STag(), 0, evil)
			if !f.settled() {
				f.wantTerminated(invalidSTag)
			}
			return bytes.HasPrefix(mr.Bytes(), evil)
		}},
	)
}
