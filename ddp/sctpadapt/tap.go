package sctpadapt

import (
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// SetLink says what the association is to those who watch its streams. Chunks before that are not shown; what a session
// has begun with is shown before its first chunk after it.
func (m *Mux) SetLink(l *tap.Link) { m.link.Store(l) }

// shown is the session as it is shown, nil if it cannot be.
func (s *Stream) shown() (*tap.Link, *tap.Stream) {
	l := s.mux.link.Load()
	if l == nil {
		return nil, nil
	}
	return l, &s.tap
}

// showReceived shows a chunk.
func (s *Stream) showReceived(msg *assoc.Message) {
	if l, t := s.shown(); l != nil {
		showChunk(l, t, false, msg.PPID, [][]byte{msg.Payload})
	}
}

// showSent shows chunks in the order in which they go.
func (s *Stream) showSent(msgs []assoc.Outgoing) {
	l, t := s.shown()
	if l == nil {
		return
	}
	for i := range msgs {
		showChunk(l, t, true, msgs[i].PPID, msgs[i].Bufs)
	}
}

// showChunk shows a chunk whose first buffer has its headers. A session control message is shown as it is; of a segment the
// number is, and what is no payload.
func showChunk(l *tap.Link, t *tap.Stream, sent bool, ppid uint32, bufs [][]byte) {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	switch {
	case ppid == PPIDControl:
		l.ShowChunk(t, tap.Control, sent, bufs, min(n, controlLen+MaxPrivateData))
	case ppid == PPIDSegment && len(bufs) > 0 && len(bufs[0]) >= ssnLen:
		l.ShowChunk(t, tap.Data, sent, bufs, ssnLen+tap.Visible(bufs[0][ssnLen:], n-ssnLen))
	}
}
