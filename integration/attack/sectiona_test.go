package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rping"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

// The services of appendix A are attacked over TCP, with messages made by hand.

var le = binary.LittleEndian

// Immediates of RTRS.
const (
	immRsp   = 1 << 28
	immHB    = 8 << 28
	immHBAck = 9 << 28
)

func isImm(v uint64) func(iwarptest.Segment) bool {
	return func(s iwarptest.Segment) bool {
		return !s.Tagged && s.Op == rdmap.OpImmediate && binary.BigEndian.Uint64(s.Payload)>>28&0xf == v>>28
	}
}

// placed waits until the target, which speaks RTRS, has dealt with all that it was
// sent: it answers a heartbeat, or the stream is over. It reports whether the stream
// goes on.
func (w *wire) placed() bool {
	w.t.Helper()
	w.imm(immHB)
	_, more := w.hear(isImm(immHBAck))
	return more
}

// rtrsClient is a client of RTRS that is hostile.
type rtrsClient struct {
	*wire
	stag uint32 // of chunk 0
	bits int    // of an offset in an immediate
	seq  uint32 // of the last request
}

// openRTRS opens a session of one connection.
func openRTRS(v *target, to netip.AddrPort) *rtrsClient {
	v.Helper()
	req := rtrs.ConReq{Version: rtrs.Version, CIDNum: 1, Incarnation: 1, First: true}
	c := &rtrsClient{wire: must(call(v.T, to, req.Append(nil)))(v.T), bits: 20}
	name := make([]byte, 272) // INFO_REQ
	copy(name[2:], "mallory")
	c.send(rdmap.OpSend, name)
	s, ok := c.hear(isSend)
	if !ok || len(s.Payload) < 40 || le.Uint16(s.Payload[4:]) != 0 {
		v.Fatalf("no session: %x", s.Payload)
	}
	c.stag = le.Uint32(s.Payload[32:])
	return c
}

// request writes a request into chunk 0 and announces it. A read of n bytes has a
// target, and no data.
func (c *rtrsClient) request(target uint32, n int, data, header []byte) {
	msg := le.AppendUint16(nil, 2)
	if target != 0 {
		msg[0] = 3
	}
	msg = le.AppendUint16(msg, uint16(len(header)))
	if target != 0 {
		msg = append(msg, 0, 0, 1, 0)
		msg = le.AppendUint64(msg, 0)
		msg = le.AppendUint32(msg, target)
		msg = le.AppendUint32(msg, uint32(n))
	}
	c.seq++
	msg = le.AppendUint32(msg, c.seq)
	c.write(c.stag, uint64(n-len(data)), append(append(bytes.Clone(data), header...), msg...))
	c.imm(uint64(n + len(header)))
}

// rtrsHandler holds requests up.
type rtrsHandler struct{ got chan *rtrs.Request }

func (h *rtrsHandler) Serve(r *rtrs.Request)   { h.got <- r }
func (h *rtrsHandler) BatchEnd()               {}
func (h *rtrsHandler) Closed(time.Time, error) {}

func (v *target) serveRTRS(newSession func(rtrs.SessionInfo) (rtrs.ServerHandler, error)) netip.AddrPort {
	v.Helper()
	srv := must(rtrs.NewServer(rtrs.ServerConfig{ULP: v.ulp, NewSession: newSession}))(v.T)
	v.Cleanup(func() { srv.Close() })
	return v.serve(srv.Handle)
}

