package nbd

import (
	"encoding/binary"
	"errors"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// Magic numbers ("Newstyle negotiation", "Transmission").
const (
	magicServer          = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption          = 0x49484156454f5054 // "IHAVEOPT"
	magicOptionReply     = 0x0003e889045565a9
	magicRequest         = 0x25609513
	magicSimpleReply     = 0x67446698
	magicStructuredReply = 0x668e33ef
	magicExtendedRequest = 0x21e41c71
	magicExtendedReply   = 0x6e8a278c
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
	flagSendCache       = 1 << 10
	flagSendFastZero    = 1 << 11
)

// Options.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMetaContext = 9
	optSetMetaContext  = 10
	optExtendedHeaders = 11
)

// Option reply types.
const (
	repAck           = 1
	repServer        = 2
	repInfo          = 3
	repMetaContext   = 4
	repErrUnsup      = 1<<31 + 1
	repErrPolicy     = 1<<31 + 2
	repErrInvalid    = 1<<31 + 3
	repErrUnknown    = 1<<31 + 6
	repErrTooBig     = 1<<31 + 9
	repErrExtHeaders = 1<<31 + 10
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
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7
)

// Command flags.
const (
	cmdFlagFUA        = 1 << 0
	cmdFlagNoHole     = 1 << 1
	cmdFlagDF         = 1 << 2
	cmdFlagReqOne     = 1 << 3
	cmdFlagFastZero   = 1 << 4
	cmdFlagPayloadLen = 1 << 5
)

// Structured reply flags and types.
const (
	replyFlagDone           = 1 << 0
	replyTypeNone           = 0
	replyTypeOffsetData     = 1
	replyTypeOffsetHole     = 2
	replyTypeBlockStatus    = 5
	replyTypeBlockStatusExt = 6
	replyTypeError          = 1<<15 + 1
)

// The one metadata context ("Metadata querying"): its id is of our choice.
const (
	allocationContext = "base:allocation"
	allocationID      = 1
)

// Sizes in bytes.
const (
	optionHeaderLen     = 16
	requestLen          = 28
	extendedRequestLen  = 32
	extendedReplyHdrLen = 32
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

// metaRequest is the data of NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
type metaRequest struct {
	name    string
	queries []string
}

// selects reports whether a query names the context. If wild, the namespace alone does.
func (r *metaRequest) selects(wild bool) bool {
	return slices.Contains(r.queries, allocationContext) || wild && (len(r.queries) == 0 || slices.Contains(r.queries, "base:"))
}

func parseMetaRequest(b []byte) (r metaRequest, err error) {
	field := func() string {
		if len(b) < 4 {
			err = errMalformed
			return ""
		}
		n := uint64(binary.BigEndian.Uint32(b))
		if n > maxName || n > uint64(len(b)-4) {
			err = errMalformed
			return ""
		}
		f := string(b[4 : 4+n])
		b = b[4+n:]
		return f
	}
	if r.name = field(); err != nil || len(b) < 4 {
		return metaRequest{}, errMalformed
	}
	n := binary.BigEndian.Uint32(b)
	// Each takes 4 bytes at least, so there are no more than the data has room for.
	for b = b[4:]; n > 0 && err == nil; n-- {
		r.queries = append(r.queries, field())
	}
	if err != nil || len(b) != 0 {
		return metaRequest{}, errMalformed
	}
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
	flags, typ             uint16
	cookie, offset, length uint64
	payload                bool // length bytes follow it
}

// features are what a client has negotiated.
type features struct {
	structured bool // replies may be structured
	extended   bool // all headers are extended
	allocation bool // base:allocation is selected, for the export it has chosen
}

// requestLen is the length in bytes of a request's header.
func (f *features) requestLen() int {
	if f.extended {
		return extendedRequestLen
	}
	return requestLen
}

func (f *features) parseRequest(b []byte) (request, error) {
	magic := uint32(magicRequest)
	if f.extended {
		magic = magicExtendedRequest
	}
	if len(b) < f.requestLen() || binary.BigEndian.Uint32(b) != magic {
		return request{}, errBadMagic
	}
	r := request{
		flags:  binary.BigEndian.Uint16(b[4:]),
		typ:    binary.BigEndian.Uint16(b[6:]),
		cookie: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]),
	}
	if f.extended {
		r.length = binary.BigEndian.Uint64(b[24:])
		r.payload = r.flags&cmdFlagPayloadLen != 0
		r.flags &^= cmdFlagPayloadLen
	} else {
		r.length = uint64(binary.BigEndian.Uint32(b[24:]))
		r.payload = r.typ == cmdWrite
	}
	return r, nil
}

// appendSimpleReply appends a simple reply without its data.
func appendSimpleReply(b []byte, errno uint32, cookie uint64) []byte {
	b = binary.BigEndian.AppendUint32(b, magicSimpleReply)
	b = binary.BigEndian.AppendUint32(b, errno)
	return binary.BigEndian.AppendUint64(b, cookie)
}

// appendChunkHeader appends the header of a reply's only chunk, whose payload has n bytes.
func (f *features) appendChunkHeader(b []byte, typ uint16, r *request, n uint32) []byte {
	magic := uint32(magicStructuredReply)
	if f.extended {
		magic = magicExtendedReply
	}
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, replyFlagDone)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	if f.extended {
		b = binary.BigEndian.AppendUint64(b, r.offset)
		return binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return binary.BigEndian.AppendUint32(b, n)
}

// appendDataChunk appends a chunk that says where the data of a read, which follow it,
// belong.
func (f *features) appendDataChunk(b []byte, r *request) []byte {
	b = f.appendChunkHeader(b, replyTypeOffsetData, r, uint32(r.length)+8)
	return binary.BigEndian.AppendUint64(b, r.offset)
}

// appendHoleChunk appends a chunk that says that all of a read are zeroes.
func (f *features) appendHoleChunk(b []byte, r *request) []byte {
	b = f.appendChunkHeader(b, replyTypeOffsetHole, r, 12)
	b = binary.BigEndian.AppendUint64(b, r.offset)
	return binary.BigEndian.AppendUint32(b, uint32(r.length))
}

// appendStatusChunk appends the extents of base:allocation.
func (f *features) appendStatusChunk(b []byte, r *request, extents []block.Extent) []byte {
	n := uint32(len(extents))
	if !f.extended {
		b = f.appendChunkHeader(b, replyTypeBlockStatus, r, 4+8*n)
		b = binary.BigEndian.AppendUint32(b, allocationID)
		for _, e := range extents {
			b = binary.BigEndian.AppendUint32(b, e.Length)
			b = binary.BigEndian.AppendUint32(b, uint32(e.State))
		}
		return b
	}
	b = f.appendChunkHeader(b, replyTypeBlockStatusExt, r, 8+16*n)
	b = binary.BigEndian.AppendUint32(b, allocationID)
	b = binary.BigEndian.AppendUint32(b, n)
	for _, e := range extents {
		b = binary.BigEndian.AppendUint64(b, uint64(e.Length))
		b = binary.BigEndian.AppendUint64(b, uint64(e.State))
	}
	return b
}

// appendErrorChunk appends an error with its text for people.
func (f *features) appendErrorChunk(b []byte, errno uint32, r *request, words string) []byte {
	b = f.appendChunkHeader(b, replyTypeError, r, uint32(6+len(words)))
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
