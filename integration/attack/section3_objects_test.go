package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// things are one of each object of a protection domain, with a stream.
type things struct {
	v      *target
	ulp    *verbs.ULP
	pd     *verbs.PD
	cq     *verbs.CQ
	srq    *verbs.SRQ
	mr     *verbs.MR
	mw     *verbs.MW
	stream *stream
}

func (v *target) things(pd *verbs.PD, id transport.Identity) *things {
	v.Helper()
	o := &things{v: v, ulp: pd.ULP(), pd: pd, cq: must(pd.ULP().CreateCQ(64, nil))(v.T)}
	o.srq = must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 4}))(v.T)
	o.mr = v.region(pd, 64, all|verbs.WindowBind)
	o.stream = must(v.tryStream(pd, o.cq, id))(v.T)
	o.mw, _ = o.stream.bind(o.mr, 32, 8, all)
	return o
}

func (o *things) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: o.cq, RecvCQ: o.cq, MaxSend: 4, MaxRecv: 4}
}

// made is a queue pair that is not connected.
func (o *things) made() *verbs.QP {
	o.v.Helper()
	return must(o.pd.CreateQP(o.config()))(o.v.T)
}

// theft is a call of mallory's that names an object which is not his.
type theft struct {
	call string // the method and what of its arguments is stolen
	note string
	// by which check it is refused, of another consumer's and of another protection
	// domain's of his own; None where it can't be of another domain.
	consumer, domain checks.Check
	// try makes the call. It reports whether that succeeded.
	try func(mine, theirs *things) (succeeded bool, err error)
}

// opened reports whether a call that makes a queue pair got as far as one.
func opened(make func(prepare func(*verbs.QP) error) error) (bool, error) {
	done := errors.New("that will do")
	err := make(func(*verbs.QP) error { return done })
	if errors.Is(err, done) {
		return true, nil
	}
	return false, err
}

// adopt is a call of Adopt with a configuration that change has changed.
func adopt(change func(cfg *verbs.QPConfig, theirs *things)) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		cfg := mine.config()
		change(&cfg, theirs)
		_, llp := iwarptest.NewPeer(iwarptest.Options{})
		defer llp.Close()
		return opened(func(prepare func(*verbs.QP) error) error {
			_, err := mine.pd.Adopt(verbs.AdoptConfig{QP: cfg, Prepare: prepare, LLP: llp, Conn: conn{"mallory"}})
			return err
		})
	}
}

// create is a call of CreateQP.
func create(change func(cfg *verbs.QPConfig, theirs *things)) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		cfg := mine.config()
		change(&cfg, theirs)
		_, err := mine.pd.CreateQP(cfg)
		return err == nil, err
	}
}

var tcp = &transport.Config{Protector: transport.LoopbackOnly()}

// listenTCP listens with the target's device.
func (v *target) listenTCP() *verbs.Listener {
	v.Helper()
	return must(v.dev.Listen(v.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: tcp}))(v.T)
}

// dial is a call of Dial.
func dial(change func(cfg *verbs.DialConfig, theirs *things)) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		l := mine.v.listenTCP()
		defer l.Close()
		cfg := verbs.DialConfig{QP: mine.config(), Remote: l.Addr(), Transport: tcp}
		change(&cfg, theirs)
		return opened(func(prepare func(*verbs.QP) error) error {
			cfg.Prepare = prepare
			_, err := mine.pd.Dial(mine.v.Context(), cfg)
			return err
		})
	}
}

// accept is a call of Accept for a peer that dials from a device of its own.
func accept(change func(cfg *verbs.AcceptConfig, theirs *things)) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		v := mine.v
		l := v.listenTCP()
		defer l.Close()
		peer := must(verbs.Open(verbs.Config{}))(v.T)
		defer peer.Close()
		u := must(peer.NewULP("peer", verbs.ULPConfig{}))(v.T)
		pd, cq := must(u.AllocPD())(v.T), must(u.CreateCQ(8, nil))(v.T)
		ctx, cancel := context.WithCancel(v.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = pd.Dial(ctx, verbs.DialConfig{QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1}, Remote: l.Addr(), Transport: tcp})
		}()
		defer func() { cancel(); <-gone }()
		r := must(l.Accept(ctx))(v.T)
		defer func() { _ = r.Reject(ctx, nil) }()
		cfg := verbs.AcceptConfig{QP: mine.config()}
		change(&cfg, theirs)
		return opened(func(prepare func(*verbs.QP) error) error {
			cfg.Prepare = prepare
			_, err := r.Accept(ctx, mine.pd, cfg)
			return err
		})
	}
}

