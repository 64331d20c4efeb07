package verbs

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// An administrator sees each stream with who has it, what it moves and what it costs.
func TestStreamsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, Config{})
		if got := e.dev.Streams(); len(got) != 0 {
			t.Fatalf("streams %+v before there is one", got)
		}
		e.cfg.MaxRecv = 8
		var qps []*QP
		var raws []*iwarptest.LLP
		for range 3 {
			raw, l := iwarptest.Pair(iwarptest.Options{})
			e.startOn(l)
			qps, raws = append(qps, e.qp), append(raws, raw)
			<-time.After(time.Minute)
		}
		stag := e.mr(1<<10, LocalWrite|RemoteWrite).STag()
		raws[1].Send(tagged(true, rdmap.OpWrite, stag, 0, 1000), tagged(true, rdmap.OpWrite, stag, 0, 0))
		synctest.Wait()
		if err := qps[2].PostSend(&SendWR{Op: OpSend, SGL: whole(e.mr(10, 0), 10)}); err != nil {
			t.Fatal(err)
		}
		got := e.dev.Streams()
		if len(got) != 3 {
			t.Fatalf("%d streams, want 3", len(got))
		}
		now := time.Now()
		for i, s := range got {
			age := time.Duration(3-i) * time.Minute
			if s.ID != qps[i].ID() || s.ULP != "test" || s.Peer != "peer" || s.Trust != ST || s.State != QPRTS || now.Sub(s.Since) != age {
				t.Errorf("stream %d: %+v", i, s)
			}
		}
		if s := got[0]; s.BytesIn != 0 || s.BytesOut != 0 || s.Idle != 3*time.Minute || s.Slow != (SlowCounts{}) {
			t.Errorf("the idle one: %+v", s)
		}
		if s := got[1]; s.BytesIn != 1000 || s.BytesOut != 0 || s.Idle != 0 || s.Slow != (SlowCounts{Empty: 1}) {
			t.Errorf("the one that receives: %+v", s)
		}
		if s := got[2]; s.BytesIn != 0 || s.BytesOut != 10 || s.Idle != 0 {
			t.Errorf("the one that sends: %+v", s)
		}
		<-time.After(5 * time.Minute)
		for i, want := range []time.Duration{8 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
			if got := e.dev.Streams()[i].Idle; got != want {
				t.Errorf("stream %d is idle for %v, want %v", i, got, want)
			}
		}
		raws[0].Close()
		<-qps[0].Done()
		if got := e.dev.Streams(); len(got) != 2 {
			t.Errorf("%d streams after the end of one, want 2", len(got))
		}
	})
}

// Nobody has to ask for the time of the last movement to be known.
func TestIdlenessIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, Config{})
		raw, l := iwarptest.Pair(iwarptest.Options{})
		e.startOn(l)
		raw.Send(tagged(true, rdmap.OpWrite, e.mr(100, LocalWrite|RemoteWrite).STag(), 0, 100))
		<-time.After(time.Hour)
		if got := e.dev.Streams()[0].Idle; got < time.Hour-idleLook || got > time.Hour {
			t.Errorf("idle for %v, want an hour", got)
		}
		raw.Close()
		<-e.qp.Done()
	})
}

// The administrator ends one stream and no other, and it says why (R24).
func TestKill(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	other := e.qp
	raw2, l2 := iwarptest.Pair(iwarptest.Options{})
	defer raw2.Close()
	e.startOn(l2)
	e.recv(RecvWR{ID: 7})
	if err := e.dev.Kill(e.qp.ID(), "costs too much"); err != nil {
		t.Fatal(err)
	}
	if err := e.wantEnd(); !errors.Is(err, ErrKilled) || !strings.Contains(err.Error(), "costs too much") {
		t.Errorf("ended with %v", err)
	}
	if wc := e.next(); wc.ID != 7 || !errors.Is(wc.Err, ErrFlushed) || !errors.Is(wc.Err, ErrKilled) {
		t.Errorf("the receive ends with %v", wc.Err)
	}
	for _, id := range []uint64{e.qp.ID(), 0, ^uint64(0)} {
		if err := e.dev.Kill(id, ""); !errors.Is(err, ErrNoStream) {
			t.Errorf("Kill of no stream: %v", err)
		}
	}
	if other.State() != QPRTS {
		t.Errorf("the other stream is %v", other.State())
	}
	wantEvent(t, e.dev, EventStreamDown, e.qp.ID())
}
