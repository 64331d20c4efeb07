package verbs

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
	"pgregory.net/rapid"
)

func TestModelInMemory(t *testing.T) { rapid.Check(t, modelInMemory) }

// TestModelOutOfOrder is the model where segments are placed as they come and
// delivered in order (RFC 5041 section 5.3).
func TestModelOutOfOrder(t *testing.T) { rapid.Check(t, modelOutOfOrder) }

func TestModelOverMPA(t *testing.T) { rapid.Check(t, modelOverMPA) }

// TestModelOverSCTP is the model over SCTP in UDP, through a network that reorders,
// duplicates and loses a little.
func TestModelOverSCTP(t *testing.T) {
	server := iwarptest.SCTPInUDP(t)
	client, _ := relayTo(t, server, sctptest.Faults{Reorder: 0.1, Duplicate: 0.05, Loss: 0.0005})
	rapid.Check(t, func(t *rapid.T) {
		mtu := rapid.SampledFrom([]int{640, 1500}).Draw(t, "MTU")
		net := modelNet{mulpdu: mtu - 76, window: 1 << 15}
		for i, tc := range []*transport.Config{client, server} {
			c := *tc
			c.MTU = mtu
			net.sctp[i] = &c
		}
		checkModel(t, net)
	})
}

// FuzzModel lets the fuzzer choose the runs.
func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(modelInMemory)) }

func modelInMemory(t *rapid.T) {
	checkModel(t, modelNet{
		mulpdu: rapid.SampledFrom([]int{64, 127, 301, 1444}).Draw(t, "MULPDU"),
		direct: rapid.Bool().Draw(t, "direct"),
	})
}

func modelOutOfOrder(t *rapid.T) {
	checkModel(t, modelNet{
		mulpdu: rapid.SampledFrom([]int{64, 127, 301, 1444}).Draw(t, "MULPDU"),
		window: rapid.SampledFrom([]int{1, 2, 5, 64}).Draw(t, "window"),
		seed:   rapid.Uint64().Draw(t, "seed"),
	})
}

func modelOverMPA(t *rapid.T) {
	n := modelNet{mpa: true,
		mulpdu:  rapid.SampledFrom([]int{256, 536, 1460}).Draw(t, "EMSS"),
		crc:     rapid.Bool().Draw(t, "CRC"),
		large:   rapid.Bool().Draw(t, "large FPDUs"),
		markers: [2]bool{rapid.Bool().Draw(t, "markers"), rapid.Bool().Draw(t, "markers")},
	}
	checkModel(t, n)
}

// checkModel draws a run and carries it out.
func checkModel(t *rapid.T, net modelNet) {
	p := drawModel(t, net)
	r := &modelRun{plan: p, mem: make(map[*MR]*modelMem)}
	err := r.run()
	for s := range r.ends {
		err = errors.Join(err, r.ends[s].close(err == nil))
	}
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
}

func (r *modelRun) run() error {
	for s := range r.ends {
		if err := r.ends[s].open(r.plan, s); err != nil {
			return err
		}
		for _, mr := range r.ends[s].mrs {
			m := &modelMem{val: make([]byte, mr.Len())}
			copy(m.val, mr.Bytes())
			r.mem[mr] = m
		}
	}
	if err := connectModel(r.plan, &r.ends); err != nil {
		return err
	}
	for i := range r.plan.phases {
		if err := r.phase(i); err != nil {
			return fmt.Errorf("phase %d: %w", i, err)
		}
	}
	return nil
}

