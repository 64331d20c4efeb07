package attack

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// rights are all sets of remote rights.
func rights() (sets []verbs.Access) {
	for i := range verbs.Access(8) {
		sets = append(sets, verbs.LocalWrite|i&1*verbs.RemoteRead|i>>1&1*verbs.RemoteWrite|i>>2&1*verbs.RemoteAtomic)
	}
	return sets
}

// rightName names a set.
func rightName(a verbs.Access) string {
	s := ""
	for _, r := range []struct {
		bit  verbs.Access
		name string
	}{{verbs.RemoteRead, "read"}, {verbs.RemoteWrite, "write"}, {verbs.RemoteAtomic, "atomic"}} {
		if a&r.bit != 0 {
			s += " " + r.name
		}
	}
	if s == "" {
		return "no right"
	}
	return "right to" + s
}

// ways are what takes a right.
var ways = []struct {
	access
	need verbs.Access
	want rdmap.Terminate
}{
	{accesses[0], verbs.RemoteWrite, protectionError(rdmap.CodeAccess)},
	{accesses[1], verbs.RemoteRead, protectionError(rdmap.CodeAccess)},
	{accesses[2], verbs.RemoteAtomic, protectionError(rdmap.CodeAccess)},
}

// Each set of rights, in a region and in a window, with each way to use it: what is
// write-only stays write-only, and so on (R17; RFC 5042 section 6.3.5).
func TestAccessWithoutTheRight(t *testing.T) {
	var attacks []attack
	for _, have := range rights() {
		for _, way := range ways {
			if have&way.need != 0 {
				continue
			}
			try := func(window bool) func(v *target) bool {
				return func(v *target) bool {
					f := v.stream(v.pd, "mallory")
					var mr *verbs.MR
					var stag uint32
					if window {
						mr = v.region(v.pd, 64, all|verbs.WindowBind)
						_, stag = f.bind(mr, 0, 64, have)
					} else {
						mr, stag = f.grant(64, have)
					}
					succeeded := way.try(f, nil, mr, stag)
					if !succeeded {
						f.wantTerminated(way.want)
					}
					return succeeded
				}
			}
			attacks = append(attacks, attack{fmt.Sprintf("%s/region with %s", way.name, rightName(have)), checks.Rights, try(false)})
			if have != verbs.LocalWrite { // a window has a right
				attacks = append(attacks, attack{fmt.Sprintf("%s/window with %s", way.name, rightName(have)), checks.Rights, try(true)})
			}
		}
	}
	run(t, attacks...)
}

// With the right, each of them succeeds: the attacks above do not fail for another
// reason.
func TestAccessWithTheRight(t *testing.T) {
	for _, have := range rights() {
		for _, way := range ways {
			if have&way.need == 0 {
				continue
			}
			v := newTarget(t)
			f := v.stream(v.pd, "alice")
			mr, stag := f.grant(64, have)
			if !way.try(f, nil, mr, stag) {
				t.Errorf("%s with the %s does nothing", way.name, rightName(have))
			}
		}
	}
}

// A Read of nothing takes no right and no STag, and reveals nothing; nor does a Write
// of nothing (R17; RFC 5042 section 6.3.5, RFC 5040 section 7.2, RFC 5041 section
// 5.2).
func TestNothingIsReadAndWrittenWithoutAnSTag(t *testing.T) {
	v := newTarget(t)
	f := v.stream(v.pd, "alice")
	for _, stag := range []uint32{0, 0xdead, v.region(v.pd, 8, verbs.LocalWrite).STag(), v.region(v.pd, 8, verbs.LocalWrite|verbs.RemoteWrite).STag()} {
		for _, to := range []uint64{0, 8, 9, 1<<64 - 1} {
			f.read(stag, to, 0)
			f.write(stag, to, nil)
			if !f.settled() {
				t.Fatalf("a Read and a Write of nothing at %d of STag %#x end the stream: %v", to, stag, f.qp.Err())
			}
			if s, ok := f.hear(); !ok || !s.Tagged || !s.Last || len(s.Payload) != 0 {
				t.Errorf("the answer to a Read of nothing is %+v", s)
			}
		}
	}
}

// A source of a Write that the target can't change itself can't be changed for it
// by a peer: rights to write need the right to write locally.
func TestPeerHasNoRightThatTheOwnerLacks(t *testing.T) {
	v := newTarget(t)
	for _, a := range []verbs.Access{verbs.RemoteWrite, verbs.RemoteAtomic, verbs.RemoteRead | verbs.RemoteWrite} {
		if _, err := v.pd.RegisterMR(make([]byte, 8), a); err == nil {
			t.Errorf("access %#x is given", a)
		}
	}
	f := v.stream(v.pd, "mallory")
	mr := v.region(v.pd, 8, verbs.WindowBind)
	mw := must(v.pd.AllocMW())(t)
	for _, wr := range []verbs.SendWR{
		{Op: verbs.OpBind, MW: mw, SGL: []verbs.SGE{{MR: mr, Len: 8}}, Access: verbs.RemoteWrite},
		{Op: verbs.OpRegister, SGL: []verbs.SGE{{MR: mr, Len: 8}}, Access: verbs.RemoteAtomic},
	} {
		if err := f.qp.PostSend(&wr); err == nil {
			t.Errorf("%+v is posted", wr)
		}
	}
	if _, err := mr.Reregister(0, 8, verbs.RemoteWrite); err == nil {
		t.Error("a region without LocalWrite is opened for writing")
	}
	if !bytes.Equal(mr.Bytes(), make([]byte, 8)) {
		t.Error("memory has changed")
	}
}
