package verbs

import (
	"errors"
	"testing"
)

// Windows that are open for two streams at a time may have memory in common where
// neither peer writes to it, or where the model trusts (R18; RFC 5042 section 6.3.6).
func TestWindowsOfStreamsWithoutTrustShareNoMemoryThatIsWritten(t *testing.T) {
	const size = 64
	for _, c := range []struct {
		name          string
		model         TrustModel
		first, second Access
		off, n        uint32 // of the second window; the first is 16 bytes at 16
		same          bool   // stream
		refused       bool
	}{
		{name: "both read", first: RemoteRead, second: RemoteRead, off: 16, n: 16},
		{name: "read and write", first: RemoteRead, second: RemoteWrite, off: 16, n: 16, refused: true},
		{name: "write and read", first: RemoteWrite, second: RemoteRead, off: 16, n: 16, refused: true},
		{name: "both write", first: RemoteWrite, second: RemoteWrite, off: 16, n: 16, refused: true},
		{name: "atomics and read", first: RemoteAtomic, second: RemoteRead, off: 16, n: 16, refused: true},
		{name: "the first byte", first: RemoteWrite, second: RemoteRead, off: 0, n: 17, refused: true},
		{name: "the last byte", first: RemoteWrite, second: RemoteRead, off: 31, n: 8, refused: true},
		{name: "within", first: RemoteWrite, second: RemoteRead, off: 20, n: 1, refused: true},
		{name: "around", first: RemoteWrite, second: RemoteRead, off: 0, n: 64, refused: true},
		{name: "up to it", first: RemoteWrite, second: RemoteWrite, off: 0, n: 16},
		{name: "from its end", first: RemoteWrite, second: RemoteWrite, off: 32, n: 32},
		{name: "of the same stream", first: RemoteWrite, second: RemoteRead, off: 16, n: 16, same: true},
		{name: "streams that trust each other", model: SLT, first: RemoteWrite, second: RemoteWrite, off: 16, n: 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // each waits for the end of its streams
			m := SNT
			if c.model != NSNT {
				m = c.model
			}
			e := underTrust(t, m)
			e.cfg.MaxSend, e.cfg.MaxRecv = 8, 8
			buf := make([]byte, size)
			region := func() *MR { // the same memory, as another region
				mr, err := e.pd.RegisterMR(buf, LocalWrite|WindowBind)
				if err != nil {
					t.Fatal(err)
				}
				return mr
			}
			e.rawStream()
			first := e.mw()
			e.bind(first, region(), 16, 16, c.first)
			if !c.same {
				e.rawStream()
			}
			mr, second := region(), e.mw()
			try := func() error {
				e.post(SendWR{Op: OpBind, Flags: Signaled, MW: second, SGL: []SGE{{mr, c.off, c.n}}, Access: c.second})
				return e.next().Err
			}
			err := try()
			if !c.refused {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrTrust) {
				t.Fatalf("the bind completes with %v, want ErrTrust", err)
			}
			<-e.qp.Done()
			if err := first.Invalidate(); err != nil {
				t.Fatal(err)
			}
			e.rawStream()
			if err := try(); err != nil {
				t.Errorf("when the first window is gone: %v", err)
			}
		})
	}
}

// A stream that ends leaves nothing behind that stands in the way of others.
func TestWindowsOfAnEndedStreamAreOutOfTheWay(t *testing.T) {
	e := underTrust(t, SNT)
	e.cfg.MaxSend, e.cfg.MaxRecv = 8, 8
	mr := e.mr(64, LocalWrite|WindowBind)
	for range 3 {
		e.rawStream()
		for i := range uint32(4) {
			e.bind(e.mw(), mr, 16*i, 16, RemoteWrite)
		}
		e.qp.Abort(nil)
		<-e.qp.Done()
	}
	if e.dev.exposed.root != nil {
		t.Error("windows are on record that are not open")
	}
}
