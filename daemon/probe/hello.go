package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Transports is a set of carriers.
type Transports uint8

// With returns the set with a carrier in it.
func (t Transports) With(k transport.Kind) Transports { return t | 1<<k }

// Has reports whether a carrier is in the set.
func (t Transports) Has(k transport.Kind) bool { return t&(1<<k) != 0 }

func (t Transports) String() string {
	var names []string
	for _, k := range []transport.Kind{transport.TCP, transport.SCTP, transport.SCTPUDP} {
		if t.Has(k) {
			names = append(names, k.String())
		}
	}
	return strings.Join(names, ", ")
}

// IsHello reports whether private data asks which carriers this host has for the
// peer. The answer is a rejection with AppendHello.
func IsHello(private []byte) bool {
	return IsRequest(private) && len(private) >= requestLen && private[4] == version && private[5] == askHello
}

// AppendHello appends the answer to a hello.
func AppendHello(b []byte, have Transports) []byte {
	return append(append(b, Magic...), version, saidHello, uint8(have), 0)
}

// ErrNoHello means that a peer does not know the hello.
var ErrNoHello = errors.New("the peer does not say which transports it has: its ironwarp is older than this one")

// Hello asks a peer which carriers it has for this host. The private data of dial is
// set here. It fails as Dial does.
func Hello(ctx context.Context, ulp *verbs.ULP, dial verbs.DialConfig) (_ Transports, err error) {
	pd, err := ulp.AllocPDAs(verbs.NSNT)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pd.Dealloc()) }()
	cq, err := ulp.CreateCQ(8, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cq.Destroy()) }()
	dial.PrivateData = append([]byte(Magic), version, askHello, 0, 0)
	dial.QP = verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1}
	qp, err := pd.Dial(ctx, dial)
	if err == nil {
		// It took the hello for a request for a measurement.
		qp.Abort(ErrNoHello)
		<-qp.Done()
		return 0, fmt.Errorf("%s: %w", dial.Remote, ErrNoHello)
	}
	var rejected *verbs.RejectedError
	if !errors.As(err, &rejected) {
		return 0, err
	}
	b := rejected.PrivateData
	if len(b) < refusalLen || !IsRequest(b) || b[4] != version || b[5] != saidHello {
		return 0, fmt.Errorf("%s: %s", dial.Remote, refusalText(b))
	}
	return Transports(b[6]), nil
}
