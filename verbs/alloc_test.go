//go:build !race

package verbs

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// echo posts back and keeps receives posted, from the engine's goroutine.
type echo struct {
	recv RecvWR
	wr   SendWR
	got  chan struct{}
	back bool
	srq  *SRQ // of the receives; nil: the queue pair's
}

func (h *echo) Completions(_ *CQ, wcs []WC) {
	for _, wc := range wcs {
		if wc.Err != nil {
			return
		}
		if wc.Op != WCRecv && wc.Op != WCRecvImm {
			h.got <- struct{}{}
			continue
		}
		post := wc.QP.PostRecv
		if h.srq != nil {
			post = h.srq.PostRecv
		}
		if post(h.recv) != nil {
			return
		}
		if h.back {
			wc.QP.PostSend(&h.wr)
		} else {
			h.got <- struct{}{}
		}
	}
}

// The data path allocates nothing in steady state: each operation, both ends,
// with receives of its own or shared ones.
func TestOperationsAllocateNothing(t *testing.T) {
	large := Setup{NoCRC: true, LargeFPDU: MaxLargeFPDU}
	for _, l := range []struct {
		name string
		srq  bool
		pair func(t testing.TB, a, b *end)
	}{
		{"MPA", false, tcpPair(Setup{}, Setup{})},
		{"MPA large FPDUs without CRC", false, tcpPair(large, large)},
		{"MPA with shared receives", true, tcpPair(Setup{}, Setup{})},
		{"SCTP in UDP", false, sctpPair},
	} {
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		ha, hb := &echo{got: make(chan struct{}, 64)}, &echo{back: true}
		for _, s := range []struct {
			e *end
			h *echo
		}{{a, ha}, {b, hb}} {
			cq, err := s.e.ulp.CreateCQ(1024, s.h)
			if err != nil {
				t.Fatal(err)
			}
			s.e.cfg.SendCQ, s.e.cfg.RecvCQ = cq, cq
			s.e.cfg.MaxSendSGE = MaxSGE
		}
		if l.srq {
			hb.srq = b.srq(SRQConfig{MaxRecv: 4, MaxPerQP: 2, HighWater: 2})
		}
		l.pair(t, a, b)
		mra, mrb := a.mr(1<<16, LocalWrite|WindowBind), b.mr(1<<16, LocalWrite|RemoteRead|RemoteWrite|RemoteAtomic)
		ha.recv, hb.recv = RecvWR{SGL: whole(mra, 64)}, RecvWR{SGL: whole(mrb, 64)}
		hb.wr = SendWR{Op: OpSend, SGL: whole(mrb, 64)}
		a.recv(ha.recv)
		if hb.srq == nil {
			b.recv(hb.recv)
		} else if err := hb.srq.PostRecv(hb.recv); err != nil {
			t.Fatal(err)
		}
		mw := a.mw()
		for name, wr := range map[string]SendWR{
			"send and answer":  {Op: OpSend, SGL: whole(mra, 64)},
			"write":            {Op: OpWrite, Flags: Signaled, SGL: whole(mra, 1<<16), RemoteSTag: mrb.STag()},
			"read":             {Op: OpRead, Flags: Signaled, SGL: whole(mra, 1<<16), RemoteSTag: mrb.STag()},
			"write of a list":  {Op: OpWrite, Flags: Signaled, SGL: slices.Repeat(whole(mra, 2000), MaxSGE), RemoteSTag: mrb.STag()},
			"read into a list": {Op: OpRead, Flags: Signaled, SGL: slices.Repeat(whole(mra, 2000), MaxSGE), RemoteSTag: mrb.STag()},
			"inline write":     {Op: OpWrite, Flags: Signaled | Inline, SGL: whole(mra, 128), RemoteSTag: mrb.STag()},
			"fetch and add":    {Op: OpFetchAdd, Flags: Signaled, Add: 1, RemoteSTag: mrb.STag()},
			"bind":             {Op: OpBind, Flags: Signaled, MW: mw, SGL: whole(mra, 64), Access: RemoteRead},
			"register":         {Op: OpRegister, Flags: Signaled, SGL: whole(mra, 64), Access: RemoteRead},
		} {
			run := func() {
				mw.Invalidate()
				if err := a.qp.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				<-ha.got
			}
			for range 100 {
				run()
			}
			if n := testing.AllocsPerRun(500, run); n >= 1 {
				t.Errorf("%s over %s: %v allocations per operation", name, l.name, n)
			}
		}
	}
}

// A work request and its list may live on the poster's stack.
func TestPostedListsStayOnTheStack(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	mr := e.mr(64, LocalWrite)
	e.qp.Close() // posts are refused
	if n := testing.AllocsPerRun(100, func() {
		e.qp.PostRecv(RecvWR{SGL: []SGE{{mr, 0, 8}, {mr, 8, 8}}})
	}); n >= 1 {
		t.Errorf("%v allocations for a receive", n)
	}
	refused := testing.AllocsPerRun(100, func() { e.qp.PostSend(&SendWR{Op: OpWrite}) })
	if n := testing.AllocsPerRun(100, func() {
		e.qp.PostSend(&SendWR{Op: OpWrite, SGL: []SGE{{mr, 0, 8}, {mr, 8, 8}}})
	}); n > refused {
		t.Errorf("%v allocations for a send with a list, %v for one without", n, refused)
	}
}

// Neither does polling with Progress, whether or not something has come.
func TestProgressAllocatesNothing(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	mr := b.mr(64, LocalWrite)
	recv, send := RecvWR{SGL: whole(mr, 64)}, SendWR{Op: OpSend, SGL: whole(a.mr(64, 0), 64)}
	var wcs [1]WC
	run := func() {
		b.cq.Progress()
		b.qp.PostRecv(recv)
		a.qp.PostSend(&send)
		for b.cq.Poll(wcs[:]) == 0 {
			b.cq.Progress()
		}
	}
	for range 100 {
		run()
	}
	if n := testing.AllocsPerRun(500, run); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
