package verbs

// notify notifies the consumer of pushed completions. engine: the caller is a
// goroutine of the engine, which may run the handler. So may who posts, if the queue is for that.
func (cq *CQ) notify(engine bool) {
	if !cq.wake.Load() || !cq.wake.Swap(false) {
		return
	}
	if cq.handler == nil {
		cq.signal()
		return
	}
	for {
		switch r := cq.running.Load(); r {
		case 0:
			if !cq.running.CompareAndSwap(0, 1) {
				continue
			}
			if engine || cq.inPost {
				cq.run(true)
			} else {
				go cq.runFn()
			}
			return
		case 1:
			if cq.running.CompareAndSwap(1, 2) {
				return
			}
		default:
			return
		}
	}
}

// run feeds the handler until the queue is empty. A borrowed goroutine has a
// stream to serve: if this takes long, one of the queue's own takes over.
func (cq *CQ) run(borrowed bool) {
	handled := 0 // completions of the last batch
	for round := 0; ; round++ {
		if borrowed && round == maxBorrowedRounds {
			cq.next(false, handled)
			go cq.runFn()
			return
		}
		n := cq.next(true, handled)
		if handled = n; n > 0 {
			cq.handler.Completions(cq, cq.batch[:n])
			clear(cq.batch[:n])
			continue
		}
		if cq.running.CompareAndSwap(1, 0) {
			return
		}
		cq.running.Store(1)
	}
}

// next records that the handler has returned from handled completions and, with take,
// takes a batch of the following ones. The batch's buffer never shrinks.
func (cq *CQ) next(take bool, handled int) int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.handledLocked(handled)
	if !take {
		return 0
	}
	if n := min(cq.n, handlerBatch); n > len(cq.batch) {
		cq.batch = make([]WC, min(handlerBatch, max(n, 2*len(cq.batch))))
	}
	return cq.pollLocked(cq.batch)
}

// settle makes the handler, if there is one, take every completion pushed so far, of
// whatever kind, and waits until it has returned from them.
func (cq *CQ) settle() {
	if cq.handler == nil {
		return
	}
	cq.mu.Lock()
	cq.waiters++
	pushed := cq.pushed
	cq.mu.Unlock()
	cq.wake.Store(true)
	cq.notify(true)
	cq.mu.Lock()
	for cq.handled < pushed {
		cq.settled.Wait()
	}
	cq.waiters--
	cq.mu.Unlock()
}
