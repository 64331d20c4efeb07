package assoc

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// RFC 9260 section 16 suggests the defaults, but RTO.Min, which is that of short paths.
func TestDefaultsAreThoseOfTheRFC(t *testing.T) {
	want := Params{Streams: 1024, RTOInitial: time.Second, RTOMin: 250 * time.Millisecond, RTOMax: time.Minute,
		Heartbeat: 30 * time.Second, AssocMaxRetrans: 10, PathMaxRetrans: 5, MaxInitRetrans: 8, Backlog: 128}
	if got := (Params{}).Filled(); got != want {
		t.Errorf("the defaults are %+v, want %+v", got, want)
	}
	if got := want.Filled(); got != want {
		t.Errorf("filled again they are %+v", got)
	}
	if SACKDelay >= 200*time.Millisecond || SACKDelay >= want.RTOMin {
		t.Errorf("SACK.Delay is %v, RTO.Min of a peer may be %v", SACKDelay, want.RTOMin)
	}
}

func TestWhatIsSetStays(t *testing.T) {
	set := Params{Adaptation: 1, Streams: 7, RTOInitial: 3 * time.Second, RTOMin: 2 * time.Second, RTOMax: 4 * time.Second,
		Heartbeat: -1, AssocMaxRetrans: 1, PathMaxRetrans: 2, MaxInitRetrans: 3, DeadAfter: time.Hour, Backlog: 9}
	if got := set.Filled(); got != set {
		t.Errorf("%+v became %+v", set, got)
	}
}

// RTO.Min <= RTO.Initial <= RTO.Max, whichever of them is set.
func TestRTOBoundsAreInOrder(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, 500 * time.Millisecond, 2 * time.Minute} {
		for _, p := range []Params{{RTOMin: d}, {RTOInitial: d}, {RTOMax: d}, {RTOMin: d, RTOMax: time.Nanosecond}} {
			if f := p.Filled(); f.RTOMin > f.RTOInitial || f.RTOInitial > f.RTOMax {
				t.Errorf("%+v: RTO from %v by %v to %v", p, f.RTOMin, f.RTOInitial, f.RTOMax)
			}
		}
	}
}

func TestMessagesAreChecked(t *testing.T) {
	for _, c := range []struct {
		stream uint16
		bufs   [][]byte
		size   int
		err    error
	}{
		{0, [][]byte{make([]byte, 60), nil, make([]byte, 40)}, 100, nil},
		{3, [][]byte{{1}}, 1, nil},
		{4, [][]byte{{1}}, 1, ErrStream},
		{0, nil, 0, ErrEmpty},
		{0, [][]byte{{}, {}}, 0, ErrEmpty},
		{0, [][]byte{make([]byte, 60), make([]byte, 41)}, 101, ErrTooLong},
	} {
		m := Outgoing{Stream: c.stream, Bufs: c.bufs}
		if n, err := m.Check(100, 4); n != c.size || err != c.err {
			t.Errorf("stream %d, %d buffers: %d bytes, %v, want %d, %v", c.stream, len(c.bufs), n, err, c.size, c.err)
		}
	}
}

// What callers ask of an error by errors.Is and errors.As holds through the carriers'
// wrapping.
func TestErrorsKeepTheirCause(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:9899")
	abort := error(&Error{Op: "send", Remote: at, Err: &AbortError{Cause: Cause{Code: CauseUserAbort, Info: []byte("bye")}}})
	for target, is := range map[*AbortError]bool{
		{}:                                   true,
		{Cause: Cause{Code: CauseUserAbort}}: true,
		{Cause: Cause{Code: CauseProtocolViolation}}: false,
		{Local: true}: false,
		{Local: true, Cause: Cause{Code: CauseUserAbort}}: false,
	} {
		if errors.Is(abort, target) != is {
			t.Errorf("errors.Is with %+v is not %v", target, is)
		}
	}
	if got, want := abort.Error(), `sctp: send 192.0.2.1:9899: the peer has aborted the association: User-Initiated Abort: "bye"`; got != want {
		t.Errorf("the error says %s, want %s", got, want)
	}
	if !errors.Is(&AdaptationError{Want: 1, None: true}, ErrAdaptation) {
		t.Error("an AdaptationError is not ErrAdaptation")
	}
}
