package nbd

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
)

// TestGoldenBytes holds the codecs against messages as the protocol document
// and other implementations have them.
func TestGoldenBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"simple reply", appendSimpleReply(nil, 5, 0x1122334455667788), "67446698 00000005 1122334455667788"},
		{"data chunk", appendDataChunk(nil, 7, 0x1000, 512), "668e33ef 0001 0001 0000000000000007 00000208 0000000000001000"},
		{"empty chunk", appendChunkHeader(nil, replyTypeNone, 7, 0), "668e33ef 0001 0000 0000000000000007 00000000"},
		{"error chunk", appendErrorChunk(nil, nbdENOSPC, 7, "full"), "668e33ef 0001 8001 0000000000000007 0000000a 0000001c 0004 66756c6c"},
		{"acknowledgement", appendOptionReply(nil, optGo, repAck), "0003e889045565a9 00000007 00000001 00000000"},
		{"export listed", appendOptionReply(nil, optList, repServer, []byte{0, 0, 0, 1}, []byte("a"), []byte("b")), "0003e889045565a9 00000003 00000002 00000006 00000001 61 62"},
		{"request", request{flags: cmdFlagFUA, typ: cmdWrite, cookie: 9, offset: 0x200, length: 0x1000}.append(nil), "25609513 0001 0001 0000000000000009 0000000000000200 00001000"},
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

