package conformance

import "context"

// notifyCases are about how a consumer learns of what has arrived.
func notifyCases() []Case {
	return []Case{
		{Name: "solicited messages wake an armed queue", RFC: "RFC 5040 section 4.3", B: Arming, run: armedForSolicited},
		{Name: "the end of the stream wakes an armed queue", RFC: "RFC 5040 section 7.1", B: Arming | FlushesReceives, run: func(a, b *side) {
			b.recvNothing(2)
			b.arm(true)
			a.abort()
			b.wake()
			a.wantEnd(Aborted)
			b.ending()
		}},
		{Name: "receives serve all streams of an RNIC", RFC: "RFC 5042 section 6.4.3.1", B: SharedReceives, connect: receivesForAll},
	}
}

func (s *side) arm(solicitedOnly bool) {
	s.t.Helper()
	s.check("arm", s.Endpoint.(Armer).Arm(solicitedOnly))
}

// wake waits for what the queue is armed for.
func (s *side) wake() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.check("wait for an event", s.Endpoint.(Armer).Wait(ctx))
}

// A queue that is armed for solicited messages sleeps through others: when it wakes,
// the solicited message is there, and all before it.
func armedForSolicited(a, b *side) {
	const quiet = 5
	wake := []WR{{Op: OpSend, Flags: Solicited}}
	if a.Can(SendInvalidate) && b.Can(SendInvalidate) {
		wake = append(wake, WR{Op: OpSend, Flags: Solicited | WithInvalidate, Invalidate: writable(b).r.STag})
	}
	if a.Can(Immediate) && b.Can(Immediate) {
		wake = append(wake, WR{Op: OpImmediate, Flags: Solicited})
	}
	for _, last := range wake {
		b.recvNothing(quiet + 1)
		b.arm(true)
		for range quiet {
			a.post(WR{Op: OpSend})
		}
		// The answer to a Read shows that the messages before it are at b.
		a.post(WR{Op: OpRead, Flags: Signaled})
		a.sent(OpRead)
		a.post(last)
		b.wake()
		// What woke b is there by now: no completion is waited for.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for i := range quiet + 1 {
			wc, err := b.Completion(ctx)
			b.check("take a completion that must be there", err)
			if !b.recvs.accept(wc, true) || wc.Status != OK {
				b.t.Fatalf("end %s: completion %+v out of turn", b.name, wc)
			}
			b.wantSolicited(wc, i == quiet)
		}
	}
	b.recv()
	b.arm(false)
	a.post(WR{Op: OpSend})
	b.wake()
	b.message(0)
}

// Receives that one end has posted take messages of other streams, in the order
// of posting, each in memory of its own.
func receivesForAll(k *connector) {
	const streams, each, size = 3, 4, 1000
	var from, to []*side
	for range streams {
		a, b := k.pair()
		from, to = append(from, a), append(to, b)
	}
	poster := to[0]
	boxes := make(map[uint64]*buffer)
	for i := range uint64(streams * each) {
		box := poster.mem(size, LocalWrite)
		boxes[i] = box
		poster.check("post a receive", poster.PostRecv(i, []SGE{box.at(0, size)}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i, a := range from {
		src := a.mem(size, 0)
		for j := range each {
			a.post(WR{Op: OpSend, Flags: Signaled, SGL: []SGE{src.at(0, size-j)}})
			a.sent(OpSend)
			wc, err := to[i].Completion(ctx)
			to[i].check("wait for a message", err)
			box := boxes[wc.ID]
			if box == nil || wc.Status != OK || wc.Op != OpRecv || wc.Len != size-j || wc.ID != uint64(i*each+j) {
				k.t.Fatalf("end %s of stream %d: completion %+v, want receive %d with %d bytes", to[i].name, i, wc, i*each+j, size-j)
			}
			box.expect(0, src.bytes(0, size-j))
		}
	}
}
