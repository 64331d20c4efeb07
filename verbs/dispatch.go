package verbs

// notify tells the consumer of what was pushed. engine: the caller is a
// goroutine of the engine that may run the handler.
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
			if engine {
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
// stream to serve: if it takes long, one of the queue's own goes on.
func (cq *CQ) run(borrowed bool) {
	if cq.batch == nil {
		cq.batch = make([]WC, handlerBatch)
	}
	handled := 0 // completions of the last batch
	for round := 0; ; round++ {
		if borrowed && round == maxBorrowedRounds {
			cq.next(nil, handled)
			go cq.runFn()
			return
		}
		n := cq.next(cq.batch, handled)
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

// next records that the handler has returned from handled completions and takes
// a batch of the following ones.
func (cq *CQ) next(batch []WC, handled int) int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.handledLocked(handled)
	return cq.pollLocked(batch)
}

// settle has the handler, if there is one, called for every completion that has
// been pushed, of whatever kind, and waits until it has returned from them.
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
