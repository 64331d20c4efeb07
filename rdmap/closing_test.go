package rdmap_test

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// slowLLP takes its time for each batch.
type slowLLP struct {
	*iwarptest.LLP
	each time.Duration
}

func (slowLLP) TryFlush() (bool, error) { return false, nil }

func (l slowLLP) Flush() error {
	<-time.After(l.each)
	return l.LLP.Flush()
}

// heldLLP takes everything at once, as a socket with a large buffer does, and knows how
// much of it the peer has not acknowledged.
type heldLLP struct {
	*iwarptest.LLP
	held atomic.Int64
}

func (l *heldLLP) Outq() (int, error) { return int(l.held.Load()), nil }

// outage is longer than two retransmissions of a path whose first one takes a second
// (RFC 9260 section 6.3.1), or four of TCP's.
const outage = 8 * time.Second

// A graceful close of a slow stream that gets on is not cut off: neither with
// many messages in the queue nor in the middle of a long one, and not by packets that
// were lost several times.
func TestCloseSendsWhatTakesLong(t *testing.T) {
	for name, sends := range map[string][]int{
		"several messages":   {30000, 30000, 30000, 30000},
		"one long message":   {150000},
		"short and long one": {10, 100000},
		"one short message":  {10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raw, l := iwarptest.Pair(iwarptest.Options{})
				up := newUpper()
				s := rdmap.New(rdmap.Config{LLP: slowLLP{l, outage}, Upper: up, MaxSend: 16})
				go s.Run()
				p := &peer{upper: up, t: t, s: s, raw: raw}
				total := 0
				for i, n := range sends {
					p.postMore(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: uint64(i)}, make([]byte, n)), i < len(sends)-1)
					total += n
				}
				s.Close()
				got := 0
				for {
					segs, err := raw.Recv()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Fatalf("after %d of %d bytes: %v", got, total, err)
					}
					for _, seg := range segs {
						got += len(seg) - 18
					}
				}
				<-time.After(outage) // the peer's end is late, too
				raw.CloseWrite()
				<-up.over
				if got != total || up.err != nil {
					t.Errorf("%d of %d bytes arrived, the stream ended with %v", got, total, up.err)
				}
			})
		})
	}
}

// A Read that was posted before the close is answered, however long it takes, as long as
// something of it comes.
func TestCloseWaitsForALongRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, sink := closeWithRead(t, 6*1000, nil)
		segs, err := p.raw.Recv()
		if err != nil || len(segs) != 1 {
			t.Fatalf("%d segments, %v; want the Read Request", len(segs), err)
		}
		for i := range 6 {
			<-time.After(outage)
			data := make([]byte, 1000)
			data[0] = byte(i + 1)
			if err := p.raw.Send(tagged(i == 5, rdmap.OpReadResponse, sinkOf(segs[0]), uint64(i*1000), data...)); err != nil {
				t.Fatalf("segment %d: %v", i, err)
			}
		}
		p.wantFin()
		p.raw.CloseWrite()
		<-p.over
		if p.err != nil || p.errs[1] != nil || sink[5000] != 6 {
			t.Errorf("the Read completed with %v, the stream ended with %v", p.errs[1], p.err)
		}
	})
}

// closeWithRead is a stream that was closed after a Read of n bytes was posted.
func closeWithRead(t *testing.T, n int, l *heldLLP) (*peer, []byte) {
	raw, mem := iwarptest.Pair(iwarptest.Options{})
	cfg := rdmap.Config{LLP: mem, Upper: newUpper(), MaxSend: 16, ORD: 1}
	if l != nil {
		l.LLP, cfg.LLP = mem, l
	}
	p := &peer{upper: cfg.Upper.(*upper), t: t, raw: raw, s: rdmap.New(cfg)}
	go p.s.Run()
	sink := make([]byte, n)
	p.post(sgl(rdmap.Op{Kind: rdmap.OpReadRequest, ID: 1, STag: 7}, sink))
	p.s.Close()
	return p, sink
}

// sinkOf is the sink STag of a Read Request.
func sinkOf(seg []byte) uint32 {
	req, ok := rdmap.ParseReadRequest(seg[18:])
	if !ok {
		panic("not a Read Request")
	}
	return req.SinkSTag
}

// What is queued below, in a socket's buffer, is waited for as long as some of it goes.
func TestCloseWaitsForWhatTheSocketHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &heldLLP{}
		l.held.Store(6000)
		p := closeHeld(t, l)
		for range 6 {
			<-time.After(outage)
			l.held.Add(-1000)
		}
		<-time.After(outage)
		p.raw.CloseWrite()
		<-p.over
		if p.err != nil {
			t.Errorf("the stream ended with %v", p.err)
		}
	})
}

// closeHeld is a stream that was closed after a Send, which l has taken.
func closeHeld(t *testing.T, l *heldLLP) *peer {
	raw, mem := iwarptest.Pair(iwarptest.Options{})
	l.LLP = mem
	p := &peer{upper: newUpper(), t: t, raw: raw}
	p.s = rdmap.New(rdmap.Config{LLP: l, Upper: p.upper, MaxSend: 16})
	go p.s.Run()
	p.post(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, make([]byte, 10)))
	p.s.Close()
	return p
}

