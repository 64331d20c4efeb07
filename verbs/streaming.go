package verbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
)

// streamRequest is a connection whose peer has begun in streaming mode: as a stream of its ULP's
// bytes, which may go on with MPA (RFC 5044 section 7.1.3).
type streamRequest struct{ *transport.Conn }

var errStreaming = errors.New("verbs: the stream is in streaming mode, its peer has not asked for RDMA")

func (r *streamRequest) drop()               { r.Close() }
func (r *streamRequest) privateData() []byte { return nil }
func (r *streamRequest) depths() Depths      { return Depths{IRD: -1, ORD: -1} }

func (r *streamRequest) accept(context.Context, []byte, uint16, uint16) (*started, error) {
	return nil, errStreaming
}

// There is no way to refuse RDMA that nobody has asked for: the stream is closed.
func (r *streamRequest) reject(context.Context, []byte) error { return nil }

func (r *streamRequest) rejectDepths(context.Context, []byte, uint16, uint16) error { return nil }

// streams reports whether conn begins with something else than MPA's request.
func (l *Listener) streams(conn *transport.Conn) (bool, error) {
	timeout := l.setup(conn).Timeout
	if timeout <= 0 {
		timeout = defaultFirstByte
	}
	conn.SetReadDeadline(time.Now().Add(timeout))
	stop := context.AfterFunc(l.ctx, func() { conn.Close() })
	defer stop()
	b, err := conn.Peek()
	if errors.Is(err, errors.ErrUnsupported) {
		return false, nil // a Network's
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the peer was silent for %v: %w", timeout, err)
	}
	if err != nil {
		return false, fmt.Errorf("verbs: wait for the first byte of a stream: %w", err)
	}
	return b != mpa.FirstByte, conn.SetReadDeadline(time.Time{})
}

// Stream returns the connection if its peer has begun in streaming mode (ListenConfig.Streaming),
// and nil otherwise. The ULP uses it as a stream of bytes, of which none has been read, and then calls
// StartMPA, Detach or, to close it, Reject. Until then it is charged to the peer as half-open, so the
// ULP bounds the time.
func (r *ConnRequest) Stream() *transport.Conn {
	if s, ok := r.in.(*streamRequest); ok {
		return s.Conn
	}
	return nil
}

// StartMPA ends streaming mode: it waits for the peer's MPA request, after which the request is one
// like any other (RFC 5044 section 7.1.3). The ULP has read all bytes before it, and none of it. It fails
// with ctx's error, and if the request does not come or is malformed; the stream is then closed.
func (r *ConnRequest) StartMPA(ctx context.Context) error {
	s, ok := r.in.(*streamRequest)
	if !ok {
		return errors.New("verbs: start MPA: the stream is not in streaming mode")
	}
	req, err := mpa.Server(ctx, s.Conn, r.ln.setup(s.Conn).mpa(r.ln.dev, s.Conn))
	if err != nil {
		r.end()
		return err
	}
	r.in = &mpaRequest{Conn: s.Conn, req: req}
	return nil
}

// Detach leaves the connection of Stream to the ULP for good, and ends the charge.
func (r *ConnRequest) Detach() { r.half.release() }
