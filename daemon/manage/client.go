package manage

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/verbs"
)

// ErrRefused is wrapped where a peer refuses to be managed by this host.
var ErrRefused = errors.New("the request is refused")

// Call sends a request to a peer, charged to ulp, and returns its answer. The queue pair and the private data of dial are set here. Once
// the peer has taken the request begun is called. It
// fails with ErrRefused in its chain, with the stream's error, and as verbs' Dial does.
func Call(ctx context.Context, ulp *verbs.ULP, dial verbs.DialConfig, request []byte, begun func()) (answer []byte, err error) {
	if len(request) > MaxRequest {
		return nil, fmt.Errorf("a request of %d bytes; %d are allowed", len(request), MaxRequest)
	}
	s, err := newStream(ulp)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	dial.PrivateData, dial.QP, dial.Prepare = appendHello(nil), s.config(), s.prepare
	qp, err := s.pd.Dial(ctx, dial)
	var rejected *verbs.RejectedError
	switch {
	case errors.As(err, &rejected):
		s.qp = nil
		return nil, fmt.Errorf("%s: %s: %w", dial.Remote, refusalText(rejected.PrivateData), ErrRefused)
	case err != nil:
		s.qp = nil
		return nil, err
	case !isHello(qp.PrivateData()):
		return nil, fmt.Errorf("%s: %s: %w", dial.Remote, refusalText(qp.PrivateData()), ErrRefused)
	}
	ctx, end := s.untilEnd(ctx)
	defer end()
	if err := s.sendAll(ctx, kindRequest, request); err != nil {
		return nil, err
	}
	begun()
	return s.receiveAll(ctx, kindAnswer, MaxAnswer)
}
