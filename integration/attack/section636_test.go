package attack

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

// overlap is how a second piece of memory lies to a first of 16 bytes at 16.
type overlap struct {
	name    string
	off, n  int
	touches bool
}

var overlaps = []overlap{
	{"the same", 16, 16, true},
	{"its first byte", 0, 17, true},
	{"its last byte", 31, 17, true},
	{"a byte within", 20, 1, true},
	{"all around", 0, 48, true},
	{"up to its first byte", 0, 16, false},
	{"from behind its last byte", 32, 16, false},
}

// amongOthers is memory of 48 bytes, none of them registered. The memory before and
// behind it is registered, alternately.
func amongOthers(v *target, pd *verbs.PD) []byte {
	v.Helper()
	const pieces = 32
	all := make([]byte, 2*pieces*48+48)
	for i := range pieces {
		at := i * 7 % pieces * 48
		must(pd.RegisterMR(all[at:at+48], verbs.RemoteRead))(v.T)
		at += (pieces + 1) * 48
		must(pd.RegisterMR(all[at:at+48], verbs.RemoteRead))(v.T)
	}
	return all[pieces*48:][:48:48]
}

// aliases are attempts to get memory of one trust group into another.
func aliases() (attacks []attack) {
	for _, o := range overlaps {
		if !o.touches {
			continue
		}
		for _, writer := range []string{"first", "second"} {
			attacks = append(attacks, attack{fmt.Sprintf("%s, writable by the %s", o.name, writer), checks.Alias, func(v *target) bool {
				pds := [2]*verbs.PD{must(v.ulp.AllocPDAs(verbs.NSNT))(v.T), must(v.ulp.AllocPDAs(verbs.NSNT))(v.T)}
				access := [2]verbs.Access{verbs.RemoteRead, verbs.RemoteRead}
				w := 0
				if writer == "second" {
					w = 1
				}
				access[w] = verbs.LocalWrite | verbs.RemoteWrite
				buf := amongOthers(v, pds[0])
				if _, err := pds[0].RegisterMR(buf[16:32], access[0]); err != nil {
					v.Fatal(err)
				}
				mr, err := pds[1].RegisterMR(buf[o.off:o.off+o.n], access[1])
				if err != nil {
					if !errors.Is(err, verbs.ErrTrust) {
						v.Errorf("refused with: %v", err)
					}
					return false
				}
				// One peer reads what the other has written.
				at := uint64(max(o.off, 16) - o.off)
				f := v.stream(pds[1], "mallory")
				if w == 1 {
					f.write(mr.STag(), at, []byte{0xee})
					f.settled()
					return bytes.Contains(buf[16:32], []byte{0xee})
				}
				buf[max(o.off, 16)] = 's'
				f.read(mr.STag(), at, 1)
				s, ok := f.hear()
				return ok && s.Tagged && string(s.Payload) == "s"
			}})
		}
	}
	return attacks
}

// Memory for two protection domains of a ULP that trusts neither, one of the two
// with the right to write (R18; RFC 5042 section 6.3.6).
func TestMemoryForTwoTrustGroups(t *testing.T) { run(t, aliases()...) }

// Memory that only looks like that, or that nobody can write to, is registered.
func TestMemoryForTwoTrustGroupsThatIsHarmless(t *testing.T) {
	for _, o := range overlaps {
		for _, writable := range []bool{false, true} {
			if o.touches && writable {
				continue
			}
			v := newTargetAs(t, verbs.Config{}, verbs.NSNT)
			access := verbs.RemoteRead
			if writable {
				access |= verbs.LocalWrite | verbs.RemoteWrite
			}
			buf := make([]byte, 48)
			must(v.pd.RegisterMR(buf[16:32], access))(t)
			if _, err := v.domain().RegisterMR(buf[o.off:o.off+o.n], access); err != nil {
				t.Errorf("%s, writable %v: %v", o.name, writable, err)
			}
		}
	}
}

// Windows for two streams of a protection domain whose streams do not trust each
// other, on the same memory, one of them with the right to write (R18).
func TestWindowsOfTwoStreamsOnTheSameMemory(t *testing.T) { run(t, sharedWindows()...) }

func sharedWindows() (attacks []attack) {
	for _, o := range overlaps {
		if !o.touches {
			continue
		}
		for _, right := range []verbs.Access{verbs.RemoteRead, verbs.RemoteWrite, verbs.RemoteAtomic} {
			if right == verbs.RemoteAtomic && (o.off > 16 || o.off+o.n < 24) {
				continue // it takes 8 bytes
			}
			spoils := right != verbs.RemoteRead
			name := fmt.Sprintf("%s, to %s what another peer reads", o.name, map[bool]string{false: "write", true: "add to"}[right == verbs.RemoteAtomic])
			if !spoils {
				name = o.name + ", to read what another peer writes"
			}
			attacks = append(attacks, attack{name, checks.AliasWindow, func(v *target) bool {
				pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
				mr := v.region(pd, 48, verbs.LocalWrite|verbs.WindowBind)
				hers, his := verbs.RemoteWrite, right
				if spoils {
					hers = verbs.RemoteRead
				}
				alice, f := v.stream(pd, "alice"), v.stream(pd, "mallory")
				alice.bind(mr, 16, 16, hers)
				mw := must(pd.AllocMW())(v.T)
				wr := verbs.SendWR{ID: 3, Op: verbs.OpBind, Flags: verbs.Signaled, MW: mw, SGL: []verbs.SGE{{MR: mr, Off: uint32(o.off), Len: uint32(o.n)}}, Access: his}
				if err := f.qp.PostSend(&wr); err != nil {
					v.Fatal(err)
				}
				if err := f.completion(3).Err; err != nil {
					if !errors.Is(err, verbs.ErrTrust) {
						v.Errorf("refused with: %v", err)
					}
					return false
				}
				at := max(o.off, 16)
				if right == verbs.RemoteAtomic {
					f.fetchAdd(mw.STag(), uint64(16-o.off), 1)
					f.settled()
					return !bytes.Equal(mr.Bytes()[16:24], make([]byte, 8))
				}
				if spoils {
					f.write(mw.STag(), uint64(at-o.off), []byte{0xee})
					f.settled()
					return mr.Bytes()[at] == 0xee
				}
				mr.Bytes()[at] = 's'
				f.read(mw.STag(), uint64(at-o.off), 1)
				s, ok := f.hear()
				return ok && s.Tagged && string(s.Payload) == "s"
			}})
		}
	}
	return attacks
}
