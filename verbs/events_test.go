package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// eventsSoFar takes what the event queue holds.
func eventsSoFar(d *Device) (evs []Event) {
	for {
		ev, ok := d.TryEvent()
		if !ok {
			return evs
		}
		evs = append(evs, ev)
	}
}

func nextEvent(t *testing.T, d *Device) Event {
	t.Helper()
	ev, err := d.Event(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// wantEvents takes the events so far and compares those of one stream.
func wantEvents(t *testing.T, d *Device, qp uint64, kinds ...EventKind) (got []Event) {
	t.Helper()
	for _, ev := range eventsSoFar(d) {
		if ev.QP == qp {
			got = append(got, ev)
		}
	}
	same := len(got) == len(kinds)
	for i := 0; same && i < len(kinds); i++ {
		same = got[i].Kind == kinds[i]
	}
	if !same {
		t.Fatalf("events %v, want %v", got, kinds)
	}
	return got
}

// What happens to a stream is reported in order, with the stream, its peer and why.
func TestEventsOfAStream(t *testing.T) {
	gone := errors.New("not wanted any more")
	for name, tc := range map[string]struct {
		act  func(e *end, raw *iwarptest.LLP)
		want []EventKind // between up and down
		err  func(error) bool
	}{
		"graceful end": {func(e *end, raw *iwarptest.LLP) {
			e.qp.Close()
			raw.CloseWrite()
		}, nil, func(err error) bool { return err == nil }},
		"end by the peer": {func(e *end, raw *iwarptest.LLP) { raw.CloseWrite() }, nil,
			func(err error) bool { return errors.Is(err, rdmap.ErrPeerClosed) }},
		"abort": {func(e *end, raw *iwarptest.LLP) { e.qp.Abort(gone) }, nil,
			func(err error) bool { return errors.Is(err, gone) }},
		"fault of the peer": {func(e *end, raw *iwarptest.LLP) {
			raw.Send(untagged(true, rdmap.OpSend, 9, 1, 0))
			raw.CloseWrite()
		}, []EventKind{EventPeerFault}, func(err error) bool {
			return errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: ddp.CodeUntaggedInvalidQN})
		}},
		"terminated by the peer": {func(e *end, raw *iwarptest.LLP) {
			term := rdmap.Terminate{Layer: ddp.LayerDDP, Type: 1, Code: 1}
			raw.Send(untagged(true, rdmap.OpTerminate, rdmap.QNTerminate, 1, 0, term.Append(nil)...))
		}, []EventKind{EventTerminated}, func(err error) bool {
			var te *rdmap.TerminateError
			return errors.As(err, &te)
		}},
		"terminated by half a message": {func(e *end, raw *iwarptest.LLP) {
			raw.Send(untagged(true, rdmap.OpTerminate, rdmap.QNTerminate, 1, 0, 0x12))
		}, []EventKind{EventTerminated}, func(err error) bool { // nobody was sent a Terminate
			var te *rdmap.TerminateError
			return errors.As(err, &te) && te.Fault != nil
		}},
		"local operation that fails": {func(e *end, raw *iwarptest.LLP) {
			e.post(SendWR{Op: OpInvalidateLocal, InvalidateSTag: 5})
			raw.CloseWrite()
		}, nil, func(err error) bool { return errors.Is(err, ErrInvalidSTag) }}, // no fault of the peer
	} {
		e := newEnd(t, Config{})
		raw, l := iwarptest.Pair(iwarptest.Options{})
		e.startOn(l)
		tc.act(e, raw)
		if err := e.wantEnd(); !tc.err(err) {
			t.Errorf("%s: ended with %v", name, err)
		}
		kinds := append(append([]EventKind{EventStreamUp}, tc.want...), EventStreamDown)
		for i, ev := range wantEvents(t, e.dev, e.qp.ID(), kinds...) {
			if ev.Time.IsZero() || ev.Peer != "peer" || ev.Flow.Protocol != transport.ProtoTCP {
				t.Errorf("%s: event %+v", name, ev)
			}
			if i == 0 && ev.Err != nil || i > 0 && !tc.err(ev.Err) {
				t.Errorf("%s: %v says %v", name, ev.Kind, ev.Err)
			}
		}
	}
}

func TestEventOfACQOverflow(t *testing.T) {
	e := newEnd(t, Config{})
	small, err := e.ulp.CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.cfg.SendCQ = small
	e.rawStream()
	e.post(SendWR{Op: OpWrite, Flags: Signaled})
	e.post(SendWR{Op: OpWrite, Flags: Signaled})
	e.wantEnd()
	evs := wantEvents(t, e.dev, e.qp.ID(), EventStreamUp, EventCQOverflow, EventStreamDown)
	if evs[1].CQ != small || !errors.Is(evs[1].Err, ErrCQOverflow) || !errors.Is(evs[2].Err, ErrCQOverflow) {
		t.Errorf("events %+v", evs)
	}
}