// post posts wr on mallory's queue pair and waits for what comes of it.
func (o *things) post(wr verbs.SendWR) error {
	wr.ID, wr.Flags = 11, wr.Flags|verbs.Signaled
	if err := o.stream.qp.PostSend(&wr); err != nil {
		return err
	}
	return o.stream.completion(11).Err
}

// leak posts an operation that sends what stands in the target's memory, behind some
// bytes of mallory's own.
func leak(op verbs.Opcode) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		copy(theirs.mr.Bytes(), secret)
		wr := verbs.SendWR{Op: op, SGL: []verbs.SGE{{MR: mine.mr, Len: 4}, {MR: theirs.mr, Len: uint32(len(secret))}}, RemoteSTag: 1}
		if err := mine.post(wr); err != nil {
			return false, err
		}
		s, _ := mine.stream.hear()
		return bytes.HasSuffix(s.Payload, secret), nil
	}
}

// fetch posts an operation whose result goes to the target's memory.
func fetch(op verbs.Opcode, answer func(f *stream, sink uint32)) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		wr := verbs.SendWR{ID: 11, Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: theirs.mr, Len: 8}}, RemoteSTag: 1}
		if err := mine.stream.qp.PostSend(&wr); err != nil {
			return false, err
		}
		s, _ := mine.stream.hear()
		answer(mine.stream, sinkOf(s))
		if err := mine.stream.completion(11).Err; err != nil {
			return false, err
		}
		return string(theirs.mr.Bytes()[:8]) == "evilevil", nil
	}
}

// receive posts a receive into the target's memory, behind some bytes of mallory's own,
// and has a message come.
func receive(post func(mine *things, wr verbs.RecvWR) (*stream, error)) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		f, err := post(mine, verbs.RecvWR{ID: 11, SGL: []verbs.SGE{{MR: mine.mr, Len: 4}, {MR: theirs.mr, Len: 64}}})
		if err != nil {
			return false, err
		}
		f.send(0, append([]byte("mine"), evil...))
		if err := f.completion(11).Err; err != nil {
			return false, err
		}
		return string(theirs.mr.Bytes()[:4]) == "evil", nil
	}
}

// invalidate posts an invalidation of the target's STag.
func invalidate(stag func(theirs *things) uint32) func(mine, theirs *things) (bool, error) {
	return func(mine, theirs *things) (bool, error) {
		err := mine.post(verbs.SendWR{Op: verbs.OpInvalidateLocal, InvalidateSTag: stag(theirs)})
		theirs.stream.write(stag(theirs), 0, []byte("fine"))
		return !theirs.stream.settled(), err
	}
}

