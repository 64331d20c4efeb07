package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/rdmap"
)

// underTrust is an end whose protection domain has model m.
func underTrust(t *testing.T, m TrustModel) *end {
	t.Helper()
	e := newEnd(t, Config{})
	var err error
	if e.pd, err = e.ulp.AllocPDAs(m); err != nil {
		t.Fatal(err)
	}
	return e
}

// Each rule that a model waives is enforced under the others, and only there: the
// table of models is what happens.
func TestTrustModelsPermitWhatTheirTableSays(t *testing.T) {
	second := func(e *end, cfg QPConfig, pd *PD) error {
		if _, err := newQP(e.pd, e.cfg, fakeConn{"a"}); err != nil {
			return fmt.Errorf("the first queue pair: %w", err)
		}
		_, err := newQP(pd, cfg, fakeConn{"b"})
		return err
	}
	for _, rule := range []struct {
		name   string
		waived func(Trust) bool
		try    func(e *end, m TrustModel) error
	}{
		{"a second stream in a protection domain", func(r Trust) bool { return r.ShareStreams }, func(e *end, _ TrustModel) error {
			other, err := e.ulp.CreateCQ(256, nil)
			if err != nil {
				return err
			}
			cfg := e.cfg
			cfg.SendCQ, cfg.RecvCQ = other, other
			return second(e, cfg, e.pd)
		}},
		{"a second stream on a completion queue", func(r Trust) bool { return r.ShareStreams }, func(e *end, m TrustModel) error {
			pd, err := e.ulp.AllocPDAs(m)
			if err != nil {
				return err
			}
			return second(e, e.cfg, pd)
		}},
		{"remote rights of a region's STag", func(r Trust) bool { return r.ShareSTags }, func(e *end, _ TrustModel) error {
			_, err := e.pd.RegisterMR(make([]byte, 8), LocalWrite|RemoteWrite)
			return err
		}},
		{"remote rights by registering anew", func(r Trust) bool { return r.ShareSTags }, func(e *end, _ TrustModel) error {
			mr, err := e.pd.RegisterMR(make([]byte, 8), LocalWrite)
			if err != nil {
				return err
			}
			_, err = mr.Reregister(0, 8, RemoteRead)
			return err
		}},
		{"remote rights by a posted registration", func(r Trust) bool { return r.ShareSTags }, func(e *end, _ TrustModel) error {
			mr, err := e.pd.RegisterMR(make([]byte, 8), LocalWrite)
			if err != nil {
				return err
			}
			e.rawStream()
			return e.qp.PostSend(&SendWR{Op: OpRegister, SGL: whole(mr, 8), Access: RemoteRead})
		}},
		{"a completion queue smaller than what may be posted", func(r Trust) bool { return r.Overcommit }, func(e *end, _ TrustModel) error {
			small, err := e.ulp.CreateCQ(e.cfg.MaxSend+e.cfg.MaxRecv-1, nil)
			if err != nil {
				return err
			}
			e.cfg.SendCQ, e.cfg.RecvCQ = small, small
			_, err = newQP(e.pd, e.cfg, fakeConn{"a"})
			return err
		}},
		{"a shared receive queue without a limit per stream", func(r Trust) bool { return r.UnlimitedSRQ || !r.ShareStreams }, func(e *end, _ TrustModel) error {
			_, err := e.pd.CreateSRQ(SRQConfig{MaxRecv: 8})
			return err
		}},
	} {
		for _, m := range TrustModels() {
			err := rule.try(underTrust(t, m), m)
			switch waived := rule.waived(m.Trust()); {
			case waived && err != nil:
				t.Errorf("%v: %s is refused: %v", m, rule.name, err)
			case !waived && !errors.Is(err, ErrTrust):
				t.Errorf("%v: %s: %v, want ErrTrust", m, rule.name, err)
			}
		}
	}
}

// Where streams don't trust each other a completion queue has room for all of them
// before the last one is admitted, shared receive queues counted once (R22).
func TestUntrustedStreamsCannotOverflowTheirCompletionQueue(t *testing.T) {
	e := underTrust(t, SNT)
	srq, err := e.pd.CreateSRQ(SRQConfig{MaxRecv: 20, MaxPerQP: 10})
	if err != nil {
		t.Fatal(err)
	}
	cq, err := e.ulp.CreateCQ(20+3*5, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 5, SRQ: srq}
	var qps []*QP
	for range 3 {
		qp, err := newQP(e.pd, cfg, fakeConn{"p"})
		if err != nil {
			t.Fatal(err)
		}
		qps = append(qps, qp)
	}
	if _, err := newQP(e.pd, cfg, fakeConn{"p"}); !errors.Is(err, ErrTrust) {
		t.Errorf("a fourth queue pair: %v", err)
	}
	qps[0].discard(nil)
	if _, err := newQP(e.pd, cfg, fakeConn{"p"}); err != nil {
		t.Errorf("in the place of one that is gone: %v", err)
	}
	if err := cq.Destroy(); !errors.Is(err, ErrInUse) {
		t.Errorf("destroyed in use: %v", err)
	}
}

