package attack

import (
	"errors"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/verbs"
)

// A consumer frees each of its objects from 64 goroutines at once. None is given back
// twice, so its quota is not a byte larger afterwards (R2).
func TestConsumerFreesEverythingManyTimes(t *testing.T) {
	const goroutines = 64
	v := newTarget(t)
	quota := verbs.Quota{Streams: 1, PDs: 2, MRs: 1, MWs: 1, Bytes: 64, CQEntries: 8, QueueEntries: 8, SRQEntries: 4, IRRQEntries: 4}
	u := must(v.dev.NewULP("mallory", verbs.ULPConfig{Trust: verbs.ST, Quota: quota}))(t)
	for range 20 {
		pd, empty := must(u.AllocPD())(t), must(u.AllocPD())(t)
		cq := must(u.CreateCQ(8, nil))(t)
		srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 4}))(t)
		mr := must(pd.RegisterMR(make([]byte, 64), all))(t)
		mw := must(pd.AllocMW())(t)
		f := must(v.streamAs(pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4, IRD: 4}, iwarptest.Options{}, "peer"))(t)
		if got := u.Usage(); got != quota {
			t.Fatalf("in use: %+v, want all of %+v", got, quota)
		}
		many(goroutines, func() {
			f.qp.Abort(nil)
			<-f.qp.Done()
			for _, err := range []error{empty.Dealloc(), srq.Destroy(), mw.Dealloc(), mr.Deregister(), cq.Destroy(), pd.Dealloc()} {
				if err != nil && !errors.Is(err, verbs.ErrInUse) {
					t.Error(err)
				}
			}
		})
		for _, err := range []error{cq.Destroy(), pd.Dealloc()} { // what was in use in the meantime
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := u.Usage(); got != (verbs.Limits{}) {
			t.Fatalf("everything has been freed, in use: %+v", got)
		}
	}
}

// many runs f in n goroutines at a time.
func many(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

// A consumer asks for the last of everything from 64 goroutines at once. One gets it
// (R2).
func TestConsumerAsksManyTimesAtOnce(t *testing.T) {
	v := newTarget(t)
	for range 20 {
		u := must(v.dev.NewULP("mallory", verbs.ULPConfig{Trust: verbs.ST, Quota: verbs.Quota{PDs: 1}}))(t)
		var mu sync.Mutex
		var got []*verbs.PD
		many(64, func() {
			if pd, err := u.AllocPD(); err == nil {
				mu.Lock()
				got = append(got, pd)
				mu.Unlock()
			}
		})
		if len(got) != 1 {
			t.Fatalf("%d protection domains, the quota is 1", len(got))
		}
	}
}

// A consumer that has been closed, or whose objects are gone, gets nothing through
// them any more (R1).
func TestConsumerAfterItsEnd(t *testing.T) {
	v := newTarget(t)
	u := must(v.dev.NewULP("mallory", verbs.ULPConfig{Trust: verbs.ST}))(t)
	pd, cq := must(u.AllocPD())(t), must(u.CreateCQ(8, nil))(t)
	srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 1}))(t)
	mr := must(pd.RegisterMR(make([]byte, 8), all))(t)
	mw := must(pd.AllocMW())(t)
	if err := u.Close(); !errors.Is(err, verbs.ErrInUse) {
		t.Errorf("closed with all that allocated: %v", err)
	}
	f := v.stream(v.pd, "alice")
	for _, err := range []error{mw.Dealloc(), mr.Deregister(), srq.Destroy(), cq.Destroy(), pd.Dealloc(), u.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, anew := mr.Reregister(0, 8, all)
	_, pdErr := u.AllocPD()
	_, cqErr := u.CreateCQ(1, nil)
	_, mrErr := pd.RegisterMR(make([]byte, 8), all)
	_, mwErr := pd.AllocMW()
	_, srqErr := pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 1})
	_, qpErr := v.streamAs(pd, v.config(cq), iwarptest.Options{}, "mallory")
	for what, err := range map[string]error{
		"Reregister": anew, "AllocPD": pdErr, "CreateCQ": cqErr, "RegisterMR": mrErr, "AllocMW": mwErr, "CreateSRQ": srqErr, "Adopt": qpErr,
		"MR.Invalidate": mr.Invalidate(), "MW.Invalidate": mw.Invalidate(), "SRQ.PostRecv": srq.PostRecv(verbs.RecvWR{}), "SRQ.Arm": srq.Arm(1),
	} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after the end: %v, want ErrClosed", what, err)
		}
	}
	// The memory's STag belongs to nobody.
	f.write(mr.STag(), 0, evil)
	if f.settled() {
		t.Error("an STag of the closed consumer is of use")
	}
}

// stuck is a handler that does not return before the test's end.
type stuck struct{ entered, release chan struct{} }

func (s *stuck) Completions(*verbs.CQ, []verbs.WC) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.release
}

// A consumer whose handler never returns holds up its own stream, and nobody else's:
// another one's streams go on, come and go (R1).
func TestConsumerWhoseHandlerNeverReturns(t *testing.T) {
	v := newTarget(t)
	u := v.consumer("mallory", verbs.ST)
	h := &stuck{make(chan struct{}, 1), make(chan struct{})}
	defer close(h.release)
	cq := must(u.CreateCQ(64, h))(t)
	f := must(v.tryStream(must(u.AllocPD())(t), cq, "mallory"))(t)
	if err := f.qp.PostRecv(verbs.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	f.send(0, nil)
	<-h.entered
	for range 3 {
		alice := v.stream(v.pd, "alice")
		mr, stag := alice.grant(64, all)
		alice.write(stag, 0, []byte("fine"))
		if !alice.settled() || string(mr.Bytes()[:4]) != "fine" {
			t.Fatal("another consumer's stream does not go on")
		}
		<-closed(alice)
	}
}