// phase lets both sides post at once and compares when they are quiet or the
// stream is over.
func (r *modelRun) phase(n int) error {
	ph := &r.plan.phases[n]
	var end *modelEnding
	if n == len(r.plan.phases)-1 {
		end = &r.plan.end
	}
	for s := range r.ends {
		if err := r.ends[s].begin(ph, r); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	began := time.Now()
	for s := range r.ends {
		e, peer := &r.ends[s], &r.ends[1-s]
		wg.Go(func() { e.lanesRun(peer, ph.ops[s], end) })
		if end == nil {
			wg.Go(func() { e.receive(r.plan.phases[n+1].recvs[s]) })
		}
	}
	wg.Wait()
	for s := range r.ends {
		if err := r.await(s, ph, end); err != nil {
			return err
		}
	}
	if end != nil && time.Since(began) > modelTeardown {
		end.how = 'l'
	}
	for s := range r.ends {
		e := &r.ends[s]
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.problem != nil {
			return e.problem
		}
	}
	for s := range r.ends {
		if err := r.completions(s, end != nil); err != nil {
			return err
		}
	}
	for s := range r.ends {
		for lane := range r.ends[s].sent {
			if err := r.replay(s, lane, r.sure(s, lane, end)); err != nil {
				return err
			}
		}
	}
	if err := r.memory(); err != nil {
		return err
	}
	if end != nil {
		return r.ending()
	}
	return r.counters()
}

// begin readies the records for a phase and makes its local changes.
func (e *modelEnd) begin(ph *modelPhase, r *modelRun) error {
	for _, c := range ph.local[e.s] {
		if err := e.quietly(c); err != nil {
			return err
		}
		switch c.what {
		case 's':
			modelFill(r.mem[e.lanes[c.lane].src].val, c.seed)
		case 't':
			modelFill(r.mem[e.lanes[c.lane].tgt[c.tgt]].val, c.seed)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent, e.order = [modelLanes][]*modelSent{}, nil
	for _, o := range ph.ops[1-e.s][0] {
		for o.msg >= len(e.seals) {
			e.seals = append(e.seals, nil)
		}
		if o.msg >= 0 {
			e.seals[o.msg] = o.seals
		}
	}
	return nil
}

// lanesRun posts from a goroutine for each lane, and what ends a quiet phase
// after all else.
func (e *modelEnd) lanesRun(peer *modelEnd, ops [][]modelOp, end *modelEnding) {
	var wg sync.WaitGroup
	last := len(ops[0])
	if end == nil {
		last--
	}
	wg.Go(func() { e.run(peer, 0, 0, ops[0][:last], end) })
	for lane := 1; lane < len(ops); lane++ {
		wg.Go(func() { e.run(peer, lane, 0, ops[lane], end) })
	}
	wg.Wait()
	if end == nil {
		e.run(peer, 0, last, ops[0], nil)
	}
}

// await waits until side s is quiet, or its stream over.
func (r *modelRun) await(s int, ph *modelPhase, end *modelEnding) error {
	e := &r.ends[s]
	if end == nil {
		ours, theirs := ph.ops[s][0], ph.ops[1-s][0]
		last, msg := len(ours)-1, theirs[len(theirs)-1].msg
		return e.await("the end of the phase", func() bool { return e.sent[0][last].done && e.got[msg].done })
	}
	select {
	case <-e.qp.Done():
	case <-time.After(modelPatience):
		return fmt.Errorf("side %d: the stream does not end", s)
	}
	e.stop()
	e.polling.Wait()
	return nil
}

// sure is how many work requests of a lane have been carried out for certain.
func (r *modelRun) sure(s, lane int, end *modelEnding) (n int) {
	recs := r.ends[s].sent[lane]
	if end == nil || end.how == 'c' && end.side == s {
		return len(recs)
	}
	for i, rec := range recs {
		// What precedes a fault has been carried out, if nothing else ends the
		// stream.
		if rec.op.fault != nil && end.how == 'f' && r.plan.net.window == 0 {
			return i
		}
		if r.done(s, rec) {
			n = i + 1
		}
	}
	return n
}

// close ends what is left and, if all went well, finds nothing in use.
func (e *modelEnd) close(well bool) error {
	if e.dev == nil {
		return nil
	}
	defer e.dev.Close()
	if e.qp != nil {
		e.qp.Abort(errModelAbort)
		<-e.qp.Done()
	}
	if e.stop != nil {
		e.stop()
		e.polling.Wait()
	}
	if !well {
		return nil
	}
	var err error
	if e.srq != nil {
		err = errors.Join(err, e.srq.Destroy())
	}
	for _, mr := range e.mrs { // no window is bound to it any more
		err = errors.Join(err, mr.Deregister())
	}
	for l := range e.lanes {
		for _, mw := range e.lanes[l].mw {
			if mw != nil {
				err = errors.Join(err, mw.Dealloc())
			}
		}
	}
	for _, cq := range e.cqs {
		err = errors.Join(err, cq.Destroy())
	}
	for _, pd := range e.pds {
		err = errors.Join(err, pd.Dealloc())
	}
	u := e.dev.Usage()
	u.HalfOpen = 0 // associations live on for a while
	if u != (Limits{}) {
		err = errors.Join(err, fmt.Errorf("side %d: in use after the end: %+v", e.s, u))
	}
	return err
}
