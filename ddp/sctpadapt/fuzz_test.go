package sctpadapt_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// FuzzControl: what can be read as a control message comes back byte for byte.
func FuzzControl(f *testing.F) {
	f.Add(control(0, sctpadapt.FunctionInitiate, "hello"))
	f.Add(control(7, sctpadapt.FunctionTerminate, ""))
	f.Add(control(0, sctpadapt.FunctionEnhancedAccept, "\xc0\x08\xc0\x04private"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := sctpadapt.ParseControl(b)
		if err != nil {
			return
		}
		if got, err := c.Append(nil); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("%x comes back as %x, %v", b, got, err)
		}
	})
}

// FuzzMux: a peer that sends anything, on open sessions and others, while the
// user accepts, rejects, sends and closes: nothing of the receive window is lost,
// what is sent has the numbers of RFC 5043 section 5.2.1, and the association is
// left alone.
func FuzzMux(f *testing.F) {
	f.Add([]byte{0, 4, 0, 0, 0, 1, 0, 1, 2, 0, 2, 3})
	f.Add([]byte("\x00\x06\x11\x00\x00\x00\x01\x20\x01\x06\x10\x00\x01ab\x21\x22\x23\x00\x04\x11\x00\x02\x00\x04"))
	f.Fuzz(func(t *testing.T, script []byte) {
		fk := newFake(t, sctpadapt.Config{MaxPending: 2}, false)
		streams := map[uint16]*sctpadapt.Stream{1: fk.accept(1)}
		over := make(map[uint16]chan error)
		var requests []*sctpadapt.Request
		for len(script) >= 3 {
			op, id, n := script[0], uint16(script[1]%9), int(script[2]%40)
			script = script[3:]
			switch {
			case op < 200: // a chunk
				n = min(n, len(script))
				m := assoc.Message{Stream: id, PPID: 16, Flags: assoc.Begin | assoc.End | assoc.Unordered, Payload: bytes.Clone(script[:n])}
				script = script[n:]
				switch op % 8 {
				case 0, 1:
					m.PPID = 17
				case 2: // a control message that is mostly right
					m.PPID = 17
					m.Payload = append(binary.BigEndian.AppendUint32(nil, uint32(op%7)), m.Payload...)
				case 3:
					m.Flags = assoc.Flags(op >> 3)
				case 4:
					m.PPID = uint32(op)
				}
				fk.chunk(&m)
			case op < 210 && fk.mux.Streams() > len(streams):
				if len(requests) == 0 {
					if r := fk.mux.AcceptNow(); r != nil {
						requests = append(requests, r)
					}
				}
			case op < 220 && len(requests) > 0:
				r := requests[0]
				requests = requests[1:]
				switch n % 3 {
				case 0:
					r.Reject([]byte("no"))
				case 1:
					r.Close()
				default:
					if s, err := r.Accept(sctpadapt.Session{}); err == nil {
						if old := streams[s.ID()]; old != nil {
							old.Close()
							if c := over[s.ID()]; c != nil {
								<-c
								delete(over, s.ID())
							}
						}
						streams[s.ID()] = s
					}
				}
			case streams[id] == nil:
			case op < 230:
				streams[id].Append([]byte("segment"), nil)
				streams[id].TryFlush()
			case op < 235:
				streams[id].CloseWrite()
			case op < 240:
				streams[id].Close()
			case over[id] == nil:
				c := make(chan error, 1)
				over[id] = c
				s := streams[id]
				go func() { c <- s.Receive(newTexts()) }()
			}
		}
		for _, s := range streams {
			s.Close()
		}
		for _, c := range over {
			<-c
		}
		for _, r := range requests {
			r.Close()
		}
		for r := fk.mux.AcceptNow(); r != nil; r = fk.mux.AcceptNow() {
			r.Close()
		}
		fk.mu.Lock()
		defer fk.mu.Unlock()
		if fk.held != 0 || fk.kept.Load() != 0 || fk.aborted != "" {
			t.Fatalf("%d bytes are held and memory kept %d times at the end, abort %q", fk.held, fk.kept.Load(), fk.aborted)
		}
	})
}
