package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream is both ends of a stream, on two devices; the dialler's is captured.
type stream struct {
	t           *testing.T
	ctx         context.Context
	dev         *verbs.Device // the dialler's
	caps        *Captures
	to          netip.AddrPort
	setup       verbs.Setup
	carrier     *transport.Config
	pd          *verbs.PD
	mem, shared *verbs.MR
	here, there *verbs.QP
	hcq, scq    *verbs.CQ
	stag        uint32
}

const (
	bufferLen = 64 << 10
	canary    = "xKqVwZjH"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newStream has a stream up; begun, if not nil, is called before it is dialled.
func newStream(t *testing.T, host string, kind transport.Kind, setup verbs.Setup, begun func(*Captures)) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	s := &stream{t: t, ctx: ctx, setup: setup, carrier: &transport.Config{Protector: transport.LoopbackOnly(), Kind: kind, UDPPort: iwarptest.FreeUDPPort(t)}}
	open := func() (*verbs.Device, *verbs.ULP) {
		dev := must(verbs.Open(verbs.Config{}))
		t.Cleanup(func() { dev.Close() })
		return dev, must(dev.NewULP("test", verbs.ULPConfig{}))
	}
	server, sulp := open()
	ln := must(server.Listen(ctx, netip.AddrPortFrom(netip.MustParseAddr(host), 0), verbs.ListenConfig{Transport: s.carrier, Setup: setup}))
	spd := must(sulp.AllocPD())
	s.scq = must(sulp.CreateCQ(256, nil))
	s.shared = must(spd.RegisterMR(make([]byte, bufferLen), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead))
	inbox := must(spd.RegisterMR(make([]byte, bufferLen), verbs.LocalWrite))
	accepted := make(chan *verbs.QP, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err != nil {
			return
		}
		accepted <- must(req.Accept(ctx, spd, verbs.AcceptConfig{
			QP:          verbs.QPConfig{SendCQ: s.scq, RecvCQ: s.scq, MaxSend: 8, MaxRecv: 64, IRD: 4},
			PrivateData: binary.BigEndian.AppendUint32(nil, s.shared.STag()),
			Prepare: func(qp *verbs.QP) error {
				for range 64 {
					if err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: inbox, Len: bufferLen}}}); err != nil {
						return err
					}
				}
				return nil
			},
		}))
	}()
	var ulp *verbs.ULP
	s.dev, ulp = open()
	s.caps = New(s.dev.Tap())
	s.pd, s.hcq = must(ulp.AllocPD()), must(ulp.CreateCQ(256, nil))
	s.mem = must(s.pd.RegisterMR(bytes.Repeat([]byte(canary), bufferLen/len(canary)), verbs.LocalWrite))
	s.to = ln.Addr()
	if begun != nil {
		begun(s.caps)
	}
	s.here = must(s.pd.Dial(ctx, verbs.DialConfig{Remote: s.to, Transport: s.carrier, Setup: setup, PrivateData: []byte("private to MPA"),
		QP: verbs.QPConfig{SendCQ: s.hcq, RecvCQ: s.hcq, MaxSend: 64, MaxRecv: 8, ORD: 4}}))
	s.there = <-accepted
	s.stag = binary.BigEndian.Uint32(s.here.PrivateData())
	return s
}

// talk writes n bytes to the peer, reads them back, and sends a message and Immediate Data.
func (s *stream) talk(n int) {
	s.t.Helper()
	for _, wr := range []verbs.SendWR{
		{Op: verbs.OpWrite, SGL: []verbs.SGE{{MR: s.mem, Len: uint32(n)}}, RemoteSTag: s.stag},
		{Op: verbs.OpRead, SGL: []verbs.SGE{{MR: s.mem, Len: uint32(n)}}, RemoteSTag: s.stag},
		{Op: verbs.OpSend, SGL: []verbs.SGE{{MR: s.mem, Len: 100}}, Flags: verbs.Fence},
		{Op: verbs.OpImmediate, Imm: 0x1234, Flags: verbs.Signaled},
	} {
		if err := s.here.PostSend(&wr); err != nil {
			s.t.Fatal(err)
		}
	}
	if wc := must(s.hcq.Next(s.ctx)); wc.Err != nil {
		s.t.Fatal(wc.Err)
	}
	for range 2 {
		if wc := must(s.scq.Next(s.ctx)); wc.Err != nil {
			s.t.Fatal(wc.Err)
		}
	}
}

// running is a capture into memory.
type running struct {
	*Capture
	file bytes.Buffer
	done chan error
}

func begin(t *testing.T, c *Captures, a About) *running {
	t.Helper()
	a.Version, a.Began = "test", time.Now()
	if a.Name == nil {
		a.Name = func(string) string { return "beta" }
	}
	x := &running{Capture: must(c.Begin(a, "", os.Getpid())), done: make(chan error, 1)}
	go func() { x.done <- x.Run(t.Context(), &x.file, func() error { return nil }) }()
	return x
}

// end ends the capture and returns its file.
func (x *running) end(t *testing.T) []byte {
	t.Helper()
	x.End()
	if err := <-x.done; err != nil {
		t.Fatal(err)
	}
	return x.file.Bytes()
}