// thefts are all calls of a consumer that name an object.
func thefts() []theft {
	return []theft{
		{"PD.Adopt SendCQ", "", checks.ForeignCQ, checks.None, adopt(func(cfg *verbs.QPConfig, theirs *things) { cfg.SendCQ = theirs.cq })},
		{"PD.Adopt RecvCQ", "", checks.ForeignCQ, checks.None, adopt(func(cfg *verbs.QPConfig, theirs *things) { cfg.RecvCQ = theirs.cq })},
		{"PD.Adopt SRQ", "", checks.ForeignPD, checks.ForeignPD, adopt(func(cfg *verbs.QPConfig, theirs *things) { cfg.SRQ, cfg.MaxRecv = theirs.srq, 0 })},
		{"PD.CreateQP SendCQ", "", checks.ForeignCQ, checks.None, create(func(cfg *verbs.QPConfig, theirs *things) { cfg.SendCQ = theirs.cq })},
		{"PD.CreateQP RecvCQ", "", checks.ForeignCQ, checks.None, create(func(cfg *verbs.QPConfig, theirs *things) { cfg.RecvCQ = theirs.cq })},
		{"PD.CreateQP SRQ", "", checks.ForeignPD, checks.ForeignPD, create(func(cfg *verbs.QPConfig, theirs *things) { cfg.SRQ, cfg.MaxRecv = theirs.srq, 0 })},
		{"PD.Dial SendCQ", "", checks.ForeignCQ, checks.None, dial(func(cfg *verbs.DialConfig, theirs *things) { cfg.QP.SendCQ = theirs.cq })},
		{"PD.Dial RecvCQ", "", checks.ForeignCQ, checks.None, dial(func(cfg *verbs.DialConfig, theirs *things) { cfg.QP.RecvCQ = theirs.cq })},
		{"PD.Dial SRQ", "", checks.ForeignPD, checks.ForeignPD, dial(func(cfg *verbs.DialConfig, theirs *things) { cfg.QP.SRQ, cfg.QP.MaxRecv = theirs.srq, 0 })},
		{"PD.Dial Made", "", checks.ForeignPD, checks.ForeignPD, dial(func(cfg *verbs.DialConfig, theirs *things) { cfg.Made = theirs.made() })},
		{"ConnRequest.Accept SendCQ", "", checks.ForeignCQ, checks.None, accept(func(cfg *verbs.AcceptConfig, theirs *things) { cfg.QP.SendCQ = theirs.cq })},
		{"ConnRequest.Accept RecvCQ", "", checks.ForeignCQ, checks.None, accept(func(cfg *verbs.AcceptConfig, theirs *things) { cfg.QP.RecvCQ = theirs.cq })},
		{"ConnRequest.Accept SRQ", "", checks.ForeignPD, checks.ForeignPD, accept(func(cfg *verbs.AcceptConfig, theirs *things) { cfg.QP.SRQ, cfg.QP.MaxRecv = theirs.srq, 0 })},
		{"ConnRequest.Accept Made", "", checks.ForeignPD, checks.ForeignPD, accept(func(cfg *verbs.AcceptConfig, theirs *things) { cfg.Made = theirs.made() })},
		{"QP.PostSend SGL MR", "Send", checks.ForeignPD, checks.ForeignPD, leak(verbs.OpSend)},
		{"QP.PostSend SGL MR", "Write", checks.ForeignPD, checks.ForeignPD, leak(verbs.OpWrite)},
		{"QP.PostSend SGL MR", "Read", checks.ForeignPD, checks.ForeignPD, fetch(verbs.OpRead, func(f *stream, sink uint32) { f.answer(sink, []byte("evilevil")) })},
		{"QP.PostSend SGL MR", "FetchAdd", checks.ForeignPD, checks.ForeignPD, fetch(verbs.OpFetchAdd, func(f *stream, id uint32) { f.answerAtomic(id, 1) })},
		{"QP.PostSend SGL MR", "CmpSwap", checks.ForeignPD, checks.ForeignPD, fetch(verbs.OpCmpSwap, func(f *stream, id uint32) { f.answerAtomic(id, 1) })},
		{"QP.PostSend SGL MR", "Bind", checks.ForeignPD, checks.ForeignPD, func(mine, theirs *things) (bool, error) {
			mw := must(mine.pd.AllocMW())(mine.v.T)
			if err := mine.post(verbs.SendWR{Op: verbs.OpBind, MW: mw, SGL: []verbs.SGE{{MR: theirs.mr, Len: 8}}, Access: verbs.RemoteWrite}); err != nil {
				return false, err
			}
			mine.stream.write(mw.STag(), 0, evil)
			mine.stream.settled()
			return string(theirs.mr.Bytes()[:4]) == "evil", nil
		}},
		{"QP.PostSend SGL MR", "Register", checks.ForeignPD, checks.ForeignPD, func(mine, theirs *things) (bool, error) {
			before := theirs.mr.STag()
			err := mine.post(verbs.SendWR{Op: verbs.OpRegister, SGL: []verbs.SGE{{MR: theirs.mr, Len: 8}}, Access: verbs.RemoteWrite})
			return theirs.mr.STag() != before, err
		}},
		{"QP.PostSend MW", "Bind", checks.ForeignPD, checks.ForeignPD, func(mine, theirs *things) (bool, error) {
			theirs.v.granted(theirs.mw.Invalidate())
			err := mine.post(verbs.SendWR{Op: verbs.OpBind, MW: theirs.mw, SGL: []verbs.SGE{{MR: mine.mr, Len: 8}}, Access: verbs.RemoteWrite})
			return err == nil, err
		}},
		{"QP.PostSend InvalidateSTag", "of a region", checks.PDOfSTag, checks.PDOfSTag, invalidate(func(theirs *things) uint32 { return theirs.mr.STag() })},
		{"QP.PostSend InvalidateSTag", "of a window", checks.None, checks.None, invalidate(func(theirs *things) uint32 { return theirs.mw.STag() })},
		{"QP.PostRecv SGL MR", "", checks.ForeignPD, checks.ForeignPD, receive(func(mine *things, wr verbs.RecvWR) (*stream, error) { return mine.stream, mine.stream.qp.PostRecv(wr) })},
		{"SRQ.PostRecv SGL MR", "", checks.ForeignPD, checks.ForeignPD, receive(func(mine *things, wr verbs.RecvWR) (*stream, error) {
			if err := mine.srq.PostRecv(wr); err != nil {
				return nil, err
			}
			return mine.v.streamAs(mine.pd, verbs.QPConfig{SendCQ: mine.cq, RecvCQ: mine.cq, MaxSend: 1, SRQ: mine.srq}, iwarptest.Options{}, "mallory")
		})},
	}
}