func TestParseRequest(t *testing.T) {
	want := request{flags: 0x0102, typ: cmdTrim, cookie: 1 << 63, offset: 1<<64 - 1, length: 1<<32 - 1}
	b := want.append(nil)
	if got, err := parseRequest(b); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for name, bad := range map[string][]byte{"short": b[:27], "empty": nil, "wrong magic": append([]byte{0x12}, b[1:]...)} {
		if _, err := parseRequest(bad); !errors.Is(err, errBadMagic) {
			t.Errorf("%s: %v", name, err)
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
	all := geometry{Size: 1 << 20, MinBlock: 512, CanFlush: true, CanFUA: true, CanTrim: true, CanWriteZeroes: true, CanFastZero: true}.normal()
	ro, plain := all, geometry{Size: 1 << 20}.normal()
	ro.ReadOnly = true
	const size = 1 << 20
	for _, c := range []struct {
		name       string
		g          *geometry
		structured bool
		r          request
		op         block.Op
		fl         block.Flags
		errno      syscall.Errno
	}{
		{"read", &all, false, request{typ: cmdRead, length: 512}, block.OpRead, 0, 0},
		{"read to the end", &all, false, request{typ: cmdRead, offset: size - 512, length: 512}, block.OpRead, 0, 0},
		{"read beyond the end", &all, false, request{typ: cmdRead, offset: size - 512, length: 1024}, 0, 0, syscall.EINVAL},
		{"read far beyond", &all, false, request{typ: cmdRead, offset: 1<<64 - 512, length: 1024}, 0, 0, syscall.EINVAL},
		{"read too long", &all, false, request{typ: cmdRead, length: maxPayload + 512}, 0, 0, syscall.EINVAL},
		{"unaligned length", &all, false, request{typ: cmdRead, length: 511}, 0, 0, syscall.EINVAL},
		{"unaligned offset", &all, false, request{typ: cmdWrite, offset: 1, length: 512}, 0, 0, syscall.EINVAL},
		{"byte where that is allowed", &plain, false, request{typ: cmdRead, offset: 1, length: 1}, block.OpRead, 0, 0},
		{"unfragmented", &all, true, request{typ: cmdRead, flags: cmdFlagDF, length: 512}, block.OpRead, 0, 0},
		{"unfragmented without structured replies", &all, false, request{typ: cmdRead, flags: cmdFlagDF, length: 512}, 0, 0, syscall.EINVAL},
		{"FUA read", &all, false, request{typ: cmdRead, flags: cmdFlagFUA, length: 512}, block.OpRead, 0, 0},
		{"write", &all, false, request{typ: cmdWrite, length: 512}, block.OpWrite, 0, 0},
		{"durable write", &all, false, request{typ: cmdWrite, flags: cmdFlagFUA, length: 512}, block.OpWrite, block.FUA, 0},
		{"durable write not offered", &plain, false, request{typ: cmdWrite, flags: cmdFlagFUA, length: 512}, 0, 0, syscall.EINVAL},
		{"write beyond the end", &all, false, request{typ: cmdWrite, offset: size, length: 512}, 0, 0, syscall.ENOSPC},
		{"write to a read-only disk", &ro, false, request{typ: cmdWrite, length: 512}, 0, 0, syscall.EPERM},
		{"flush", &all, false, request{typ: cmdFlush}, block.OpFlush, 0, 0},
		{"flush of a range", &all, false, request{typ: cmdFlush, length: 512}, 0, 0, syscall.EINVAL},
		{"flush not offered", &plain, false, request{typ: cmdFlush}, 0, 0, syscall.EINVAL},
		{"flush of a read-only disk", &ro, false, request{typ: cmdFlush}, block.OpFlush, 0, 0},
		{"trim", &all, false, request{typ: cmdTrim, flags: cmdFlagFUA, length: size}, block.OpTrim, block.FUA, 0},
		{"trim not offered", &plain, false, request{typ: cmdTrim, length: 512}, 0, 0, syscall.EINVAL},
		{"trim of a read-only disk", &ro, false, request{typ: cmdTrim, length: 512}, 0, 0, syscall.EPERM},
		{"trim beyond the end", &all, false, request{typ: cmdTrim, offset: size, length: 512}, 0, 0, syscall.EINVAL},
		{"zeroes", &all, false, request{typ: cmdWriteZeroes, flags: cmdFlagNoHole | cmdFlagFastZero, length: 512}, block.OpWriteZeroes, block.NoUnmap | block.FastZero, 0},
		{"zeroes not offered", &plain, false, request{typ: cmdWriteZeroes, length: 512}, 0, 0, syscall.EINVAL},
		{"zeroes beyond the end", &all, false, request{typ: cmdWriteZeroes, offset: size, length: 512}, 0, 0, syscall.ENOSPC},
		{"zeroes on a read-only disk", &ro, false, request{typ: cmdWriteZeroes, length: 512}, 0, 0, syscall.EPERM},
		{"no-hole write", &all, false, request{typ: cmdWrite, flags: cmdFlagNoHole, length: 512}, 0, 0, syscall.EINVAL},
		{"unknown flag", &all, false, request{typ: cmdRead, flags: 1 << 9, length: 512}, 0, 0, syscall.EINVAL},
		{"unknown command", &all, false, request{typ: 99, length: 512}, 0, 0, syscall.EINVAL},
	} {
		if op, fl, errno := c.g.check(&c.r, c.g.Size, c.structured); op != c.op || fl != c.fl || errno != c.errno {
			t.Errorf("%s: %v, %v, %v, want %v, %v, %v", c.name, op, fl, errno, c.op, c.fl, c.errno)
		}
	}
}

func TestGeometryThatClientsSee(t *testing.T) {
	g := geometry{Size: 1}.normal()
	if g.MinBlock != 1 || g.PreferredBlock != 4096 || g.MaxIO != maxPayload || g.advertisedMax() != maxPayload {
		t.Errorf("%+v", g)
	}
	g = geometry{MinBlock: 8192, PreferredBlock: 512, MaxIO: 64 << 10}.normal()
	if g.PreferredBlock != 8192 || g.advertisedMax() != minAdvertisedMax {
		t.Errorf("%+v", g)
	}
	all := geometry{ReadOnly: true, Rotational: true, CanFlush: true, CanFUA: true, CanTrim: true, CanWriteZeroes: true, CanFastZero: true, MultiConn: true}
	if f := all.transmissionFlags(false); f != 1|2|4|8|16|256 {
		t.Errorf("read-only: %#x", f)
	}
	all.ReadOnly = false
	if f := all.transmissionFlags(true); f != 1|4|8|16|32|64|128|256|1<<11 {
		t.Errorf("writable: %#x", f)
	}
	if f := (&geometry{}).transmissionFlags(false); f != 1 {
		t.Errorf("nothing: %#x", f)
	}
}

// FuzzCheck proves that whatever a client asks for, an operation that is
// passed to a device lies inside the disk.
func FuzzCheck(f *testing.F) {
	f.Add(request{typ: cmdRead, length: 512}.append(nil), uint64(1<<20), uint8(9), uint8(0xff))
	f.Add(request{typ: cmdWrite, offset: 1<<64 - 1, length: 1<<32 - 1}.append(nil), uint64(1<<63), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, size uint64, shift, can uint8) {
		r, err := parseRequest(b)
		if err != nil {
			return
		}
		if !bytes.Equal(r.append(nil), b[:requestLen]) {
			t.Fatal("parse and append differ")
		}
		g := geometry{
			Size: size, MinBlock: 1 << (shift % 17), ReadOnly: can&1 != 0, CanFlush: can&2 != 0, CanFUA: can&4 != 0,
			CanTrim: can&8 != 0, CanWriteZeroes: can&16 != 0, CanFastZero: can&32 != 0,
		}.normal()
		op, fl, errno := g.check(&r, g.Size, can&64 != 0)
		if errno != 0 {
			return
		}
		if r.offset+uint64(r.length) < r.offset || r.offset+uint64(r.length) > size || r.offset%uint64(g.MinBlock) != 0 {
			t.Fatalf("%v of %d at %d lets pass on a disk of %d", op, r.length, r.offset, size)
		}
		if g.ReadOnly && op != block.OpRead && op != block.OpFlush || fl&block.FUA != 0 && !g.CanFUA {
			t.Fatalf("%v with flags %v on %+v", op, fl, g)
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