// A connection refused for want of resources is an event that names the peer and
// the resource.
func TestEventOfAnExceededQuota(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{Limits: Limits{QueueEntries: 100}})
	ln := listen(t, b, ListenConfig{})
	refused := make(chan transport.Flow, 1)
	go func() {
		cr, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		if _, err := cr.Accept(context.Background(), b.pd, AcceptConfig{QP: b.cfg}); err == nil {
			t.Error("a queue pair past the limit")
		}
		cr.Reject(context.Background(), nil)
		refused <- cr.Flow()
	}()
	if _, err := a.dial(ln.Addr()); err == nil {
		t.Error("dialled past the limit")
	}
	flow := <-refused
	ev := wantEvents(t, b.dev, 0, EventQuotaExceeded)[0]
	var q *QuotaError
	if !errors.As(ev.Err, &q) || q.Resource != "work queue entries" || q.Principal != "the device" || ev.Flow != flow || ev.Peer == "" {
		t.Errorf("event %+v", ev)
	}
	if ev.Flow.Remote == (netip.AddrPort{}) {
		t.Error("the event does not say who")
	}
}

// A storm of one peer's events takes its own entries, blocks nobody, loses none of
// the counts, and leaves the events of others in place (R30).
func TestEventStormOfOnePeerIsCounted(t *testing.T) {
	e := newEnd(t, Config{})
	const storm = 5 * eventDepth
	other := Event{Kind: EventPeerFault, Peer: "other", QP: 7}
	for i := range storm {
		e.dev.events.emit(Event{Kind: EventStreamUp, Peer: "hostile", QP: uint64(i)})
		e.dev.events.emit(Event{Kind: EventStreamDown, Peer: "hostile", QP: uint64(i)})
		if i == storm/2 {
			e.dev.events.emit(other)
		}
	}
	count := make(map[EventKind]int)
	n, found := 0, false
	for _, ev := range eventsSoFar(e.dev) {
		if ev.Peer == "other" {
			found = ev.Kind == other.Kind && ev.QP == 7 && ev.Count == 1
			continue
		}
		count[ev.Kind] += ev.Count
		n++
	}
	if !found {
		t.Error("the other peer's event is lost")
	}
	if n > eventsPerPeer+int(eventKinds) {
		t.Errorf("the storm has %d entries", n)
	}
	if count[EventStreamUp] != storm || count[EventStreamDown] != storm || e.dev.EventsDropped() != 0 {
		t.Errorf("%v of %d each are counted, %d dropped", count, storm, e.dev.EventsDropped())
	}
}

// Where many peers together fill the queue, those with most give way to one with
// less, and what is dropped is counted.
func TestEventsOfManyPeersAreDividedAmongThem(t *testing.T) {
	e := newEnd(t, Config{})
	const peers = eventDepth/eventsPerPeer + 4
	sent := 0
	for range 2 * eventsPerPeer {
		for p := range peers {
			e.dev.events.emit(Event{Kind: EventStreamUp, Peer: transport.Identity(fmt.Sprint("hostile ", p))})
			sent++
		}
	}
	e.dev.events.emit(Event{Kind: EventPeerFault, Peer: "late"})
	sent++
	evs := eventsSoFar(e.dev)
	if len(evs) != eventDepth {
		t.Errorf("%d events in the queue, want %d", len(evs), eventDepth)
	}
	if last := evs[len(evs)-1]; last.Peer != "late" {
		t.Errorf("the last event is %+v", last)
	}
	counted := int(e.dev.EventsDropped())
	for _, ev := range evs {
		counted += ev.Count
	}
	if counted != sent {
		t.Errorf("%d of %d events are accounted for", counted, sent)
	}
	if n := len(e.dev.events.sources); n != 0 {
		t.Errorf("%d peers are left in an empty queue", n)
	}
}

// Each stream's events stay in order and whole while somebody takes them.
func TestEventsAreTakenInOrderByWhoWaits(t *testing.T) {
	e := newEnd(t, Config{})
	const n = 20 * eventDepth
	done := make(chan int)
	go func() {
		last, sum := -1, 0
		for sum < n {
			ev, err := e.dev.Event(t.Context())
			if err != nil || int(ev.QP) <= last {
				break
			}
			last = int(ev.QP)
			sum += ev.Count
		}
		done <- sum
	}()
	for i := range n {
		e.dev.events.emit(Event{Kind: EventStreamUp, Peer: "p", QP: uint64(i)})
	}
	if sum := <-done; sum != n {
		t.Errorf("%d of %d events came, in order", sum, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.dev.Event(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting in vain ended with %v", err)
	}
}

func TestEventKindsHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for k := EventStreamUp; k < eventKinds; k++ {
		if s := k.String(); s == "" || seen[s] {
			t.Errorf("event %d is called %q", k, s)
		} else {
			seen[s] = true
		}
	}
	for _, k := range []EventKind{0, eventKinds} {
		if s := k.String(); seen[s] {
			t.Errorf("event %d is called %q", k, s)
		}
	}
}
