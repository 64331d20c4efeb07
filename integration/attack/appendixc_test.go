package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/verbs"
)

// modelled is an attack that is made under each trust model.
type modelled struct {
	row    string // of RFC 5042's requirements
	name   string
	waived func(verbs.Trust) bool // where it succeeds, since the model waives the rule
	try    func(v *target) bool
}

func never(verbs.Trust) bool { return false }

func sharesStreams(t verbs.Trust) bool { return t.ShareStreams }
func sharesSTags(t verbs.Trust) bool   { return t.ShareStreams && t.ShareSTags }

// neighbours are two streams of one protection domain.
func (v *target) neighbours() (alice, mallory *stream) {
	return v.stream(v.pd, "alice"), v.stream(v.pd, "mallory")
}

// modelledAttacks are the suite's attacks of streams and consumers on each other, each in
// the form that the model at hand permits.
func modelledAttacks() (list []modelled) {
	add := func(row, name string, waived func(verbs.Trust) bool, try func(v *target) bool) {
		list = append(list, modelled{row, name, waived, try})
	}
	add("R3", "a second stream in a protection domain", sharesStreams, func(v *target) bool {
		v.neighbours()
		return true
	})
	add("R3", "a second stream on a completion queue", sharesStreams, func(v *target) bool {
		_, err := v.tryStream(v.pd, v.cq, "alice")
		v.granted(err)
		_, err = v.tryStream(v.domain(), v.cq, "mallory")
		v.granted(err)
		return true
	})
	for _, a := range tries(checks.None, anothersDomain) {
		add("R8", a.name+" by an STag of another protection domain", never, a.try)
	}
	for _, a := range readAnswers() {
		add("R8, R9", "a Read Response to an STag "+a.name, never, a.try)
	}
	for _, a := range tries(checks.None, anothersStream) {
		add("R9", a.name+" by an STag of another stream", never, a.try)
	}
	for _, a := range accesses[:3] {
		add("R10", a.name+" by an STag that has gone", never, func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			mr, stag := f.grant(64, all)
			f.revoke(stag)
			return a.try(f, nil, mr, stag)
		})
	}
	add("R11", "write behind the end of a window", never, writeOutside(16, 1))
	add("R11", "read behind the end of a window", never, readOutside(16, 1))
	add("R12", "write while the right is revoked", never, writeUnderRevocation)
	for _, way := range ways {
		add("R17", way.name+" without the right", never, func(v *target) bool {
			f := v.stream(v.pd, "mallory")
			mr, stag := f.grant(64, all&^way.need)
			return way.try(f, nil, mr, stag)
		})
	}
	add("R18", "the same memory in two protection domains, one to write", func(t verbs.Trust) bool { return t.Alias }, func(v *target) bool {
		buf := make([]byte, 64)
		for _, pd := range []*verbs.PD{v.pd, v.domain()} {
			_, err := pd.RegisterMR(buf, verbs.LocalWrite|verbs.WindowBind)
			v.granted(err)
		}
		return true
	})
	add("R18", "windows of two streams on the same memory, one to write", sharesSTags, func(v *target) bool {
		alice, f := v.neighbours()
		mr := v.region(v.pd, 64, verbs.LocalWrite|verbs.WindowBind)
		alice.bind(mr, 0, 64, verbs.RemoteRead)
		f.bind(mr, 0, 64, verbs.RemoteWrite)
		return true
	})
	add("R21", "take all receives of a shared receive queue", func(t verbs.Trust) bool { return t.ShareStreams && t.UnlimitedSRQ }, takeAllReceives)
	add("R22", "overflow a completion queue for a neighbour", func(t verbs.Trust) bool { return t.ShareStreams && t.Overcommit }, overflowTheNeighbours)
	for _, a := range accesses {
		add("R25", a.name+" by the STag of a region that a neighbour uses", sharesSTags, func(v *target) bool {
			alice, f := v.neighbours()
			mr := v.region(v.pd, 64, all)
			return a.try(f, alice, mr, mr.STag())
		})
	}
	add("R27", "a completion queue of another consumer", never, func(v *target) bool {
		theirs := must(v.consumer("alice", v.ulp.Trust()).CreateCQ(1<<10, nil))(v.T)
		_, err := v.tryStream(v.pd, theirs, "mallory")
		return err == nil
	})
	add("R29", "memory of another consumer", never, func(v *target) bool {
		buf := make([]byte, 64)
		alice := must(v.consumer("alice", v.ulp.Trust()).AllocPD())(v.T)
		must(alice.RegisterMR(buf, verbs.LocalWrite))(v.T)
		_, err := v.pd.RegisterMR(buf, verbs.LocalWrite)
		return err == nil
	})
	add("R31", "send from memory of another protection domain", never, func(v *target) bool {
		mr := v.region(v.domain(), 64, verbs.LocalWrite)
		return v.stream(v.pd, "mallory").qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: mr, Len: 64}}}) == nil
	})
	return list
}

// revoke ends the access by stag, of a region or a window.
func (f *stream) revoke(stag uint32) {
	f.v.Helper()
	const id = 1 << 42
	wr := verbs.SendWR{ID: id, Op: verbs.OpInvalidateLocal, InvalidateSTag: stag, Flags: verbs.Signaled}
	f.v.granted(f.qp.PostSend(&wr))
	f.v.granted(f.completion(id).Err)
}