// A peer that changes its request after it has announced it: the service acts on what
// was announced (R13, section 6.2.2 and appendix A).
func TestRequestThatChangesAfterItsAnnouncement(t *testing.T) {
	run(t,
		attack{"RTRS", checks.RevokeFirst, func(v *target) bool {
			h := &rtrsHandler{make(chan *rtrs.Request, 1)}
			c := openRTRS(v, v.serveRTRS(func(rtrs.SessionInfo) (rtrs.ServerHandler, error) { return h, nil }))
			c.request(0, 5, []byte("first"), []byte("header"))
			r := <-h.got
			c.write(c.stag, 0, []byte("other"))
			if !c.placed() {
				c.wantTerminated(ddpTagged(ddp.CodeTaggedInvalidSTag))
			}
			defer r.Complete(0)
			return string(r.Data) == "other"
		}},
		attack{"RTRS, the header", checks.RevokeFirst, func(v *target) bool {
			h := &rtrsHandler{make(chan *rtrs.Request, 1)}
			c := openRTRS(v, v.serveRTRS(func(rtrs.SessionInfo) (rtrs.ServerHandler, error) { return h, nil }))
			c.request(0, 0, nil, []byte("read"))
			r := <-h.got
			c.write(c.stag, 0, []byte("burn"))
			if !c.placed() {
				c.wantTerminated(ddpTagged(ddp.CodeTaggedInvalidSTag))
			}
			defer r.Complete(0)
			return string(r.Header) == "burn"
		}},
		attack{"RNBD, a write at the storage", checks.RevokeFirst, func(v *target) bool {
			st := &storage{got: make(chan []byte), goOn: make(chan struct{})}
			srv := rnbd.NewServer(rnbd.ServerConfig{})
			v.Cleanup(func() { srv.Close() })
			if err := srv.AddExport(rnbd.Export{Name: "disk", Storage: st, AllowAll: true}); err != nil {
				v.Fatal(err)
			}
			c := openRTRS(v, v.serveRTRS(srv.NewSession))
			open := make([]byte, 312)
			open[0], open[4] = 2, 1
			copy(open[6:], "disk")
			le.PutUint16(open[261:], 1)
			c.request(77, 208, nil, open)
			if s, ok := c.hear(isWrite); !ok || s.STag != 77 {
				v.Fatal("the export does not open")
			}
			s, _ := c.hear(isImm(immRsp))
			if rsp := binary.BigEndian.Uint64(s.Payload); rsp&(1<<28-1)>>19 != 0 {
				v.Fatalf("the export does not open: %#x", rsp)
			} else {
				c.stag = uint32(rsp >> 32)
			}
			io := make([]byte, 32)
			io[0] = 4
			le.PutUint32(io[4:], 1)
			le.PutUint32(io[16:], 1) // write
			le.PutUint32(io[20:], 512)
			c.request(0, 512, bytes.Repeat([]byte{1}, 512), io)
			data := <-st.got
			c.write(c.stag, 0, bytes.Repeat([]byte{2}, 512))
			if !c.placed() {
				c.wantTerminated(ddpTagged(ddp.CodeTaggedInvalidSTag))
			}
			defer close(st.goOn)
			return data[0] == 2
		}},
	)
}

// storage holds writes up.
type storage struct {
	got  chan []byte
	goOn chan struct{}
}

func (*storage) Geometry() block.Geometry { return block.Geometry{Size: 1 << 16, PreferredBlock: 512} }
func (*storage) Keeps(block.ID) bool      { return false }
func (*storage) Fault() string            { return "" }
func (*storage) Identity() block.Identity {
	return block.Identity{Disk: block.ID{1}, Life: block.ID{2}}
}
func (s *storage) NewQueue(func()) block.Queue { return s }
func (*storage) Close() error                  { return nil }

func (s *storage) Do(_ block.Op, buf []byte, _, _ int64, _ block.Flags, done block.Completion) bool {
	go func() {
		s.got <- buf
		<-s.goOn
		done.Complete(0)
	}()
	return false
}

// rtrsServer is a server of RTRS that is hostile, with the target as its client.
type rtrsServer struct {
	*wire
	cl *rtrs.Client
}

func lureRTRS(v *target) *rtrsServer {
	v.Helper()
	const chunks = 3
	addr, wires := lure(v.T, func([]byte) []byte {
		rsp := rtrs.ConRsp{Version: rtrs.Version, QueueDepth: chunks, MaxIO: 4096, MaxHeader: 4096, Flags: 2}
		return rsp.Append(nil)
	})
	s := make(chan *wire, 1)
	go func() {
		w := <-wires
		w.hear(isSend)
		rsp := append([]byte{1, 0, chunks, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{7}, 16)...)
		for i := range chunks {
			rsp = le.AppendUint64(rsp, 0)
			rsp = le.AppendUint32(rsp, uint32(100+i))
			rsp = le.AppendUint32(rsp, 8192)
		}
		w.send(rdmap.OpSend, rsp)
		s <- w
	}()
	cl := must(rtrs.Connect(v.Context(), rtrs.ClientConfig{ULP: v.ulp, Name: "target", Conns: 1,
		Paths: []rtrs.PathConfig{{Remote: addr, Transport: loopbackOnly()}}}))(v.T)
	w := <-s
	v.Cleanup(func() {
		w.close()
		cl.Close()
	})
	return &rtrsServer{w, cl}
}

// ended reports the end of an I/O.
type ended chan syscall.Errno

