package nbd_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// script is a client that says its piece and does not listen.
type script struct {
	net.Conn
	said []byte
	out  int
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.said) == 0 {
		return 0, io.EOF
	}
	// Unevenly, so that messages are split everywhere.
	n := copy(p, s.said[:min(len(s.said), 1+len(s.said)*7%1000)])
	s.said = s.said[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error)      { s.out += len(p); return len(p), nil }
func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (s *script) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }

// play has the server serve the script to its end. It returns how much the
// server said.
func play(t *testing.T, said []byte) int {
	m := nbdtest.NewMemory(20_000)
	m.Geo.MaxIO = 3000
	m.Depth = 2
	srv := nbd.NewServer(nbd.Config{MaxInFlight: 4})
	if err := srv.Export("disk", m, ""); err != nil {
		t.Fatal(err)
	}
	ln := newPipeListener()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error)
	go func() { done <- srv.Serve(ctx, ln) }()
	c := &script{said: said}
	ended := make(chan struct{})
	ln.conns <- &endedConn{c, ended}
	<-ended
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	m.WaitLive(0)
	return c.out
}

// endedConn reports when the server has closed it for good.
type endedConn struct {
	*script
	ended chan struct{}
}

func (c *endedConn) Close() error {
	select {
	case <-c.ended:
	default:
		close(c.ended)
	}
	return nil
}

func optionBytes(opt uint32, data []byte) []byte {
	b := append([]byte(nil), "IHAVEOPT"...)
	b = binary.BigEndian.AppendUint32(b, opt)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func FuzzNegotiation(f *testing.F) {
	hello := []byte{0, 0, 0, 3}
	join := func(bs ...[]byte) (all []byte) {
		for _, b := range bs {
			all = append(all, b...)
		}
		return all
	}
	f.Add(join(hello, optionBytes(list, nil), optionBytes(abort, nil)))
	f.Add(join(hello, optionBytes(structuredReply, nil), optionBytes(info, nbdtest.InfoData("disk", 3)), optionBytes(goOption, nbdtest.InfoData("", 3))))
	f.Add(join(hello, optionBytes(exportName, []byte("disk")), nbdtest.AppendRequest(nil, 0, cmdRead, 1, 0, 512, nil)))
	f.Add(join(hello, optionBytes(info, make([]byte, 5000)), optionBytes(4711, []byte("x"))))
	f.Add(join(hello, optionBytes(startTLS, nil), optionBytes(structuredReply, nil), optionBytes(listMeta, nbdtest.MetaData("disk")),
		optionBytes(setMeta, nbdtest.MetaData("disk", "base:allocation", "qemu:x")), optionBytes(goOption, nbdtest.InfoData("disk")),
		nbdtest.AppendRequest(nil, reqOne, cmdStatus, 1, 0, 1024, nil)))
	f.Add(join(hello, optionBytes(extendedHeaders, nil), optionBytes(structuredReply, nil), optionBytes(setMeta, nbdtest.MetaData("", "base:allocation")),
		optionBytes(goOption, nbdtest.InfoData("")), nbdtest.AppendExtended(nil, 0, cmdStatus, 1, 0, 20_000, nil)))
	f.Add([]byte{0xff, 0, 0, 0})
	f.Fuzz(func(t *testing.T, said []byte) {
		if out := play(t, said); out < 18 {
			t.Errorf("the server said only %d bytes", out)
		}
	})
}

func FuzzTransmission(f *testing.F) {
	reqs := func(all ...[]byte) (b []byte) {
		for _, r := range all {
			b = append(b, r...)
		}
		return b
	}
	w := nbdtest.AppendRequest(nil, fua, cmdWrite, 1, 512, 5000, make([]byte, 5000))
	// What the client has negotiated.
	const simple, structured, status, extended = 0, 1, 2, 3
	f.Add(reqs(w, nbdtest.AppendRequest(nil, 0, cmdRead, 2, 0, 19_999, nil), nbdtest.AppendRequest(nil, 0, cmdDisc, 3, 0, 0, nil)), uint8(structured))
	f.Add(reqs(nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 0, 7000, make([]byte, 7000)), w, w[:100]), uint8(simple))
	f.Add(reqs(nbdtest.AppendRequest(nil, 0, cmdFlush, 1, 0, 0, nil), nbdtest.AppendRequest(nil, noHole, cmdWriteZeroes, 1, 0, 20_000, nil), nbdtest.AppendRequest(nil, 0, 99, 1, 0, 1, nil)), uint8(structured))
	f.Add(reqs(nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 1<<63, 1<<32-1, w)), uint8(structured))
	f.Add(reqs(w, nbdtest.AppendRequest(nil, 0, cmdStatus, 1, 0, 20_000, nil), nbdtest.AppendRequest(nil, reqOne, cmdStatus, 2, 512, 7000, nil), nbdtest.AppendRequest(nil, 0, cmdCache, 1, 0, 512, nil)), uint8(status))
	f.Add(reqs(nbdtest.AppendExtended(nil, payloadLen, cmdWrite, 1, 512, 5000, make([]byte, 5000)), nbdtest.AppendExtended(nil, 0, cmdRead, 2, 0, 19_999, nil),
		nbdtest.AppendExtended(nil, 0, cmdStatus, 3, 0, 20_000, nil), nbdtest.AppendExtended(nil, payloadLen, cmdTrim, 4, 0, 8, make([]byte, 8)),
		nbdtest.AppendExtended(nil, fua, cmdWriteZeroes, 5, 1<<63, 1<<63, nil), nbdtest.AppendExtended(nil, payloadLen, cmdStatus, 6, 0, 1<<40, nil)), uint8(extended))
	f.Fuzz(func(t *testing.T, said []byte, negotiated uint8) {
		b := []byte{0, 0, 0, 3}
		switch negotiated % 4 {
		case structured, status:
			b = append(b, optionBytes(structuredReply, nil)...)
		case extended:
			b = append(b, optionBytes(extendedHeaders, nil)...)
		}
		if negotiated%4 >= status {
			b = append(b, optionBytes(setMeta, nbdtest.MetaData("disk", "base:allocation"))...)
		}
		b = append(b, optionBytes(goOption, nbdtest.InfoData("disk"))...)
		play(t, append(b, said...))
	})
}