// writeUnderRevocation is the attack of TestRevocationWaitsForTheAccessThatIsUnderWay.
func writeUnderRevocation(v *target) bool {
	peer, llp := iwarptest.NewPeer(iwarptest.Options{Direct: true})
	slow := newSlowLLP(llp)
	f := must(v.streamOn(v.pd, v.config(v.cq), peer, slow, "mallory"))(v.T)
	mr, stag := f.grant(64, all)
	f.write(stag, 0, evil)
	<-slow.held
	f.revoke(stag)
	snapshot := bytes.Clone(mr.Bytes())
	close(slow.resume)
	<-closed(f)
	return !bytes.Equal(snapshot, mr.Bytes())
}

// takeAllReceives lets alice's stream run dry.
func takeAllReceives(v *target) bool {
	srq, err := v.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 4})
	v.granted(err)
	for range 4 {
		v.granted(srq.PostRecv(verbs.RecvWR{}))
	}
	cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 1, SRQ: srq}
	alice, err := v.streamAs(v.pd, cfg, iwarptest.Options{}, "alice")
	v.granted(err)
	f, err := v.streamAs(v.pd, cfg, iwarptest.Options{}, "mallory")
	v.granted(err)
	for range 4 {
		f.send(0, nil)
		f.completion(0)
	}
	alice.send(0, nil)
	alice.end()
	return errors.Is(alice.qp.Err(), verbs.ErrSRQEmpty)
}

// overflowTheNeighbours fills the completion queue that alice's stream needs, too.
func overflowTheNeighbours(v *target) bool {
	cq := must(v.ulp.CreateCQ(8, nil))(v.T)
	cfg := verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 8}
	alice, err := v.streamAs(v.pd, cfg, iwarptest.Options{}, "alice")
	v.granted(err)
	f, err := v.streamAs(v.pd, cfg, iwarptest.Options{}, "mallory")
	v.granted(err)
	for range 8 {
		v.granted(f.qp.PostRecv(verbs.RecvWR{}))
		f.send(0, nil)
	}
	for f.qp.Stats().RecvOps < 8 { // nobody polls
		if f.qp.State() != verbs.QPRTS {
			return false
		}
		runtime.Gosched()
	}
	v.granted(alice.qp.PostRecv(verbs.RecvWR{}))
	alice.send(0, nil)
	alice.end()
	return errors.Is(alice.qp.Err(), verbs.ErrCQOverflow)
}

// under makes the attack under model m. The model may refuse what the attack needs.
func (a modelled) under(t *testing.T, m verbs.TrustModel) (outcome string) {
	v := newTargetAs(t, verbs.Config{}, m)
	v.mayBeRefused = true
	defer func() {
		switch r := recover().(type) {
		case nil:
		case refusal:
			outcome = "refused"
		default:
			panic(r)
		}
	}()
	if a.try(v) {
		return "waived"
	}
	return "stopped"
}

// The suite under each of the five models: each attack fails, except on rules that the
// model waives, and docs/trust-models.md lists those (R34; RFC 5042 appendix C).
// "refused" there is an attack for which the model does not grant what it needs.
func TestTrustModelsWaiveWhatTheirTableSays(t *testing.T) {
	if checks.Weakened {
		t.Skip("each of these attacks has its twin in another test")
	}
	var b strings.Builder
	models := verbs.TrustModels()
	b.WriteString("| attack | row |")
	for _, m := range models {
		fmt.Fprintf(&b, " %v |", m)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(models)) + "\n")
	for _, a := range modelledAttacks() {
		fmt.Fprintf(&b, "| %s | %s |", a.name, a.row)
		for _, m := range models {
			t.Run(a.name+"/"+m.String(), func(t *testing.T) {
				got := a.under(t, m)
				if waived := a.waived(m.Trust()); waived != (got == "waived") {
					t.Errorf("%s, though the model waives it: %v", got, waived)
				}
				if got == "waived" {
					got = "**waived**"
				}
				fmt.Fprintf(&b, " %s |", got)
			})
		}
		b.WriteString("\n")
	}
	doc, err := os.ReadFile("../../docs/trust-models.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), b.String()) {
		t.Errorf("docs/trust-models.md has another table than this:\n%s", b.String())
	}
}

// The table of rules in the document is that of the code.
func TestTrustModelsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/trust-models.md")
	if err != nil {
		t.Fatal(err)
	}
	for f := range reflect.TypeFor[verbs.Trust]().Fields() {
		var waived string
		for _, m := range verbs.TrustModels() {
			if reflect.ValueOf(m.Trust()).FieldByIndex(f.Index).Bool() {
				waived += " waived"
			}
			waived += " |"
		}
		found := false
		for line := range strings.Lines(string(doc)) {
			found = found || strings.HasPrefix(line, "| `"+f.Name+"`") && strings.HasSuffix(line, "|"+waived+"\n")
		}
		if !found {
			t.Errorf("docs/trust-models.md should have a line on `%s` that ends with |%s", f.Name, waived)
		}
	}
}