// A peer that takes nothing, or does not follow, holds a stream that is being closed for
// seconds; one that takes next to nothing for minutes.
func TestCloseCutsAPeerOff(t *testing.T) {
	for name, l := range map[string]struct {
		most time.Duration
		run  func(t *testing.T) *peer
	}{
		"that takes nothing": {12 * time.Second, closeStalled},
		"that does not follow": {12 * time.Second, func(t *testing.T) *peer {
			return closeHeld(t, &heldLLP{})
		}},
		"that acknowledges a byte at a time": {time.Hour, func(t *testing.T) *peer {
			l := &heldLLP{}
			l.held.Store(1 << 40)
			p := closeHeld(t, l)
			go trickle(p, func() { l.held.Add(-1) })
			return p
		}},
		"that answers a Read byte by byte": {time.Hour, func(t *testing.T) *peer {
			p, _ := closeWithRead(t, 1<<20, nil)
			segs, err := p.raw.Recv()
			if err != nil {
				t.Fatal(err)
			}
			to := uint64(0)
			go trickle(p, func() {
				p.raw.Send(tagged(false, rdmap.OpReadResponse, sinkOf(segs[0]), to, 1))
				to++
			})
			return p
		}},
		// What the peer asks for is no progress of the close, although it acknowledges
		// the answers.
		"that does not answer and goes on asking": {12 * time.Second, func(t *testing.T) *peer {
			l := &heldLLP{}
			p, _ := closeWithRead(t, 1000, l)
			go trickle(p, func() { l.held.Add(1) })
			return p
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				p := l.run(t)
				<-p.over
				if d := time.Since(begin); d < outage || d > l.most {
					t.Errorf("the close took %v, want between %v and %v", d, outage, l.most)
				}
				if !errors.Is(p.err, rdmap.ErrCutOff) {
					t.Errorf("the stream ended with %v", p.err)
				}
			})
		})
	}
}

// trickle does something every few seconds until the stream is over.
func trickle(p *peer, do func()) {
	for {
		select {
		case <-p.over:
			return
		case <-time.After(outage):
			do()
		}
	}
}

// Answers to the peer are no progress of the close: a peer that goes on asking
// is cut off.
func TestCloseIsNotHeldUpByThePeersReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw, l := iwarptest.Pair(iwarptest.Options{})
		up := newUpper()
		s := rdmap.New(rdmap.Config{LLP: slowLLP{l, 1500 * time.Millisecond}, Upper: up, MaxSend: 16, IRD: 4})
		p := &peer{upper: up, t: t, s: s, raw: raw}
		p.region(7, 10000, rdmap.RemoteRead)
		ask := func(msn uint32) {
			req := rdmap.ReadRequest{SinkSTag: 1, Size: 10000, SourceSTag: 7}
			raw.Send(untagged(true, rdmap.OpReadRequest, rdmap.QNReadRequest, msn, 0, req.Append(nil)...))
		}
		ask(1)
		ask(2)
		go s.Run()
		synctest.Wait()
		begin := time.Now()
		s.Close()
		go func() {
			for msn := uint32(3); ; msn++ {
				if _, err := raw.Recv(); err != nil {
					return
				}
				ask(msn)
			}
		}()
		<-up.over
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("the close took %v", d)
		}
	})
}

// A fault while the stream is being closed ends it as it ends any other: the Terminate
// has its time, and the peer that made the fault is not waited for as long as one that
// takes what is queued.
func TestFaultDuringAClose(t *testing.T) {
	for name, takes := range map[string]bool{"the peer takes the Terminate": true, "the peer takes nothing": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := closeStalled(t)
				begin := time.Now()
				p.raw.Send(untagged(true, rdmap.OpSend, 9, 1, 0))
				if takes {
					<-time.After(1900 * time.Millisecond)
					p.raw.Stall(false)
					p.wantTerminate()
				}
				<-p.over
				if d := time.Since(begin); d > outage {
					t.Errorf("the end took %v", d)
				}
				var fault *ddp.Error
				if !errors.As(p.err, &fault) {
					t.Errorf("the stream ended with %v", p.err)
				}
			})
		})
	}
}

// A fault may come while a close is being looked at: the Terminate has its two seconds then,
// too.
func TestFaultInTheMomentInWhichACloseIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		met := make(chan struct{})
		p := closeStalledOver(t, func(raw, mem *iwarptest.LLP) ddp.LLP {
			return askedLLP{mem, sync.OnceFunc(func() {
				raw.Send(untagged(true, rdmap.OpSend, 9, 1, 0))
				synctest.Wait()
				close(met)
			})}
		})
		<-met
		<-time.After(1900 * time.Millisecond)
		p.raw.Stall(false)
		p.wantTerminate()
		<-p.over
		var fault *ddp.Error
		if !errors.As(p.err, &fault) {
			t.Errorf("the stream ended with %v", p.err)
		}
	})
}

// askedLLP reports when it is asked what the peer has not acknowledged.
type askedLLP struct {
	*iwarptest.LLP
	asked func()
}

func (l askedLLP) Outq() (int, error) {
	l.asked()
	return 0, nil
}

// closeStalled is a stream that was closed after a Send which the peer does not take.
func closeStalled(t *testing.T) *peer {
	return closeStalledOver(t, func(_, mem *iwarptest.LLP) ddp.LLP { return mem })
}

func closeStalledOver(t *testing.T, over func(raw, mem *iwarptest.LLP) ddp.LLP) *peer {
	raw, mem := iwarptest.Pair(iwarptest.Options{})
	raw.Stall(true)
	p := &peer{upper: newUpper(), t: t, raw: raw}
	p.s = rdmap.New(rdmap.Config{LLP: over(raw, mem), Upper: p.upper, MaxSend: 16})
	go p.s.Run()
	p.post(sgl(rdmap.Op{Kind: rdmap.OpSend, ID: 1}, make([]byte, 10)))
	p.s.Close()
	return p
}
