package nbd_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// The protocol's numbers, written down a second time.
const (
	cmdRead, cmdWrite, cmdDisc, cmdFlush, cmdTrim, cmdWriteZeroes = 0, 1, 2, 3, 4, 6

	fua, noHole, dontFragment, fastZero = 1, 2, 4, 16

	ackReply, serverReply, infoReply                         = 1, 2, 3
	errUnsup, errInvalid, errUnknown, errTooBig              = 1<<31 + 1, 1<<31 + 3, 1<<31 + 6, 1<<31 + 9
	exportName, abort, list, info, goOption, structuredReply = 1, 2, 3, 6, 7, 8
)

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrClosedPipe)
}

func hello(t *testing.T, s *server) *nbdtest.Client {
	t.Helper()
	c, err := nbdtest.Hello(s.dial(), 3)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// option sends an option and returns its replies.
func option(t *testing.T, c *nbdtest.Client, opt uint32, data []byte) []nbdtest.OptionReply {
	t.Helper()
	rs, err := c.Option(opt, data)
	if err != nil {
		t.Fatalf("option %d: %v", opt, err)
	}
	return rs
}

func TestUnknownClientFlagsEndTheConnection(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	for _, flags := range []uint32{4, 1 << 31, 0xffffffff} {
		c, err := nbdtest.Hello(s.dial(), flags)
		if err != nil {
			t.Fatal(err)
		}
		wantEnd(t, c)
	}
}

func TestExportNameOption(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(5000), nbd.Config{})
	for _, c := range []struct {
		flags uint32
		n     int
	}{{0, 134}, {1, 134}, {2, 10}, {3, 10}} {
		for _, name := range []string{"disk", ""} {
			cl, err := nbdtest.Hello(s.dial(), c.flags)
			if err != nil {
				t.Fatal(err)
			}
			cl.SendOption(exportName, []byte(name))
			b := make([]byte, c.n)
			if _, err := io.ReadFull(cl, b); err != nil {
				t.Fatal(err)
			}
			if size := binary.BigEndian.Uint64(b); size != 5000 || !bytes.Equal(b[10:], make([]byte, c.n-10)) {
				t.Errorf("flags %d: size %d, % x", c.flags, size, b)
			}
			// What follows at once is a reply, not a zero too many.
			if r, err := cl.Do(0, cmdRead, 0, 16, nil); err != nil || r.Error != 0 {
				t.Errorf("flags %d: %+v, %v", c.flags, r, err)
			}
		}
	}
	c := hello(t, s)
	c.SendOption(exportName, []byte("nothing"))
	wantEnd(t, c)
	c = hello(t, s)
	c.SendOption(exportName, make([]byte, 100_000))
	wantEnd(t, c)
}

func TestListOption(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	if err := s.Export("another", nbdtest.NewMemory(512), ""); err != nil {
		t.Fatal(err)
	}
	rs := option(t, hello(t, s), list, nil)
	if len(rs) != 3 || string(rs[0].Data) != "\x00\x00\x00\x07another" || string(rs[1].Data) != "\x00\x00\x00\x04diska disk for tests" || rs[2].Type != ackReply {
		t.Errorf("%+v", rs)
	}
}

func TestInfoAndGo(t *testing.T) {
	m := nbdtest.NewMemory(8192)
	m.Geo.MinBlock, m.Geo.PreferredBlock, m.Geo.MaxIO = 512, 8192, 2<<20
	s := serve(t, m, nbd.Config{})
	c := hello(t, s)
	option(t, c, structuredReply, nil)
	for _, opt := range []uint32{info, goOption} {
		got := make(map[uint16]string)
		rs := option(t, c, opt, nbdtest.InfoData("disk", 1, 2, 3, 77))
		for _, r := range rs[:len(rs)-1] {
			if r.Type != infoReply {
				t.Fatalf("option %d: %+v", opt, r)
			}
			got[binary.BigEndian.Uint16(r.Data)] = string(r.Data[2:])
		}
		want := map[uint16]string{
			0: "\x00\x00\x00\x00\x00\x00\x20\x00\x09\xed", 1: "disk", 2: "a disk for tests",
			3: "\x00\x00\x02\x00\x00\x00\x20\x00\x00\x20\x00\x00",
		}
		if rs[len(rs)-1].Type != ackReply || len(got) != len(want) {
			t.Errorf("option %d: %v", opt, got)
		}
		for id, w := range want {
			if got[id] != w {
				t.Errorf("option %d, information %d: %q, want %q", opt, id, got[id], w)
			}
		}
	}
	if r, err := c.Do(0, cmdRead, 0, 512, nil); err != nil || !r.Structured || len(r.Data) != 512 {
		t.Errorf("in transmission: %+v, %v", r, err)
	}
}

func TestDefaultExportIsTheOnlyOne(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	rs := option(t, hello(t, s), info, nbdtest.InfoData("", 1))
	if last := rs[len(rs)-1]; last.Type != ackReply || string(rs[1].Data) != "\x00\x01disk" {
		t.Errorf("%+v", rs)
	}
	s.Export("second", nbdtest.NewMemory(512), "")
	if rs := option(t, hello(t, s), info, nbdtest.InfoData("")); rs[0].Type != errUnknown {
		t.Errorf("with two exports: %+v", rs)
	}
	s.Export("", nbdtest.NewMemory(512), "")
	if rs := option(t, hello(t, s), info, nbdtest.InfoData("")); rs[len(rs)-1].Type != ackReply {
		t.Errorf("with an export of no name: %+v", rs)
	}
}

func TestOptionsThatFailLeaveTheNegotiationAlive(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	c := hello(t, s)
	for _, o := range []struct {
		name string
		opt  uint32
		data []byte
		typ  uint32
	}{
		{"unknown option", 4711, nil, errUnsup},
		{"unknown option with data", 4711, []byte("abc"), errUnsup},
		{"TLS", 5, nil, errUnsup},
		{"meta contexts", 10, make([]byte, 100), errUnsup},
		{"list with data", list, []byte{1}, errInvalid},
		{"structured replies with data", structuredReply, []byte{1}, errInvalid},
		{"info without data", info, nil, errInvalid},
		{"info with a wrong name length", info, []byte("\x00\x00\x10\x00a\x00\x00"), errInvalid},
		{"info of an unknown export", info, nbdtest.InfoData("nothing"), errUnknown},
		{"go to an unknown export", goOption, nbdtest.InfoData("nothing"), errUnknown},
		{"too much data", info, make([]byte, 1<<20), errTooBig},
	} {
		rs := option(t, c, o.opt, o.data)
		if last := rs[len(rs)-1]; last.Type != o.typ || len(last.Data) == 0 {
			t.Errorf("%s: %+v, want %#x and words", o.name, last, o.typ)
		}
	}
	if err := c.Go("disk"); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if r, err := c.Do(0, cmdRead, 0, 512, nil); err != nil || r.Structured {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAbort(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	c := hello(t, s)
	if rs := option(t, c, abort, []byte("ignored")); rs[0].Type != ackReply {
		t.Errorf("%+v", rs)
	}
	wantEnd(t, c)
}

func TestWrongOptionMagicEndsTheConnection(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	c := hello(t, s)
	c.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	wantEnd(t, c)
}