func (e ended) Complete(_ *rtrs.Permit, errno syscall.Errno) { e <- errno }

// ask has the target read n bytes, and returns the STag by which they are awaited.
func (s *rtrsServer) ask(v *target, n int) (*rtrs.Permit, ended, uint32) {
	v.Helper()
	p := must(s.cl.Get(v.Context()))(v.T)
	done := make(ended, 1)
	p.Submit(rtrs.Read, nil, n, done)
	seg, ok := s.hear(isWrite)
	if !ok || len(seg.Payload) != 28 {
		v.Fatalf("no read: %x", seg.Payload)
	}
	return p, done, le.Uint32(seg.Payload[16:])
}

func (s *rtrsServer) answer(p *rtrs.Permit) { s.imm(100<<32 | immRsp | uint64(p.ID())) }

// A server that changes what it has answered, while the reader looks at it (R13).
func TestAnswerThatChangesAfterwards(t *testing.T) {
	run(t,
		attack{"RTRS", checks.RevokeFirst, func(v *target) bool {
			s := lureRTRS(v)
			p, done, stag := s.ask(v, 5)
			s.write(stag, 0, []byte("first"))
			s.answer(p)
			if errno := <-done; errno != 0 || string(p.Buffer()[:5]) != "first" {
				v.Fatalf("%v: %q", errno, p.Buffer()[:5])
			}
			s.write(stag, 0, []byte("other"))
			if !s.placed() {
				s.wantTerminated(ddpTagged(ddp.CodeTaggedInvalidSTag))
			}
			got := string(p.Buffer()[:5])
			s.cl.Put(p)
			return got == "other"
		}},
		attack{"rping", checks.RevokeFirst, func(v *target) bool {
			looking, look := make(chan []byte), make(chan struct{})
			w, _ := lurePing(v, func(b []byte) { looking <- b; <-look })
			w.hearInfo(v)
			w.send(rdmap.OpSend, make([]byte, 16))
			sink := w.hearInfo(v)
			w.write(sink, 0, []byte("first\x00"))
			w.send(rdmap.OpSend, make([]byte, 16))
			text := <-looking
			defer close(look)
			if string(text) != "first" {
				v.Fatalf("%q", text)
			}
			w.write(sink, 0, []byte("other\x00"))
			// A Read shows whether that was placed. It is of no bytes, so that it needs no STag.
			w.read(0, 0, 0)
			if _, ok := w.hear(isResponse); !ok {
				w.wantTerminated(ddpTagged(ddp.CodeTaggedInvalidSTag))
			}
			return string(text) == "other"
		}},
	)
}

// servePing runs the ping service, of which pingRequest asks for a stream.
func servePing(v *target) netip.AddrPort {
	v.Helper()
	srv := probe.NewServer(v.ulp, slog.New(slog.DiscardHandler))
	v.Cleanup(func() { srv.Close() })
	return v.serve(srv.Handle)
}

var pingRequest = append([]byte(probe.Magic), 1, 0, 0, 0)

// region is the STag that the ping service has offered.
func (w *wire) region() uint32 { return binary.BigEndian.Uint32(w.mpa.PrivateData()[12:]) }

// Memory that is a buffer for one peer and later for another (R14, section 6.3.2).
func TestMemoryOfTheClientBefore(t *testing.T) {
	run(t, attack{"ping service", checks.Zeroed, func(v *target) bool {
		to := servePing(v)
		var all []*wire
		for range probe.MaxClientsPeer {
			all = append(all, must(call(v.T, to, pingRequest))(v.T))
		}
		first := all[0]
		// All of the region, since what is left of any byte would be of use.
		const piece = 1 << 15
		for to := uint64(0); to < probe.RegionSize; to += piece {
			first.write(first.region(), to, bytes.Repeat([]byte("secret: "), piece/8))
		}
		first.read(first.region(), probe.RegionSize-8, 8)
		if s, ok := first.hear(isResponse); !ok || string(s.Payload) != "secret: " {
			v.Fatalf("the region does not keep what is written: %q", s.Payload)
		}
		first.close()
		// There are as many clients as may be, so the next one comes after the first has
		// gone, and gets its memory.
		ctx, cancel := context.WithTimeout(v.Context(), patience)
		defer cancel()
		next, err := call(v.T, to, pingRequest)
		for err != nil && ctx.Err() == nil {
			next, err = call(v.T, to, pingRequest)
		}
		if err != nil {
			v.Fatalf("the place of the first is not given: %v", err)
		}
		next.read(next.region(), 0, probe.RegionSize)
		for got, last := 0, false; !last; {
			s, ok := next.hear(isResponse)
			if !ok {
				v.Fatalf("of the region %d bytes can be read", got)
			}
			if !bytes.Equal(s.Payload, make([]byte, len(s.Payload))) {
				return true
			}
			got, last = got+len(s.Payload), s.Last
		}
		return false
	}})
}

