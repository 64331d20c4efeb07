package sctp

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// cutCause takes the first error cause off b. Info points into b.
func cutCause(b []byte) (c assoc.Cause, rest []byte, err error) {
	p, rest, err := cutParam(b) // the same layout
	if err != nil {
		return c, nil, err
	}
	return assoc.Cause{Code: assoc.CauseCode(p.typ()), Info: p.value()}, rest, nil
}

// appendCause appends an error cause and its padding.
func appendCause(b []byte, code assoc.CauseCode, info []byte) []byte {
	return appendParam(b, paramType(code), info)
}

// firstCause returns a copy of the first cause of an ABORT or ERROR chunk, with code 0 if
// it has none that can be parsed.
func firstCause(c chunk) assoc.Cause {
	k, _, err := cutCause(c.value())
	if err != nil {
		return assoc.Cause{}
	}
	k.Info = append([]byte(nil), k.Info[:min(len(k.Info), assoc.MaxCauseInfo)]...)
	return k
}

// appendAbort appends an ABORT with one cause, or none for code 0 (RFC 9260
// section 3.3.7).
func appendAbort(b []byte, flags uint8, cause assoc.Cause) []byte {
	at := len(b)
	b = beginChunk(b, typeAbort, flags)
	if cause.Code != 0 {
		b = appendCause(b, cause.Code, cause.Info[:min(len(cause.Info), assoc.MaxCauseInfo)])
	}
	return endChunk(b, at)
}

// appendError appends an ERROR chunk with one cause.
func appendError(b []byte, code assoc.CauseCode, info []byte) []byte {
	at := len(b)
	return endChunk(appendCause(beginChunk(b, typeError, 0), code, info), at)
}

// uint32Info returns the 4 bytes of information of a cause such as assoc.CauseNoUserData,
// or of assoc.CauseInvalidStream with the stream in the upper half.
func uint32Info(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
