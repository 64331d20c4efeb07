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
