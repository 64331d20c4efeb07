package sctpadapt

// AcceptNow is Accept that does not wait.
func (m *Mux) AcceptNow() *Request {
	select {
	case r := <-m.requests:
		return r
	default:
		return nil
	}
}

// Look does what the Mux does every stallTick, and keeps it from doing so itself.
func (m *Mux) Look() {
	m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watcher.Stop()
	m.watching = true
}

// StallTicks is the number of looks after which a stalled stream is terminated.
const StallTicks = stallTicks
