package verbs

import "testing"

// What a completion queue holds grows with what has been in it at once, so that the
// queues of many streams that do little are small.
func TestQueueOfAStreamThatDoesLittleIsSmall(t *testing.T) {
	const turns, most = 20, 8 // entries
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	got := make(chan WC, turns)
	cq, err := b.ulp.CreateCQ(1024, handlerFunc(func(_ *CQ, wcs []WC) {
		for _, wc := range wcs {
			got <- wc
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	b.cfg.SendCQ, b.cfg.RecvCQ = cq, cq
	tcpPair(Setup{}, Setup{})(t, a, b)
	mra, mrb := a.mr(64, LocalWrite), b.mr(64, LocalWrite)
	for range turns {
		b.recv(RecvWR{SGL: whole(mrb, 64)})
		a.post(SendWR{Op: OpSend, Flags: Signaled, SGL: whole(mra, 64)})
		a.wantOK(WCSend)
		if wc := <-got; wc.Err != nil {
			t.Fatal(wc.Err)
		}
	}
	a.qp.Close()
	<-b.qp.Done() // its handler has returned from the last completion
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if n := len(cq.ring) + len(cq.batch); n > most {
		t.Errorf("room for %d completions after one at a time, want at most %d", n, most)
	}
}
