package attack

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

// foreignMemory are attacks in which mallory registers memory that another consumer has,
// and uses it (R29; RFC 5042 section 7.3).
func foreignMemory() (attacks []attack) {
	for _, o := range overlaps {
		if !o.touches {
			continue
		}
		try := func(access verbs.Access, use func(f *stream, mr *verbs.MR, at int, alices []byte) bool) func(v *target) bool {
			return func(v *target) bool {
				alice := must(v.consumer("alice", verbs.ST).AllocPD())(v.T)
				buf := amongOthers(v, alice)
				must(alice.RegisterMR(buf[16:32], access))(v.T)
				mr, err := v.pd.RegisterMR(buf[o.off:o.off+o.n], access)
				if err != nil {
					if !errors.Is(err, verbs.ErrForeignMemory) {
						v.Errorf("refused with: %v", err)
					}
					return false
				}
				return use(v.stream(v.pd, "mallory"), mr, max(o.off, 16)-o.off, buf[16:32])
			}
		}
		attacks = append(attacks,
			attack{o.name + "/to write", checks.ForeignMemory, try(all, func(f *stream, mr *verbs.MR, at int, alices []byte) bool {
				f.write(mr.STag(), uint64(at), []byte{0xee})
				f.settled()
				return bytes.Contains(alices, []byte{0xee})
			})},
			attack{o.name + "/to read", checks.ForeignMemory, try(verbs.RemoteRead, func(f *stream, mr *verbs.MR, at int, alices []byte) bool {
				for i := range alices {
					alices[i] = 's'
				}
				f.read(mr.STag(), uint64(at), 1)
				s, ok := f.hear()
				return ok && s.Tagged && string(s.Payload) == "s"
			})},
			attack{o.name + "/to receive into", checks.ForeignMemory, try(verbs.LocalWrite, func(f *stream, mr *verbs.MR, at int, alices []byte) bool {
				f.v.granted(f.qp.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{{MR: mr, Off: uint32(at), Len: 1}}}))
				f.send(0, []byte{0xee})
				f.completion(1)
				return bytes.Contains(alices, []byte{0xee})
			})},
		)
	}
	return attacks
}

// A consumer registers memory that was handed out to another one.
func TestMemoryOfAnotherConsumer(t *testing.T) { run(t, foreignMemory()...) }

// Memory beside it is his, and all of it when the other one has given it back; trust
// in each other makes no difference while he has it.
func TestMemoryThatAnotherConsumerHasGivenBack(t *testing.T) {
	for _, o := range overlaps {
		v := newTarget(t)
		buf := make([]byte, 48)
		alice := must(v.consumer("alice", verbs.ST).AllocPD())(t)
		hers := must(alice.RegisterMR(buf[16:32], all))(t)
		mr, err := v.pd.RegisterMR(buf[o.off:o.off+o.n], all)
		if (err == nil) == o.touches {
			t.Errorf("%s: %v", o.name, err)
		}
		if mr != nil {
			continue
		}
		if err := hers.Deregister(); err != nil {
			t.Fatal(err)
		}
		if _, err := v.pd.RegisterMR(buf[o.off:o.off+o.n], all); err != nil {
			t.Errorf("%s, given back: %v", o.name, err)
		}
	}
}
