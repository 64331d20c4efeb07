package nbd_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// The protocol's numbers, written down a second time.
const (
	cmdRead, cmdWrite, cmdDisc, cmdFlush, cmdTrim, cmdCache, cmdWriteZeroes, cmdStatus = 0, 1, 2, 3, 4, 5, 6, 7

	fua, noHole, dontFragment, reqOne, fastZero, payloadLen = 1, 2, 4, 8, 16, 32

	ackReply, serverReply, infoReply, metaReply = 1, 2, 3, 4

	errUnsup, errPolicy, errInvalid, errUnknown, errTooBig, errExtHeaders = 1<<31 + 1, 1<<31 + 2, 1<<31 + 3, 1<<31 + 6, 1<<31 + 9, 1<<31 + 10

	exportName, abort, list, startTLS, info, goOption, structuredReply = 1, 2, 3, 5, 6, 7, 8
	listMeta, setMeta, extendedHeaders                                 = 9, 10, 11
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
func option(t testing.TB, c *nbdtest.Client, opt uint32, data []byte) []nbdtest.OptionReply {
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
			0: "\x00\x00\x00\x00\x00\x00\x20\x00\x0d\xed", 1: "disk", 2: "a disk for tests",
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
		{"TLS", startTLS, nil, errPolicy},
		{"meta contexts before structured replies", setMeta, nbdtest.MetaData("disk", "base:allocation"), errInvalid},
		{"meta contexts of an unknown export", listMeta, nbdtest.MetaData("nothing"), errUnknown},
		{"malformed meta contexts", listMeta, make([]byte, 100), errInvalid},
		{"more meta contexts than there is data", listMeta, []byte("\x00\x00\x00\x00\xff\xff\xff\xff"), errInvalid},
		{"meta contexts without end", listMeta, nbdtest.MetaData("disk", make([]string, 10_000)...), errTooBig},
		{"extended headers with data", extendedHeaders, []byte{1}, errInvalid},
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

// TestTLSIsRefusedInWords, which clients such as qemu-img show to people.
func TestTLSIsRefusedInWords(t *testing.T) {
	rs := option(t, hello(t, serve(t, nbdtest.NewMemory(512), nbd.Config{})), startTLS, nil)
	if rs[0].Type != errPolicy || !strings.Contains(string(rs[0].Data), "no TLS") || !strings.Contains(string(rs[0].Data), "IPsec") {
		t.Errorf("%#x %q", rs[0].Type, rs[0].Data)
	}
}

// TestMetaContexts: what queries select, and what is listed.
func TestMetaContexts(t *testing.T) {
	m, blind := nbdtest.NewMemory(512), nbdtest.NewMemory(512)
	blind.Geo.CanStatus = false
	s := serve(t, m, nbd.Config{})
	if err := s.Export("blind", blind, ""); err != nil {
		t.Fatal(err)
	}
	c := hello(t, s)
	option(t, c, structuredReply, nil)
	const ours = "base:allocation"
	for _, o := range []struct {
		opt     uint32
		export  string
		queries []string
		id      string // of the context in the reply; "": there is none
	}{
		{listMeta, "disk", nil, "\x00\x00\x00\x00"},
		{listMeta, "disk", []string{"base:"}, "\x00\x00\x00\x00"},
		{listMeta, "disk", []string{"qemu:", ours}, "\x00\x00\x00\x00"},
		{listMeta, "disk", []string{"qemu:", "base:x", "base", "allocation", ""}, ""},
		{listMeta, "blind", nil, ""},
		{setMeta, "disk", nil, ""},
		{setMeta, "disk", []string{"base:"}, ""},
		{setMeta, "disk", []string{"qemu:allocation-depth", "base:allocation:", "BASE:allocation"}, ""},
		{setMeta, "disk", []string{ours, ours}, "\x00\x00\x00\x01"},
		{setMeta, "blind", []string{ours}, ""},
	} {
		rs := option(t, c, o.opt, nbdtest.MetaData(o.export, o.queries...))
		if rs[len(rs)-1].Type != ackReply || (len(rs) == 2) != (o.id != "") || len(rs) > 2 {
			t.Errorf("option %d of %s, queries %q: %+v", o.opt, o.export, o.queries, rs)
		} else if o.id != "" && (rs[0].Type != metaReply || string(rs[0].Data) != o.id+ours) {
			t.Errorf("option %d of %s, queries %q: %q", o.opt, o.export, o.queries, rs[0].Data)
		}
	}
}

// TestContextsAreThoseLastSelectedForTheExport: a client that selected none, or for another
// export, or whose last choice failed, has no block status.
func TestContextsAreThoseLastSelectedForTheExport(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	if err := s.Export("another", nbdtest.NewMemory(512), ""); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		last  []byte
		errno uint32
	}{
		"none":                      {nil, 0},
		"of another export":         {nbdtest.MetaData("another", "base:allocation"), 22},
		"none after all":            {nbdtest.MetaData("disk"), 22},
		"of an export that is none": {nbdtest.MetaData("nothing", "base:allocation"), 22},
		"malformed":                 {[]byte("x"), 22},
	} {
		cl := hello(t, s)
		option(t, cl, structuredReply, nil)
		cl.Structured = true
		option(t, cl, setMeta, nbdtest.MetaData("disk", "base:allocation"))
		if c.last != nil {
			option(t, cl, setMeta, c.last)
		}
		if err := cl.Go("disk"); err != nil {
			t.Fatal(err)
		}
		if r, err := cl.Do(0, cmdStatus, 0, 512, nil); err != nil || r.Error != c.errno {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestExtendedHeadersAreForGood(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{})
	c := hello(t, s)
	for range 2 {
		if rs := option(t, c, extendedHeaders, nil); rs[0].Type != ackReply {
			t.Errorf("%+v", rs)
		}
	}
	if rs := option(t, c, structuredReply, nil); rs[0].Type != errExtHeaders {
		t.Errorf("structured replies afterwards: %+v", rs)
	}
	c.SendOption(exportName, []byte("disk"))
	wantEnd(t, c)
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
