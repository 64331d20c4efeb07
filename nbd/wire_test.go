package nbd

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// TestGoldenBytes holds the codecs against messages as the protocol document
// and other implementations have them.
func TestGoldenBytes(t *testing.T) {
	compact, extended := features{structured: true}, features{structured: true, extended: true}
	read := request{typ: cmdRead, cookie: 7, offset: 0x1000, length: 512}
	extents := []block.Extent{{Length: 1024, State: block.Hole | block.Zero}, {Length: 512}}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"simple reply", appendSimpleReply(nil, 5, 0x1122334455667788), "67446698 00000005 1122334455667788"},
		{"data chunk", compact.appendDataChunk(nil, &read), "668e33ef 0001 0001 0000000000000007 00000208 0000000000001000"},
		{"hole", compact.appendHoleChunk(nil, &read), "668e33ef 0001 0002 0000000000000007 0000000c 0000000000001000 00000200"},
		{"empty chunk", compact.appendChunkHeader(nil, replyTypeNone, &read, 0), "668e33ef 0001 0000 0000000000000007 00000000"},
		{"error chunk", compact.appendErrorChunk(nil, nbdENOSPC, &read, "full"), "668e33ef 0001 8001 0000000000000007 0000000a 0000001c 0004 66756c6c"},
		{"block status", compact.appendStatusChunk(nil, &read, extents), "668e33ef 0001 0005 0000000000000007 00000014 00000001 00000400 00000003 00000200 00000000"},
		{"extended data chunk", extended.appendDataChunk(nil, &read), "6e8a278c 0001 0001 0000000000000007 0000000000001000 0000000000000208 0000000000001000"},
		{"extended empty chunk", extended.appendChunkHeader(nil, replyTypeNone, &read, 0), "6e8a278c 0001 0000 0000000000000007 0000000000001000 0000000000000000"},
		{"extended block status", extended.appendStatusChunk(nil, &read, extents),
			"6e8a278c 0001 0006 0000000000000007 0000000000001000 0000000000000028 00000001 00000002 0000000000000400 0000000000000003 0000000000000200 0000000000000000"},
		{"acknowledgement", appendOptionReply(nil, optGo, repAck), "0003e889045565a9 00000007 00000001 00000000"},
		{"export listed", appendOptionReply(nil, optList, repServer, []byte{0, 0, 0, 1}, []byte("a"), []byte("b")), "0003e889045565a9 00000003 00000002 00000006 00000001 61 62"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(c.got, want) {
			t.Errorf("%s:\n% x, want\n% x", c.name, c.got, want)
		}
	}
}

// requestBytes is a request as a client sends it.
func requestBytes(f features, r request) []byte {
	if f.extended {
		if r.payload {
			r.flags |= cmdFlagPayloadLen
		}
		return nbdtest.AppendExtended(nil, r.flags, r.typ, r.cookie, r.offset, r.length, nil)
	}
	return nbdtest.AppendRequest(nil, r.flags, r.typ, r.cookie, r.offset, uint32(r.length), nil)
}

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		f    features
		want request
	}{
		{features{}, request{flags: 0x0102, typ: cmdTrim, cookie: 1 << 63, offset: 1<<64 - 1, length: 1<<32 - 1}},
		{features{}, request{flags: cmdFlagPayloadLen, typ: cmdWrite, length: 512, payload: true}},
		{features{extended: true}, request{flags: 0x0102, typ: cmdTrim, cookie: 1 << 63, offset: 1<<64 - 1, length: 1<<64 - 1}},
		{features{extended: true}, request{typ: cmdWrite, length: 512}},
		{features{extended: true}, request{typ: cmdBlockStatus, length: 12, payload: true}},
	} {
		b := requestBytes(c.f, c.want)
		if got, err := c.f.parseRequest(b); err != nil || got != c.want || len(b) != c.f.requestLen() {
			t.Errorf("%+v, %v, want %+v", got, err, c.want)
		}
		for name, bad := range map[string][]byte{"short": b[:len(b)-1], "empty": nil, "wrong magic": append([]byte{0x12}, b[1:]...)} {
			if _, err := c.f.parseRequest(bad); !errors.Is(err, errBadMagic) {
				t.Errorf("%s: %v", name, err)
			}
		}
		other := features{extended: !c.f.extended}
		if _, err := other.parseRequest(append(b, 0, 0, 0, 0)); !errors.Is(err, errBadMagic) {
			t.Errorf("the other kind: %v", err)
		}
	}
}