// Under S-NT a window that is bound for one stream opens memory to that stream
// alone: the peer of another one of the same protection domain can neither use nor
// invalidate it (R9, R25).
func TestWindowsReplaceSharedSTags(t *testing.T) {
	e := underTrust(t, SNT)
	e.cfg.MaxSend, e.cfg.MaxRecv = 8, 8
	mr, err := e.pd.RegisterMR(make([]byte, 64), LocalWrite|WindowBind)
	if err != nil {
		t.Fatal(err)
	}
	mw, err := e.pd.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	_, raw := e.rawStream()
	e.post(SendWR{Op: OpBind, MW: mw, SGL: whole(mr, 64), Access: RemoteWrite, Flags: Signaled})
	if wc := e.next(); wc.Err != nil {
		t.Fatal(wc.Err)
	}
	first := e.qp
	_, other := e.rawStream()
	other.Send(append(tagged(true, rdmap.OpWrite, mw.STag(), 0, 0), "data"...))
	other.CloseWrite()
	if err := e.wantEnd(); err == nil {
		t.Error("another stream writes through the window")
	}
	e.qp = first
	if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
		t.Error("the memory has changed")
	}
	e.recv(RecvWR{ID: 9})
	raw.Send(append(tagged(true, rdmap.OpWrite, mw.STag(), 0, 0), "data"...))
	raw.Send(sends(1, 1)...)
	for e.next().ID != 9 {
	}
	if string(mr.Bytes()[:4]) != "data" {
		t.Error("the stream that the window is for has not written")
	}
}

// A ULP can't make its streams more trusted than it is itself.
func TestULPCannotExceedItsTrust(t *testing.T) {
	dev := newEnd(t, Config{}).dev
	permitted := map[TrustModel][]TrustModel{
		NSNT: {NSNT},
		NSRT: {NSNT, NSRT},
		SNT:  {NSNT, SNT},
		SLT:  {NSNT, SNT, SLT},
		ST:   {NSNT, NSRT, SNT, SLT, ST},
	}
	for m, want := range permitted {
		u, err := dev.NewULP(m.String(), ULPConfig{Trust: m})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range TrustModels() {
			pd, err := u.AllocPDAs(n)
			ok := false
			for _, w := range want {
				ok = ok || w == n
			}
			if ok != (err == nil) || !ok && !errors.Is(err, ErrTrust) {
				t.Errorf("a ULP of %v allocates a protection domain of %v: %v", m, n, err)
			}
			if err == nil && pd.Trust() != n {
				t.Errorf("it has %v", pd.Trust())
			}
		}
	}
	var zero ULPConfig
	if zero.Trust != NSNT {
		t.Error("a ULP that says nothing is trusted")
	}
}

func TestTrustModelsHaveNames(t *testing.T) {
	for _, m := range TrustModels() {
		got, err := ParseTrustModel(m.String())
		if err != nil || got != m {
			t.Errorf("%v is read as %v, %v", m, got, err)
		}
	}
	if _, err := ParseTrustModel("S-RT"); err == nil {
		t.Error("a model that RFC 5042 does not have is taken")
	}
}

func TestModelsOfOneStreamAreNoLooser(t *testing.T) {
	for _, m := range TrustModels() {
		if a := m.Alone(); !m.Permits(a) || a.Trust().ShareStreams {
			t.Errorf("%v alone is %v", m, a)
		}
	}
}

// The meet of two models waives nothing that either does not.
func TestMeetOfModels(t *testing.T) {
	for _, m := range TrustModels() {
		for _, n := range TrustModels() {
			x := m.Meet(n)
			if !m.Permits(x) || !n.Permits(x) || x != n.Meet(m) {
				t.Errorf("%v and %v meet in %v, %v and %v in %v", m, n, x, n, m, n.Meet(m))
			}
			for _, y := range TrustModels() {
				if m.Permits(y) && n.Permits(y) && y.Permits(x) && y != x {
					t.Errorf("%v and %v meet in %v, and both permit %v", m, n, x, y)
				}
			}
		}
	}
}
