package sctpadapt

import "github.com/ironwarp/ironwarp/ddp/enhanced"

// Open begins a session of ours that is to ask for this, and sends nothing. It fails as Initiate does before that.
func (m *Mux) Open(asked *enhanced.Data) (*Stream, error) {
	return m.open(asked, enhanced.Agreed{}, nil)
}

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
