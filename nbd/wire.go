package nbd

import (
	"encoding/binary"
	"errors"
	"syscall"
)

// Magic numbers ("Newstyle negotiation", "Transmission").
const (
	magicServer          = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption          = 0x49484156454f5054 // "IHAVEOPT"
	magicOptionReply     = 0x0003e889045565a9
	magicRequest         = 0x25609513
	magicSimpleReply     = 0x67446698
	magicStructuredReply = 0x668e33ef
)

// Handshake and client flags.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Transmission flags.
const (
	flagHasFlags        = 1 << 0
	flagReadOnly        = 1 << 1
	flagSendFlush       = 1 << 2
	flagSendFUA         = 1 << 3
	flagRotational      = 1 << 4
	flagSendTrim        = 1 << 5
	flagSendWriteZeroes = 1 << 6
	flagSendDF          = 1 << 7
	flagCanMultiConn    = 1 << 8
	flagSendFastZero    = 1 << 11
)

// Options.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
)

// Option reply types.
const (
	repAck        = 1
	repServer     = 2
	repInfo       = 3
	repErrUnsup   = 1<<31 + 1
	repErrInvalid = 1<<31 + 3
	repErrUnknown = 1<<31 + 6
	repErrTooBig  = 1<<31 + 9
)

// Information types.
const (
	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Commands.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdWriteZeroes = 6
)

// Command flags.
const (
	cmdFlagFUA      = 1 << 0
	cmdFlagNoHole   = 1 << 1
	cmdFlagDF       = 1 << 2
	cmdFlagFastZero = 1 << 4
)

// Structured reply flags and types.
const (
	replyFlagDone       = 1 << 0
	replyTypeNone       = 0
	replyTypeOffsetData = 1
	replyTypeError      = 1<<15 + 1
)

// Sizes in bytes.
const (
	optionHeaderLen = 16
	requestLen      = 28
	simpleReplyLen  = 16
	chunkHeaderLen  = 20
)

var (
	errBadMagic  = errors.New("wrong magic number")
	errMalformed = errors.New("malformed option data")
)

// optionHeader starts an option of the client.
type optionHeader struct{ option, length uint32 }

func parseOptionHeader(b []byte) (optionHeader, error) {
	if len(b) < optionHeaderLen || binary.BigEndian.Uint64(b) != magicOption {
		return optionHeader{}, errBadMagic
	}
	return optionHeader{binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}

// infoRequest is the data of NBD_OPT_INFO and NBD_OPT_GO.
type infoRequest struct {
	name string
	ids  []byte // big-endian 16-bit information types
}

func (r *infoRequest) wants(id uint16) bool {
	for i := 0; i+1 < len(r.ids); i += 2 {
		if binary.BigEndian.Uint16(r.ids[i:]) == id {
			return true
		}
	}
	return false
}

func parseInfoRequest(b []byte) (infoRequest, error) {
	if len(b) < 6 {
		return infoRequest{}, errMalformed
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if n > maxName || n > uint64(len(b)-6) {
		return infoRequest{}, errMalformed
	}
	r := infoRequest{name: string(b[4 : 4+n])}
	b = b[4+n:]
	if int(binary.BigEndian.Uint16(b))*2 != len(b)-2 {
		return infoRequest{}, errMalformed
	}
	r.ids = b[2:]
	return r, nil
}

// appendOptionReply appends a reply to an option; its data are the slices.
func appendOptionReply(b []byte, option, typ uint32, data ...[]byte) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOptionReply)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, typ)
	n := 0
	for _, d := range data {
		n += len(d)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	for _, d := range data {
		b = append(b, d...)
	}
	return b
}

// request is the header of a client's request ("Request message").
type request struct {
	flags, typ     uint16
	cookie, offset uint64
	length         uint32
}

func parseRequest(b []byte) (request, error) {
	if len(b) < requestLen || binary.BigEndian.Uint32(b) != magicRequest {
		return request{}, errBadMagic
	}
	return request{
		flags:  binary.BigEndian.Uint16(b[4:]),
		typ:    binary.BigEndian.Uint16(b[6:]),
		cookie: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]),
		length: binary.BigEndian.Uint32(b[24:]),
	}, nil
}

func (r request) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magicRequest)
	b = binary.BigEndian.AppendUint16(b, r.flags)
	b = binary.BigEndian.AppendUint16(b, r.typ)
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	b = binary.BigEndian.AppendUint64(b, r.offset)
	return binary.BigEndian.AppendUint32(b, r.length)
}

// appendSimpleReply appends a simple reply without its data.
func appendSimpleReply(b []byte, errno uint32, cookie uint64) []byte {
	b = binary.BigEndian.AppendUint32(b, magicSimpleReply)
	b = binary.BigEndian.AppendUint32(b, errno)
	return binary.BigEndian.AppendUint64(b, cookie)
}

// appendChunkHeader appends the header of a structured reply's last chunk,
// whose payload has n bytes.
func appendChunkHeader(b []byte, typ uint16, cookie uint64, n uint32) []byte {
	b = binary.BigEndian.AppendUint32(b, magicStructuredReply)
	b = binary.BigEndian.AppendUint16(b, replyFlagDone)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, cookie)
	return binary.BigEndian.AppendUint32(b, n)
}

// appendDataChunk appends a chunk that says where its n bytes of data, which
// follow, belong.
func appendDataChunk(b []byte, cookie, offset uint64, n uint32) []byte {
	b = appendChunkHeader(b, replyTypeOffsetData, cookie, n+8)
	return binary.BigEndian.AppendUint64(b, offset)
}

// appendErrorChunk appends an error with its text for people.
func appendErrorChunk(b []byte, errno uint32, cookie uint64, words string) []byte {
	b = appendChunkHeader(b, replyTypeError, cookie, uint32(6+len(words)))
	b = binary.BigEndian.AppendUint32(b, errno)
	b = binary.BigEndian.AppendUint16(b, uint16(len(words)))
	return append(b, words...)
}

// Error values of the protocol ("Error values").
const (
	nbdEPERM     = 1
	nbdEIO       = 5
	nbdENOMEM    = 12
	nbdEINVAL    = 22
	nbdENOSPC    = 28
	nbdEOVERFLOW = 75
	nbdENOTSUP   = 95
	nbdESHUTDOWN = 108
)

// wireErrno translates an error number to the few that the protocol has, and
// describes it in at most 64 bytes.
func wireErrno(e syscall.Errno) (uint32, string) {
	switch e {
	case 0:
		return 0, ""
	case syscall.EPERM, syscall.EACCES, syscall.EROFS:
		return nbdEPERM, "not permitted: the disk is read-only"
	case syscall.ENOMEM:
		return nbdENOMEM, "out of memory"
	case syscall.EINVAL:
		return nbdEINVAL, "invalid request"
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return nbdENOSPC, "no space left on the disk"
	case syscall.EOVERFLOW:
		return nbdEOVERFLOW, "request too large"
	case syscall.EOPNOTSUPP:
		return nbdENOTSUP, "not supported by the disk"
	case syscall.ESHUTDOWN:
		return nbdESHUTDOWN, "the disk is being detached"
	}
	return nbdEIO, "input/output error"
}
