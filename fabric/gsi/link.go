package gsi

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// magic begins the private data of the request for a link, and of its answer; the version is behind it.
const magic = "IWfb"

const version = 1

// ErrRefused: the peer has no use for a link with this host.
var ErrRefused = errors.New("the peer refuses this host's management datagrams: it has no directory, or another version of it")

// IsRequest reports whether private data ask for a link.
func IsRequest(private []byte) bool {
	return len(private) > len(magic) && string(private[:len(magic)]) == magic
}

func hello() []byte { return append([]byte(magic), version) }

// Handler takes what arrives on a link.
type Handler interface {
	// Receive is called with each message, of Size bytes, which is valid during the call. It must not block: the
	// stream waits for it.
	Receive(l *Link, message []byte)
}

// Link is a stream of messages with one peer. Its methods are safe for concurrent use.
type Link struct {
	handler Handler
	qp      *verbs.QP
	pd      *verbs.PD
	cq      *verbs.CQ
	buffers *verbs.MR

	room chan struct{} // a token for each Send that may be posted

	done chan struct{} // all has been given back
	once sync.Once
}

// Dial sets up a link with a peer, charged to ulp. The queue pair and the private data of dial are
// set here. It fails with ErrRefused in its chain, and as verbs' Dial does.
func Dial(ctx context.Context, ulp *verbs.ULP, dial verbs.DialConfig, h Handler) (*Link, error) {
	l, err := newLink(ulp, h)
	if err != nil {
		return nil, err
	}
	dial.PrivateData, dial.QP, dial.Prepare = hello(), l.config(), l.prepare
	qp, err := l.pd.Dial(ctx, dial)
	var rejected *verbs.RejectedError
	switch {
	case errors.As(err, &rejected):
		err = fmt.Errorf("%s: %w", dial.Remote, ErrRefused)
	case err == nil && !isHello(qp.PrivateData()):
		err = fmt.Errorf("%s: %w", dial.Remote, ErrRefused)
		qp.Abort(err)
		<-qp.Done()
	}
	if err != nil {
		return nil, errors.Join(err, l.free())
	}
	go l.await()
	return l, nil
}

// Accept sets up the link that a peer has asked for. It fails with what verbs says of the stream, and has rejected it
// then.
func Accept(ctx context.Context, ulp *verbs.ULP, cr *verbs.ConnRequest, h Handler) (*Link, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if !isHello(cr.PrivateData()) {
		return nil, errors.Join(fmt.Errorf("link with %s: another version of this host's", cr.Peer()), cr.Reject(ctx, hello()))
	}
	l, err := newLink(ulp, h)
	if err != nil {
		return nil, errors.Join(err, cr.Reject(ctx, hello()))
	}
	_, err = cr.Accept(ctx, l.pd, verbs.AcceptConfig{QP: l.config(), PrivateData: hello(), Prepare: l.prepare})
	if err != nil {
		_ = cr.Reject(ctx, hello()) // unless the stream has ended, and the peer knows
		return nil, errors.Join(err, l.free())
	}
	go l.await()
	return l, nil
}

// Refuse rejects what a peer has asked for. It waits until the peer has been told, for a time.
func Refuse(cr *verbs.ConnRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	_ = cr.Reject(ctx, hello()) // the peer may be gone
}

func isHello(private []byte) bool { return IsRequest(private) && private[len(magic)] == version }

func newLink(ulp *verbs.ULP, h Handler) (*Link, error) {
	l := &Link{handler: h, room: make(chan struct{}, sends), done: make(chan struct{})}
	for range sends {
		l.room <- struct{}{}
	}
	var err error
	if l.pd, err = ulp.AllocPDAs(verbs.NSNT); err != nil {
		return nil, err
	}
	if l.buffers, err = l.pd.RegisterMR(make([]byte, receives*Size), verbs.LocalWrite); err == nil {
		l.cq, err = ulp.CreateCQ(receives+sends, l)
	}
	if err != nil {
		return nil, errors.Join(err, l.free())
	}
	return l, nil
}

func (l *Link) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: l.cq, RecvCQ: l.cq, MaxSend: sends, MaxRecv: receives}
}

// prepare gives the link its stream, before anything can arrive.
func (l *Link) prepare(qp *verbs.QP) error {
	l.qp = qp
	for slot := range receives {
		if err := l.post(qp, uint64(slot)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) post(qp *verbs.QP, slot uint64) error {
	return qp.PostRecv(verbs.RecvWR{ID: slot, SGL: []verbs.SGE{{MR: l.buffers, Off: uint32(slot) * Size, Len: Size}}})
}

// await frees the link when its stream has ended.
func (l *Link) await() {
	<-l.qp.Done()
	_ = l.free() // nothing is in use any more
	close(l.done)
}

func (l *Link) free() error {
	var err error
	if l.cq != nil {
		err = l.cq.Destroy()
	}
	if l.buffers != nil {
		err = errors.Join(err, l.buffers.Deregister())
	}
	return errors.Join(err, l.pd.Dealloc())
}

// Completions implements verbs.CQHandler.
func (l *Link) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Op != verbs.WCRecv:
			l.room <- struct{}{} // the send had taken it from there
		case wc.Err != nil:
		case wc.Len != Size:
			wc.QP.Abort(fmt.Errorf("%s sent %d bytes in place of a GRH and a MAD, which have %d (IBTA volume 1, 13.4.2)", wc.QP.Peer(), wc.Len, Size))
			return
		default:
			l.handler.Receive(l, l.buffers.Bytes()[wc.ID*Size:][:Size])
			if err := l.post(wc.QP, wc.ID); err != nil {
				wc.QP.Abort(err)
				return
			}
		}
	}
	wcs[0].QP.Flush()
}

// Send sends a message of Size bytes, which may be used again when it returns. It waits while too much is under
// way, until ctx ends, and fails with that, and when the link has ended.
func (l *Link) Send(ctx context.Context, message []byte) error {
	if len(message) != Size {
		return fmt.Errorf("gsi: a message has %d bytes, in place of %d", len(message), Size)
	}
	select {
	case <-l.room:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.qp.Done():
		return l.Err()
	}
	err := l.qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline | verbs.Signaled, Data: message})
	if err != nil {
		l.room <- struct{}{}
	}
	return err
}

// Peer is the identity that has been proved for the other end.
func (l *Link) Peer() transport.Identity { return l.qp.Peer() }

// Flow is the stream's.
func (l *Link) Flow() transport.Flow { return l.qp.Flow() }

// QP is the stream's queue pair.
func (l *Link) QP() *verbs.QP { return l.qp }

// Done is closed when the link has ended and all that it used has been given back.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err is why the link has ended, nil while it has not.
func (l *Link) Err() error {
	select {
	case <-l.qp.Done():
		if err := l.qp.Err(); err != nil {
			return err
		}
		return verbs.ErrClosed
	default:
		return nil
	}
}

// Close ends the link when what has been sent has left, or after two seconds. It is idempotent.
func (l *Link) Close() {
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		_ = l.qp.Shutdown(ctx) // it aborts what does not end in time
	})
	<-l.done
}