func sinkOf(s iwarptest.Segment) uint32 {
	if r, ok := rdmap.ParseReadRequest(s.Payload); ok {
		return r.SinkSTag
	}
	a, _ := rdmap.ParseAtomicRequest(s.Payload)
	return a.ID
}

// answerAtomic answers an Atomic of the target, as message msn.
func (f *stream) answerAtomic(id, msn uint32) {
	r := rdmap.AtomicResponse{ID: id, Original: binary.NativeEndian.Uint64([]byte("evilevil"))}
	_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpAtomicResponse, QN: rdmap.QNAtomicResponse, MSN: msn, Payload: r.Append(nil)})
}

// stolen makes a theft into an attack, on the objects that set makes for the target.
func stolen(t theft, whose string, c checks.Check, set func(v *target) *things) attack {
	name := t.call
	if t.note != "" {
		name += " (" + t.note + ")"
	}
	return attack{name + "/" + whose, c, func(v *target) bool {
		theirs, mine := set(v), v.things(v.pd, "mallory")
		succeeded, err := t.try(mine, theirs)
		if !succeeded && err == nil {
			v.Error("the call fails without an error")
		}
		return succeeded
	}}
}

func anothersThings(v *target) *things {
	return v.things(must(v.consumer("alice", verbs.ST).AllocPD())(v.T), "alice")
}

func thingsOfAnotherDomain(v *target) *things { return v.things(v.domain(), "alice") }

// A consumer who has got hold of another's handles uses them with his own, in every call
// that takes any (R1, R27; RFC 5042 sections 3 and 7.1).
func TestConsumerUsesWhatIsAnothers(t *testing.T) {
	var attacks []attack
	for _, x := range thefts() {
		attacks = append(attacks, stolen(x, "another consumer", x.consumer, anothersThings))
	}
	run(t, attacks...)
}

// The same with what is of another protection domain of his own: membership is
// checked in every call (R31; RFC 5042 section 2.2.4).
func TestObjectsOfAnotherProtectionDomain(t *testing.T) {
	var attacks []attack
	for _, x := range thefts() {
		if x.domain != checks.None || x.consumer == checks.None {
			attacks = append(attacks, stolen(x, "another protection domain", x.domain, thingsOfAnotherDomain))
		}
	}
	run(t, attacks...)
}

// A window of another stream is not even its protection domain's to invalidate (R9,
// R31).
func TestWindowOfAnotherStreamIsInvalidatedLocally(t *testing.T) {
	run(t, attack{"posted invalidation", checks.StreamOfSTag, func(v *target) bool {
		theirs := v.things(v.pd, "alice")
		mine := v.things(v.pd, "mallory")
		succeeded, _ := invalidate(func(theirs *things) uint32 { return theirs.mw.STag() })(mine, theirs)
		return succeeded
	}})
}