func TestParseInfoRequest(t *testing.T) {
	for name, c := range map[string]struct {
		in    string
		name  string
		sizes bool
		bad   bool
	}{
		"nothing asked":        {in: "\x00\x00\x00\x01a\x00\x00", name: "a"},
		"sizes asked":          {in: "\x00\x00\x00\x00\x00\x02\x00\x01\x00\x03", sizes: true},
		"empty":                {bad: true},
		"no count":             {in: "\x00\x00\x00\x01a\x00", bad: true},
		"name too long":        {in: "\x00\x00\x00\x02a\x00\x00", bad: true},
		"huge name":            {in: "\xff\xff\xff\xffa\x00\x00", bad: true},
		"list too short":       {in: "\x00\x00\x00\x00\x00\x02\x00\x01", bad: true},
		"trailing bytes":       {in: "\x00\x00\x00\x00\x00\x00x", bad: true},
		"name above the limit": {in: "\x00\x00\x10\x01" + strings.Repeat("a", 4097) + "\x00\x00", bad: true},
	} {
		r, err := parseInfoRequest([]byte(c.in))
		if (err != nil) != c.bad || r.name != c.name || r.wants(infoBlockSize) != c.sizes {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestErrorsOfTheProtocol(t *testing.T) {
	for e, want := range map[syscall.Errno]uint32{
		0: 0, syscall.EPERM: 1, syscall.EACCES: 1, syscall.EROFS: 1, syscall.EIO: 5, syscall.ENOMEM: 12, syscall.EINVAL: 22,
		syscall.ENOSPC: 28, syscall.EDQUOT: 28, syscall.EFBIG: 28, syscall.EOVERFLOW: 75, syscall.EOPNOTSUPP: 95,
		syscall.ESHUTDOWN: 108, syscall.ENODEV: 5, syscall.EBADF: 5, syscall.ETIMEDOUT: 5,
	} {
		code, words := wireErrno(e)
		if code != want || (words == "") != (e == 0) || len(words) > 64 {
			t.Errorf("%v: %d %q, want %d", e, code, words, want)
		}
	}
}

func TestCheck(t *testing.T) {
	all := geometry{Size: 1 << 20, MinBlock: 512, CanFlush: true, CanFUA: true, CanTrim: true, CanWriteZeroes: true, CanFastZero: true, CanCache: true}.withDefaults()
	simple, chunked, allocated, long := features{}, features{structured: true}, features{structured: true, allocation: true}, features{structured: true, extended: true, allocation: true}
	ro, plain := all, geometry{Size: 1 << 20}.withDefaults()
	ro.ReadOnly = true
	const size = 1 << 20
	for _, c := range []struct {
		name  string
		g     *geometry
		f     features
		r     request
		op    block.Op
		fl    block.Flags
		errno syscall.Errno
	}{
		{"read", &all, simple, request{typ: cmdRead, length: 512}, block.OpRead, 0, 0},
		{"read to the end", &all, simple, request{typ: cmdRead, offset: size - 512, length: 512}, block.OpRead, 0, 0},
		{"read beyond the end", &all, simple, request{typ: cmdRead, offset: size - 512, length: 1024}, 0, 0, syscall.EINVAL},
		{"read far beyond", &all, simple, request{typ: cmdRead, offset: 1<<64 - 512, length: 1024}, 0, 0, syscall.EINVAL},
		{"read too long", &all, simple, request{typ: cmdRead, length: maxPayload + 512}, 0, 0, syscall.EINVAL},
		{"unaligned length", &all, simple, request{typ: cmdRead, length: 511}, 0, 0, syscall.EINVAL},
		{"unaligned offset", &all, simple, request{typ: cmdWrite, payload: true, offset: 1, length: 512}, 0, 0, syscall.EINVAL},
		{"byte where that is allowed", &plain, simple, request{typ: cmdRead, offset: 1, length: 1}, block.OpRead, 0, 0},
		{"unfragmented", &all, chunked, request{typ: cmdRead, flags: cmdFlagDF, length: 512}, block.OpRead, 0, 0},
		{"unfragmented without structured replies", &all, simple, request{typ: cmdRead, flags: cmdFlagDF, length: 512}, 0, 0, syscall.EINVAL},
		{"FUA read", &all, simple, request{typ: cmdRead, flags: cmdFlagFUA, length: 512}, block.OpRead, 0, 0},
		{"write", &all, simple, request{typ: cmdWrite, payload: true, length: 512}, block.OpWrite, 0, 0},
		{"durable write", &all, simple, request{typ: cmdWrite, payload: true, flags: cmdFlagFUA, length: 512}, block.OpWrite, block.FUA, 0},
		{"durable write not offered", &plain, simple, request{typ: cmdWrite, payload: true, flags: cmdFlagFUA, length: 512}, 0, 0, syscall.EINVAL},
		{"write beyond the end", &all, simple, request{typ: cmdWrite, payload: true, offset: size, length: 512}, 0, 0, syscall.ENOSPC},
		{"write to a read-only disk", &ro, simple, request{typ: cmdWrite, payload: true, length: 512}, 0, 0, syscall.EPERM},
		{"flush", &all, simple, request{typ: cmdFlush}, block.OpFlush, 0, 0},
		{"flush of a range", &all, simple, request{typ: cmdFlush, length: 512}, 0, 0, syscall.EINVAL},
		{"flush not offered", &plain, simple, request{typ: cmdFlush}, 0, 0, syscall.EINVAL},
		{"flush of a read-only disk", &ro, simple, request{typ: cmdFlush}, block.OpFlush, 0, 0},
		{"trim", &all, simple, request{typ: cmdTrim, flags: cmdFlagFUA, length: size}, block.OpTrim, block.FUA, 0},
		{"trim not offered", &plain, simple, request{typ: cmdTrim, length: 512}, 0, 0, syscall.EINVAL},
		{"trim of a read-only disk", &ro, simple, request{typ: cmdTrim, length: 512}, 0, 0, syscall.EPERM},
		{"trim beyond the end", &all, simple, request{typ: cmdTrim, offset: size, length: 512}, 0, 0, syscall.EINVAL},
		{"zeroes", &all, simple, request{typ: cmdWriteZeroes, flags: cmdFlagNoHole | cmdFlagFastZero, length: 512}, block.OpWriteZeroes, block.NoUnmap | block.FastZero, 0},
		{"zeroes not offered", &plain, simple, request{typ: cmdWriteZeroes, length: 512}, 0, 0, syscall.EINVAL},
		{"zeroes beyond the end", &all, simple, request{typ: cmdWriteZeroes, offset: size, length: 512}, 0, 0, syscall.ENOSPC},
		{"zeroes on a read-only disk", &ro, simple, request{typ: cmdWriteZeroes, length: 512}, 0, 0, syscall.EPERM},
		{"no-hole write", &all, simple, request{typ: cmdWrite, payload: true, flags: cmdFlagNoHole, length: 512}, 0, 0, syscall.EINVAL},
		{"unknown flag", &all, simple, request{typ: cmdRead, flags: 1 << 9, length: 512}, 0, 0, syscall.EINVAL},
		{"unknown command", &all, simple, request{typ: 99, length: 512}, 0, 0, syscall.EINVAL},
		{"cache", &all, simple, request{typ: cmdCache, length: 4096}, block.OpCache, 0, 0},
		{"cache of a read-only disk", &ro, simple, request{typ: cmdCache, length: 4096}, block.OpCache, 0, 0},
		{"cache not offered", &plain, simple, request{typ: cmdCache, length: 4096}, 0, 0, syscall.EINVAL},
		{"cache beyond the end", &all, simple, request{typ: cmdCache, offset: size, length: 512}, 0, 0, syscall.EINVAL},
		{"status", &all, allocated, request{typ: cmdBlockStatus, flags: cmdFlagReqOne, length: size}, block.OpStatus, 0, 0},
		{"status of a read-only disk", &ro, allocated, request{typ: cmdBlockStatus, length: size}, block.OpStatus, 0, 0},
		{"status not selected", &all, chunked, request{typ: cmdBlockStatus, length: size}, 0, 0, syscall.EINVAL},
		{"status of nothing", &all, allocated, request{typ: cmdBlockStatus}, 0, 0, syscall.EINVAL},
		{"status beyond the end", &all, allocated, request{typ: cmdBlockStatus, offset: 512, length: size}, 0, 0, syscall.EINVAL},
		{"status of all that a number can say", &all, long, request{typ: cmdBlockStatus, offset: 512, length: 1<<64 - 512}, 0, 0, syscall.EINVAL},
		{"unaligned status", &all, allocated, request{typ: cmdBlockStatus, length: 511}, 0, 0, syscall.EINVAL},
		{"status with a payload", &all, long, request{typ: cmdBlockStatus, length: 512, payload: true}, 0, 0, syscall.EINVAL},
		{"write without a payload", &all, long, request{typ: cmdWrite, length: 512}, 0, 0, syscall.EINVAL},
		{"read of one extent", &all, allocated, request{typ: cmdRead, flags: cmdFlagReqOne, length: 512}, 0, 0, syscall.EINVAL},
	} {
		if op, fl, errno := c.g.translate(&c.r, c.g.Size, c.f); op != c.op || fl != c.fl || errno != c.errno {
			t.Errorf("%s: %v, %v, %v, want %v, %v, %v", c.name, op, fl, errno, c.op, c.fl, c.errno)
		}
	}
}

func TestGeometryThatClientsSee(t *testing.T) {
	g := geometry{Size: 1}.withDefaults()
	if g.MinBlock != 1 || g.PreferredBlock != 4096 || g.MaxIO != maxPayload || g.advertisedMax() != maxPayload {
		t.Errorf("%+v", g)
	}
	g = geometry{MinBlock: 8192, PreferredBlock: 512, MaxIO: 64 << 10}.withDefaults()
	if g.PreferredBlock != 8192 || g.advertisedMax() != minAdvertisedMax {
		t.Errorf("%+v", g)
	}
	all := geometry{ReadOnly: true, Rotational: true, CanFlush: true, CanFUA: true, CanTrim: true, CanWriteZeroes: true, CanFastZero: true, CanCache: true, MultiConn: true}
	if f := all.transmissionFlags(features{}); f != 1|2|4|8|16|256|1<<10 {
		t.Errorf("read-only: %#x", f)
	}
	all.ReadOnly = false
	if f := all.transmissionFlags(features{structured: true}); f != 1|4|8|16|32|64|128|256|1<<10|1<<11 {
		t.Errorf("writable: %#x", f)
	}
	if f := (&geometry{}).transmissionFlags(features{}); f != 1 {
		t.Errorf("nothing: %#x", f)
	}
}

// FuzzCheck proves that whatever a client asks for, an operation that is
// passed to a device lies inside the disk.
func FuzzCheck(f *testing.F) {
	f.Add(requestBytes(features{}, request{typ: cmdRead, length: 512}), uint64(1<<20), uint8(9), uint8(0xff), uint8(0))
	f.Add(requestBytes(features{}, request{typ: cmdWrite, offset: 1<<64 - 1, length: 1<<32 - 1}), uint64(1<<63), uint8(0), uint8(0), uint8(1))
	f.Add(requestBytes(features{extended: true}, request{typ: cmdBlockStatus, offset: 512, length: 1<<64 - 512}), uint64(1<<63), uint8(0), uint8(0), uint8(7))
	f.Fuzz(func(t *testing.T, b []byte, size uint64, shift, can, has uint8) {
		c := features{structured: has&1 != 0, extended: has&2 != 0, allocation: has&4 != 0}
		r, err := c.parseRequest(b)
		if err != nil {
			return
		}
		if !bytes.Equal(requestBytes(c, r), b[:c.requestLen()]) {
			t.Fatal("parse and append differ")
		}
		g := geometry{
			Size: size, MinBlock: 1 << (shift % 17), ReadOnly: can&1 != 0, CanFlush: can&2 != 0, CanFUA: can&4 != 0,
			CanTrim: can&8 != 0, CanWriteZeroes: can&16 != 0, CanFastZero: can&32 != 0, CanCache: can&64 != 0,
		}.withDefaults()
		op, fl, errno := g.translate(&r, g.Size, c)
		if errno != 0 {
			return
		}
		if r.offset+r.length < r.offset || r.offset+r.length > size || r.offset%uint64(g.MinBlock) != 0 || op.HasData() && r.length > maxPayload {
			t.Fatalf("%v of %d at %d lets pass on a disk of %d", op, r.length, r.offset, size)
		}
		if g.ReadOnly && op.Writes() || fl&block.FUA != 0 && !g.CanFUA || r.length > 0 && r.payload != (op == block.OpWrite) {
			t.Fatalf("%v with flags %v on %+v", op, fl, g)
		}
	})
}

func TestParseMetaRequest(t *testing.T) {
	many := make([]string, 50)
	for name, c := range map[string]struct {
		in      []byte
		name    string
		queries int
		bad     bool
	}{
		"none":              {in: nbdtest.MetaData("disk"), name: "disk"},
		"one":               {in: nbdtest.MetaData("", "base:allocation"), queries: 1},
		"many empty ones":   {in: nbdtest.MetaData("disk", many...), name: "disk", queries: 50},
		"long":              {in: nbdtest.MetaData("disk", strings.Repeat("x", 4096)), name: "disk", queries: 1},
		"empty":             {bad: true},
		"no count":          {in: []byte("\x00\x00\x00\x01a\x00\x00\x00"), bad: true},
		"huge name":         {in: []byte("\xff\xff\xff\xffa\x00\x00\x00\x00"), bad: true},
		"fewer than said":   {in: []byte("\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"), bad: true},
		"huge query":        {in: []byte("\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xffa"), bad: true},
		"query cut off":     {in: []byte("\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02a"), bad: true},
		"trailing bytes":    {in: append(nbdtest.MetaData("disk", "base:"), 'x'), bad: true},
		"above the limit":   {in: nbdtest.MetaData("disk", strings.Repeat("x", 4097)), bad: true},
		"name above limits": {in: nbdtest.MetaData(strings.Repeat("x", 4097)), bad: true},
	} {
		r, err := parseMetaRequest(c.in)
		if (err != nil) != c.bad || r.name != c.name || len(r.queries) != c.queries {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func FuzzParseMetaRequest(f *testing.F) {
	f.Add(nbdtest.MetaData("disk", "base:allocation", "qemu:dirty-bitmap:x", ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseMetaRequest(b); err == nil && !bytes.Equal(nbdtest.MetaData(r.name, r.queries...), b) {
			t.Fatalf("%+v", r)
		}
	})
}

func FuzzParseInfoRequest(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01a\x00\x01\x00\x03"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseInfoRequest(b); err == nil && (4+len(r.name)+2+len(r.ids) != len(b) || len(r.ids)%2 != 0) {
			t.Fatalf("%+v of %d bytes", r, len(b))
		}
	})
}
