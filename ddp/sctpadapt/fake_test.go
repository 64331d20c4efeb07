package sctpadapt_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// fake is an association whose peer is the test.
type fake struct {
	assoc.Association
	t       testing.TB
	mux     *sctpadapt.Mux
	mu      sync.Mutex
	more    sync.Cond
	sent    []assoc.Outgoing // with one Buf each
	read    int
	streams int
	flying  int // what Outstanding says
	full    bool
	forget  bool // TrySend takes messages and keeps none
	aborted string
	held    int          // of the receive window
	kept    atomic.Int64 // memory of messages
	longest int          // message, what MaxMessage says
}

func newFake(t testing.TB, cfg sctpadapt.Config, dialled bool) *fake {
	f := &fake{t: t, streams: 8, longest: 1444}
	f.more.L = &f.mu
	f.mux = sctpadapt.New(f, cfg, dialled)
	f.mux.Event(assoc.Event{Kind: assoc.EventUp})
	return f
}

func (f *fake) TrySend(ms []assoc.Outgoing) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return 0, nil
	}
	if f.forget {
		return len(ms), nil
	}
	for i, m := range ms {
		m.Bufs = [][]byte{bytes.Join(m.Bufs, nil)}
		if len(m.Bufs[0]) > f.longest {
			return i, assoc.ErrTooLong
		}
		f.sent = append(f.sent, m)
	}
	f.more.Broadcast()
	return len(ms), nil
}

func (f *fake) SendNow(m assoc.Outgoing) error {
	_, err := f.TrySend([]assoc.Outgoing{m})
	return err
}

func (f *fake) Wait(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (f *fake) MaxMessage() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.longest
}
func (f *fake) Streams() (int, int) { return f.streams, f.streams }
func (f *fake) Err() error          { return nil }

func (f *fake) Release(n int) {
	f.mu.Lock()
	f.held -= n
	f.mu.Unlock()
}

func (f *fake) Outstanding(uint16) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flying
}

func (f *fake) Outq() (int, error) { return f.Outstanding(0), nil }

func (f *fake) Abort(reason string) {
	f.mu.Lock()
	f.aborted = reason
	f.mu.Unlock()
}

// say is a chunk of the peer.
func (f *fake) say(stream uint16, ppid uint32, payload []byte) {
	f.chunk(&assoc.Message{Stream: stream, PPID: ppid, Flags: assoc.Begin | assoc.End | assoc.Unordered, Payload: payload})
}

// lentMemory is memory of the fake that one message lies in. Once nobody keeps it there is
// something else in it.
type lentMemory struct {
	kept    *atomic.Int64
	payload []byte
}

func (l *lentMemory) Keep() { l.kept.Add(1) }
func (l *lentMemory) Release() {
	l.kept.Add(-1)
	clear(l.payload)
}

func (f *fake) chunk(m *assoc.Message) {
	n := len(m.Payload)
	m.Memory = &lentMemory{&f.kept, m.Payload}
	if f.mux.Message(m) {
		f.mu.Lock()
		f.held += n
		f.mu.Unlock()
	}
	f.mux.BatchEnd()
}

func (f *fake) control(stream, ssn uint16, fn sctpadapt.Function, private string) {
	f.say(stream, sctpadapt.PPIDControl, control(ssn, fn, private))
}

func control(ssn uint16, fn sctpadapt.Function, private string) []byte {
	b := binary.BigEndian.AppendUint16(nil, ssn)
	b = binary.BigEndian.AppendUint16(b, uint16(fn))
	return append(b, private...)
}

func (f *fake) segment(stream, ssn uint16, text string) {
	f.say(stream, sctpadapt.PPIDSegment, append(binary.BigEndian.AppendUint16(nil, ssn), text...))
}

// next is what was sent next.
func (f *fake) next() assoc.Outgoing {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.read == len(f.sent) {
		f.more.Wait()
	}
	f.read++
	return f.sent[f.read-1]
}

// none checks that nothing more was sent.
func (f *fake) none() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read != len(f.sent) {
		f.t.Errorf("something was sent: %+v", f.sent[f.read:])
	}
}

// want checks the next control message.
func (f *fake) want(stream, ssn uint16, fn sctpadapt.Function, private string) {
	f.t.Helper()
	if m := f.next(); m.Stream != stream || m.PPID != sctpadapt.PPIDControl || !bytes.Equal(m.Bufs[0], control(ssn, fn, private)) {
		f.t.Errorf("stream %d, protocol %d: %x; want stream %d: %v %d %q", m.Stream, m.PPID, m.Bufs[0], stream, fn, ssn, private)
	}
}

// open starts a session as the active side, whose peer is the test.
func (f *fake) open() *sctpadapt.Stream {
	f.t.Helper()
	got := make(chan *sctpadapt.Stream)
	go func() {
		s, err := f.mux.Initiate(patient(f.t), plain)
		if err != nil {
			f.t.Error(err)
		}
		got <- s
	}()
	m := f.next()
	if c, err := sctpadapt.ParseControl(m.Bufs[0]); err != nil || c.SSN != 0 || c.Function != sctpadapt.FunctionInitiate {
		f.t.Fatalf("%+v, %v", c, err)
	}
	f.control(m.Stream, 0, sctpadapt.FunctionAccept, "")
	return <-got
}

// accept starts a session as the passive side.
func (f *fake) accept(stream uint16) *sctpadapt.Stream {
	f.t.Helper()
	f.control(stream, 0, sctpadapt.FunctionInitiate, "")
	r, err := f.mux.Accept(patient(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	s, err := r.Accept(sctpadapt.Session{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.want(stream, 0, sctpadapt.FunctionAccept, "")
	return s
}

// texts is a Sink that keeps segments.
type texts struct {
	mu    sync.Mutex
	more  sync.Cond
	got   []string
	stall chan struct{} // Segment waits for it
}

func newTexts() *texts {
	s := &texts{}
	s.more.L = &s.mu
	return s
}

func (s *texts) Segment(seg []byte) error {
	if s.stall != nil {
		<-s.stall
	}
	s.mu.Lock()
	s.got = append(s.got, string(seg))
	s.more.Broadcast()
	s.mu.Unlock()
	return nil
}

func (s *texts) wait(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.got) < n {
		s.more.Wait()
	}
	return slices.Clone(s.got)
}

func (*texts) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (*texts) DirectBuffer() ([]byte, error)         { return nil, io.ErrShortBuffer }
func (*texts) DirectDone(int) error                  { return nil }
func (*texts) BatchEnd()                             {}

var plain = sctpadapt.Session{Plain: true}
