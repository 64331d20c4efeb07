package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// runAndJoin runs f and waits until its goroutines are gone.
func runAndJoin(t *testing.T, f func()) {
	before := runtime.NumGoroutine()
	f()
	for limit := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(limit) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// steps of the seeds; see fuzzTarget.step. Each has all the bytes that it takes.
var (
	seedRecv      = []byte{9, 16}
	seedSend      = []byte{0, 4 << 2, 1, 2, 3, 4}
	seedPostSend  = []byte{10, 0, byte(Signaled), 3}
	seedPostRead  = []byte{10, 2, byte(Signaled), 8}
	seedAnswer    = []byte{5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	seedPostAdd   = []byte{10, 4, byte(Signaled), 0}
	seedAnswerAdd = []byte{6, 0}
	seedWrite     = []byte{2, 0, 3, 5, 1, 2, 3, 4, 5}
	seedRead      = []byte{3, 0, 0, 0, 20}
	seedAdd       = []byte{4, 0, 0, 8, 1}
	seedInv       = []byte{0, 1 | 4<<2, 0, 9, 9, 9, 9}
	seedTerm      = []byte{7, 1, 1, 1, 0}
	seedStall     = []byte{0x1c}
	seedFree      = []byte{0x0c}
	seedClose     = []byte{0x0d}
	seedAbort     = []byte{0x1d}
	seedYield     = []byte{0xfe}
	seedHalf      = []byte{0x20, 4 << 2, 1, 2, 3, 4}
	seedBind      = []byte{10, 6, byte(Signaled), 0xff}
	seedRegister  = []byte{10, 7, byte(Signaled), 0xff}
	seedLocalInv  = []byte{10, 8, byte(Signaled), 0}
	seedWriteMW   = []byte{2, 0x80, 3, 5, 1, 2, 3, 4, 5}
	seedRereg     = []byte{0x1b}
)

// addScripts seeds f. pad is what a line draws for a segment that goes as it
// should; head are the bytes before the steps.
func addScripts(f *testing.F, pad []byte, heads ...[]byte) {
	for _, steps := range [][][]byte{
		{seedRecv, seedSend, seedRecv, seedHalf, seedSend},
		{seedPostRead, seedYield, seedAnswer, seedPostAdd, seedYield, seedAnswerAdd, seedPostSend},
		{seedWrite, seedRead, seedAdd, seedYield, seedWrite, seedRereg, seedWrite},
		{seedRecv, seedInv, seedWrite},
		{seedBind, seedWriteMW, seedLocalInv, seedRegister, seedWrite, seedBind, seedWriteMW, seedBind},
		{seedStall, seedRead, seedRead, seedRead, seedFree},
		{seedPostSend, seedPostRead, seedTerm},
		{seedRecv, seedPostSend, seedPostRead, seedClose, seedSend},
		{seedRecv, seedPostRead, seedHalf, seedAbort},
		{seedSend},
	} {
		for _, head := range heads {
			in := append([]byte(nil), head...)
			for _, step := range steps {
				in = append(in, step...)
				if step[0]&15 < 9 {
					in = append(in, pad...)
				}
			}
			f.Add(in)
		}
	}
}

// FuzzScript attacks by segments that come between posts, revocations, stalls
// and closes of the stream's consumer.
func FuzzScript(f *testing.F) {
	addScripts(f, nil, []byte{0}, []byte{1}, []byte{4})
	addScripts(f, []byte{0}, []byte{2})
	addScripts(f, []byte{0x80}, []byte{2}, []byte{6})
	f.Fuzz(func(t *testing.T, in []byte) {
		runAndJoin(t, func() { fuzzScript(t, &script{in}) })
	})
}

func fuzzScript(t *testing.T, s *script) {
	mode := s.byte()
	o := iwarptest.Options{Direct: mode&1 != 0, MULPDU: 64}
	if mode&2 != 0 {
		o.Window = 3
	}
	p, err := newFuzzTarget(mode&4 != 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, llp := iwarptest.Pair(o)
	p.line = newMemLine(raw, o.Window > 0)
	ready := rdmap.Ready(0)
	if mode&8 != 0 {
		ready = rdmap.Ready(mode >> 4 & 3)
	}
	if p.qp, err = p.pds[0].Adopt(AdoptConfig{QP: p.cfg, LLP: llp, Conn: fakeConn{"peer"}, IRD: 2, ORD: 2, Ready: ready}); err != nil {
		t.Fatal(err)
	}
	p.play(t, s)
	if err := p.free(); err != nil {
		t.Fatal(err)
	}
}

// FuzzFPDUs attacks by FPDUs after a start-up as it should be: markers or none,
// CRC or none, whole, in pieces and damaged.
func FuzzFPDUs(f *testing.F) {
	addScripts(f, []byte{0, 0}, []byte{0}, []byte{1}, []byte{2}, []byte{4}, []byte{7}, []byte{8}, []byte{16})
	addScripts(f, []byte{0xa0, 21}, []byte{0}, []byte{8})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in}
		mode := s.byte()
		runAndJoin(t, func() { fuzzMPA(t, mode, startupOf(mode), s) })
	})
}