// lurePing has the target ping a hostile server.
func lurePing(v *target, each func([]byte)) (_ *wire, size int) {
	v.Helper()
	addr, wires := lure(v.T, func([]byte) []byte { return nil })
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		// How it ends is the attacker's choice.
		_, _ = rping.Client(ctx, v.ulp, verbs.DialConfig{Remote: addr, Transport: loopbackOnly()}, rping.Config{Count: 1, Each: each})
	}()
	v.Cleanup(func() {
		cancel()
		<-over
	})
	return <-wires, rping.DefaultSize
}

// hearInfo waits for a buffer that the target advertises.
func (w *wire) hearInfo(v *target) (stag uint32) {
	v.Helper()
	s, ok := w.hear(isSend)
	if !ok || len(s.Payload) != 16 {
		v.Fatalf("no buffer: %x", s.Payload)
	}
	return binary.BigEndian.Uint32(s.Payload[8:])
}

// A peer that reads again when it has said that it has read (R15, section 6.3.3).
func TestReadAfterTheTransfer(t *testing.T) {
	run(t, attack{"rping", checks.ReadWhileNeeded, func(v *target) bool {
		w, n := lurePing(v, nil)
		source := w.hearInfo(v)
		w.read(source, 0, uint32(n))
		if s, ok := w.hear(isResponse); !ok || !bytes.HasPrefix(s.Payload, []byte("rdma-ping-0: ")) {
			v.Fatalf("the text can't be read: %q", s.Payload)
		}
		w.send(rdmap.OpSend, make([]byte, 16))
		w.hearInfo(v)
		w.read(source, 0, uint32(n))
		s, ok := w.hear(isResponse)
		if !ok {
			w.wantTerminated(protectionError(rdmap.CodeInvalidSTag))
		}
		return ok && bytes.HasPrefix(s.Payload, []byte("rdma-ping-0: "))
	}})
}

// A peer that reaches for what stands beside the data (R16, section 6.3.4).
func TestBytesBesideTheData(t *testing.T) {
	beyond := func(to func(n int) uint64, size uint32) func(v *target) bool {
		return func(v *target) bool {
			w, n := lurePing(v, nil)
			w.read(w.hearInfo(v), to(n), size)
			_, ok := w.hear(isResponse)
			if !ok {
				w.wantTerminated(protectionError(rdmap.CodeBounds))
			}
			return ok
		}
	}
	run(t,
		attack{"rping, the byte behind", checks.ExactWindow, beyond(func(n int) uint64 { return uint64(n) }, 1)},
		attack{"rping, one byte more", checks.ExactWindow, beyond(func(n int) uint64 { return uint64(n) - 1 }, 2)},
		attack{"rping, a byte behind what comes back", checks.ExactWindow, func(v *target) bool {
			w, n := lurePing(v, nil)
			w.hearInfo(v)
			w.send(rdmap.OpSend, make([]byte, 16))
			w.write(w.hearInfo(v), uint64(n), []byte{0xee})
			w.read(0, 0, 0) // as in TestAnswerThatChangesAfterwards
			_, ok := w.hear(isResponse)
			if !ok {
				w.wantTerminated(ddpTagged(ddp.CodeTaggedBounds))
			}
			return ok
		}},
		attack{"ping service, the byte behind", checks.ExactWindow, func(v *target) bool {
			w := must(call(v.T, servePing(v), pingRequest))(v.T)
			w.read(w.region(), probe.RegionSize, 1)
			_, ok := w.hear(isResponse)
			if !ok {
				w.wantTerminated(protectionError(rdmap.CodeBounds))
			}
			return ok
		}},
		attack{"RTRS, a byte behind a read", checks.ExactWindow, func(v *target) bool {
			s := lureRTRS(v)
			p, done, stag := s.ask(v, 512)
			s.write(stag, 512, []byte{0xee})
			if s.placed() {
				s.answer(p)
				<-done
			} else {
				s.wantTerminated(ddpTagged(ddp.CodeTaggedBounds))
			}
			return p.Buffer()[512] == 0xee
		}},
	)
}
