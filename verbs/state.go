package verbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/rdmap"
)

// QPState is the state of a queue pair, by its name in the RDMA verbs.
//
//	QPIdle ──stream up──▶ QPRTS ──Close──▶ QPClosing ──both ends──▶ QPError
//	  │                     │                 │                       ▲
//	  │                     └──fault, Abort or the peer's Terminate──▶ QPTerminate
//	  └──Close, Abort, failed start-up──▶ QPError
//
// A queue pair has one stream: it does not return to QPIdle.
type QPState uint8

// The states.
const (
	QPIdle      QPState = iota // no stream yet: inside prepare and until start-up is over. Receives may be posted
	QPRTS                      // ready to send: the stream is up
	QPClosing                  // no more posts; what is posted is sent, then the stream ends gracefully
	QPTerminate                // the stream is ending because of a fault, an Abort or a Terminate of either side
	QPError                    // over: what was posted has been flushed
)

func (s QPState) String() string {
	if s > QPError {
		return fmt.Sprintf("QPState(%d)", uint8(s))
	}
	return [...]string{"idle", "RTS", "closing", "terminate", "error"}[s]
}

// ErrIdle is returned by PostSend while the queue pair has no stream.
var ErrIdle = errors.New("the queue pair has no stream yet")

// State is the state of the queue pair.
func (qp *QP) State() QPState {
	if s := qp.stream.Load(); s != nil {
		switch s.State() {
		case rdmap.Streaming:
			return QPRTS
		case rdmap.Closing:
			return QPClosing
		case rdmap.Terminating:
			return QPTerminate
		}
		return QPError
	}
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.over {
		return QPError
	}
	return QPIdle
}

// Established is when the stream came up; zero if it has not.
func (qp *QP) Established() time.Time {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	return qp.since
}

// ORD is how many Reads and Atomics may be outstanding, as negotiated; 0 in
// QPIdle.
func (qp *QP) ORD() int {
	if s := qp.stream.Load(); s != nil {
		return s.ORD()
	}
	return 0
}

// Stats are the traffic counters.
func (qp *QP) Stats() QPStats {
	c := &qp.stats
	s := QPStats{SendOps: c.sendOps.Load(), RecvOps: c.recvOps.Load(), SendBytes: c.sendBytes.Load(), RecvBytes: c.recvBytes.Load()}
	if st := qp.stream.Load(); st != nil {
		in, out := st.Moved()
		s.RecvBytes += in
		s.SendBytes += out
	}
	return s
}

// Done is closed when the stream is over and all completions are out: polled
// queues hold them, handlers have returned from them. A handler must not wait
// for it. For a queue pair that never had a stream it is closed when that is
// certain; its receives end without completions unless CreateQP has made it.
func (qp *QP) Done() <-chan struct{} { return qp.done }

// Err is why the stream ended or did not come up; nil after a graceful close by both
// sides and while it lives. io.EOF in its chain: the peer alone has closed it.
// *TerminateError: it has sent a Terminate. It may match ErrCutOff,
// ErrCQOverflow, ErrKilled, ErrReaped, ErrSlowPath, ErrSRQEmpty, ErrSRQShare or
// ErrClosed.
func (qp *QP) Err() error {
	select {
	case <-qp.done:
		return qp.err
	default:
		return nil
	}
}

// Close ends the stream gracefully: what is posted is sent and answered, then the stream
// is closed. A peer that for ten seconds takes nothing, answers nothing or does not follow
// is cut off: Err then matches ErrCutOff. Close does not wait, see Done. In QPIdle it
// is Abort with ErrClosed.
func (qp *QP) Close() {
	if qp.discard(ErrClosed) {
		return
	}
	if s := qp.stream.Load(); s != nil {
		s.Close()
	}
}

// Shutdown is Close and waits for the end. When ctx ends first the stream is
// aborted. It returns the error that Err does.
func (qp *QP) Shutdown(ctx context.Context) error {
	qp.Close()
	select {
	case <-qp.done:
	case <-ctx.Done():
		qp.Abort(ctx.Err())
		<-qp.done
	}
	return qp.err
}

// Abort ends the stream at once, without a Terminate; err is its reason. In
// QPIdle it ends the start-up: Dial, Accept or Adopt fails with err in its chain,
// with ErrClosed if err is nil.
func (qp *QP) Abort(err error) {
	if qp.discard(err) {
		return
	}
	if s := qp.stream.Load(); s != nil {
		s.Abort(err)
	}
}

// discard ends a queue pair that has no stream, for reason. It returns false if
// there is a stream or the queue pair is already over.
func (qp *QP) discard(reason error) bool {
	if reason == nil {
		reason = ErrClosed
	}
	qp.mu.Lock()
	if qp.over || qp.stream.Load() != nil {
		qp.mu.Unlock()
		return false
	}
	qp.over = true
	cancel := qp.cancel
	qp.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	qp.err = reason
	if qp.made && qp.announces(reason) {
		return true
	}
	qp.flushRecvs(reason, false)
	qp.free()
	close(qp.done)
	return true
}

// announces has the receives of a queue pair complete that was made and never had a stream, by a goroutine of
// the device: the caller may be a handler. It returns false if the device is closed.
func (qp *QP) announces(reason error) bool {
	dev := qp.pd.ulp.dev
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if dev.closed {
		return false
	}
	dev.wg.Go(func() {
		qp.flushRecvs(reason, true)
		qp.cfg.SendCQ.settle()
		qp.cfg.RecvCQ.settle()
		qp.free()
		close(qp.done)
	})
	return true
}

// endedError means that a queue pair was ended by its consumer, or with its device, before
// it had a stream.
type endedError struct{ err error }

func (e *endedError) Error() string {
	return "verbs: the queue pair was ended before its stream was up: " + e.err.Error()
}

func (e *endedError) Unwrap() error { return e.err }

// fail discards a queue pair whose stream did not come up, and returns why: err,
// unless something else ended it before.
func (qp *QP) fail(err error) error {
	if qp.discard(err) {
		return err
	}
	<-qp.done
	return &endedError{err: qp.err}
}

// prepare calls the consumer's Prepare, f, before the stream comes up. The context that it
// returns ends with ctx and when the queue pair is ended; stop frees it.
func (qp *QP) prepare(ctx context.Context, f func(*QP) error) (_ context.Context, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	qp.mu.Lock()
	qp.cancel = cancel
	over := qp.over
	qp.mu.Unlock()
	if over { // before whoever ended it could cancel this
		cancel()
	} else if f != nil {
		err = f(qp)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, nil, qp.fail(err)
	}
	return ctx, cancel, nil
}