// FuzzConnection attacks from the first byte on, as initiator and as responder.
func FuzzConnection(f *testing.F) {
	for _, mode := range []byte{0, 1, 2, 4, 8, 32, 64} {
		b := startupOf(mode)
		head := append([]byte{mode, byte(len(b) >> 8), byte(len(b))}, b...)
		addScripts(f, []byte{0, 0}, head)
		addScripts(f, []byte{0xa0, 16}, head)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in}
		mode := s.byte()
		n := int(binary.BigEndian.Uint16(s.bytes(2))) % 1024
		first := s.bytes(min(n, len(s.in)))
		runAndJoin(t, func() { fuzzMPA(t, mode, first, s) })
	})
}

// startupOf is the peer's start-up frame of mode:
//
//	1: the target is the initiator    2: the target wants markers
//	4: the peer wants markers       8: no CRC
//	16: a shared receive queue      32: peer-to-peer mode     64: revision 1
func startupOf(mode byte) []byte {
	fr := mpa.Frame{Reply: mode&1 != 0, Markers: mode&4 != 0, CRC: mode&8 == 0, Revision: 2, PrivateData: []byte("target")}
	if mode&64 != 0 {
		fr.Revision = 1
	} else {
		fr.Enhanced = &enhanced.Data{IRD: 2, ORD: 2, PeerToPeer: mode&32 != 0}
		if mode&32 != 0 {
			fr.Enhanced.RTR = enhanced.RTRWrite | enhanced.RTRRead
		}
	}
	b, err := fr.Append(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func fuzzMPA(t *testing.T, mode byte, first []byte, s *script) {
	near, far, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	line := newFPDULine(far)
	defer line.close()
	far.Write(first)
	m, err := startTarget(mode, near, first)
	if err != nil {
		var fault *ddp.Error
		var rejected *mpa.RejectedError
		var failed *mpa.NegotiationError
		var timeout net.Error
		switch {
		case errors.As(err, &failed):
			rdmap.Refuse(failed.Conn, failed.Err)
		case errors.As(err, &fault), errors.As(err, &rejected), errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		default:
			t.Fatalf("start-up failed with an error of type %T: %v", err, err)
		}
		return
	}
	p, err := newFuzzTarget(mode&16 != 0)
	if err != nil {
		t.Fatal(err)
	}
	p.abuse = m.MarkersSend() // what it says is not taken apart
	p.line = line
	line.markers, line.theirs = m.MarkersRecv(), m.MarkersSend()
	a := AdoptMPA(p.cfg, m, fakeConn{"peer"}, mode&1 != 0)
	a.IRD, a.ORD = min(a.IRD, 2), min(a.ORD, 2)
	if p.qp, err = p.pds[0].Adopt(a); err != nil {
		t.Fatal(err)
	}
	p.play(t, s)
	if err := p.free(); err != nil {
		t.Fatal(err)
	}
}

// startTarget carries out the target's part of the start-up. The peer's frame is
// there; if it is cut short, no more will come.
func startTarget(mode byte, conn net.Conn, first []byte) (*mpa.Conn, error) {
	cfg := &mpa.Config{IRD: 2, ORD: 2, Markers: mode&2 != 0, StartupTimeout: 50 * time.Millisecond, HoldTimeout: 100 * time.Millisecond, EMSS: func() int { return 300 }}
	if mode&8 != 0 {
		cfg.CRC = mpa.CRCAvoid
	}
	if mode&32 != 0 {
		cfg.PeerToPeer = enhanced.RTRWrite | enhanced.RTRRead
	}
	if mode&64 != 0 {
		cfg.Revision = 1
	}
	ctx := context.Background()
	if mode&1 != 0 {
		return mpa.Client(ctx, conn, cfg)
	}
	req, err := mpa.Server(ctx, conn, cfg)
	if err != nil {
		return nil, err
	}
	return req.Accept(ctx, mpa.AcceptOptions{IRD: cfg.IRD, ORD: cfg.ORD})
}
