package sctp

import "encoding/binary"

// paramType is the type of a parameter in INIT and INIT ACK (RFC 9260 section
// 3.3.2.1, 3.3.3.1; RFC 5061 section 4.2).
type paramType uint16

const (
	paramHeartbeatInfo  paramType = 1
	paramIPv4           paramType = 5
	paramIPv6           paramType = 6
	paramCookie         paramType = 7
	paramUnrecognized   paramType = 8
	paramCookiePreserve paramType = 9
	paramHostName       paramType = 11
	paramAddressTypes   paramType = 12
	paramECN            paramType = 0x8000
	paramPadding        paramType = 0x8005 // RFC 4820
	paramExtensions     paramType = 0x8008 // RFC 5061
	paramForwardTSN     paramType = 0xc000 // RFC 3758
	paramAdaptation     paramType = 0xc006 // RFC 5061
	paramZeroChecksum   paramType = 0x8001 // RFC 9653
	paramRandom         paramType = 0x8002 // RFC 4895
	paramChunkList      paramType = 0x8003
	paramHMACAlgorithm  paramType = 0x8004
)

func (t paramType) skip() bool   { return t&0x8000 != 0 }
func (t paramType) report() bool { return t&0x4000 != 0 }

// known reports whether a parameter is understood, if only to be ignored: what it offers
// is optional and not offered from here.
func (t paramType) known() bool {
	switch t {
	case paramIPv4, paramIPv6, paramCookie, paramUnrecognized, paramCookiePreserve, paramHostName, paramAddressTypes,
		paramECN, paramPadding, paramExtensions, paramForwardTSN, paramAdaptation,
		paramZeroChecksum, paramRandom, paramChunkList, paramHMACAlgorithm:
		return true
	}
	return false
}

// param is a view of one parameter, header included and padding not.
//
//	0: type(2) | 2: length(2) | 4: value
type param []byte

func (p param) typ() paramType { return paramType(binary.BigEndian.Uint16(p)) }
func (p param) value() []byte  { return p[paramHeaderLen:] }

// cutParam takes the first parameter off b.
func cutParam(b []byte) (p param, rest []byte, err error) {
	if len(b) < paramHeaderLen {
		return nil, nil, errMalformed
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < paramHeaderLen || n > len(b) {
		return nil, nil, errMalformed
	}
	return param(b[:n:n]), b[min(padded(n), len(b)):], nil
}

// appendParam appends a parameter and its padding.
func appendParam(b []byte, t paramType, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(t))
	b = binary.BigEndian.AppendUint16(b, uint16(paramHeaderLen+len(value)))
	return pad(append(b, value...), len(value))
}

// appendAdaptation appends an Adaptation Layer Indication (RFC 5061 section
// 4.2.6).
func appendAdaptation(b []byte, indication uint32) []byte {
	var v [4]byte
	binary.BigEndian.PutUint32(v[:], indication)
	return appendParam(b, paramAdaptation, v[:])
}

// initFixedLen is the length in bytes of INIT and INIT ACK without parameters.
const initFixedLen = 20

// initChunk is an INIT or an INIT ACK (RFC 9260 sections 3.3.2 and 3.3.3).
//
//	4: Initiate Tag(4) | 8: a_rwnd(4) | 12: outbound streams(2) | 14: inbound streams(2) | 16: initial TSN(4) | 20: parameters
type initChunk struct {
	tag    uint32
	rwnd   uint32
	out    uint16 // streams that the sender wants to send on
	in     uint16 // the most that it lets the receiver send on
	tsn    uint32
	params []byte
}

func parseInit(c chunk) (i initChunk, err error) {
	if len(c) < initFixedLen {
		return i, errMalformed
	}
	return initChunk{
		tag:    binary.BigEndian.Uint32(c[4:]),
		rwnd:   binary.BigEndian.Uint32(c[8:]),
		out:    binary.BigEndian.Uint16(c[12:]),
		in:     binary.BigEndian.Uint16(c[14:]),
		tsn:    binary.BigEndian.Uint32(c[16:]),
		params: c[initFixedLen:],
	}, nil
}

// append appends i as a chunk of type t. Its last parameter must not need padding, which
// would not count towards the chunk (RFC 9260 section 3.2).
func (i *initChunk) append(b []byte, t chunkType) []byte {
	at := len(b)
	b = beginChunk(b, t, 0)
	b = binary.BigEndian.AppendUint32(b, i.tag)
	b = binary.BigEndian.AppendUint32(b, i.rwnd)
	b = binary.BigEndian.AppendUint16(b, i.out)
	b = binary.BigEndian.AppendUint16(b, i.in)
	b = binary.BigEndian.AppendUint32(b, i.tsn)
	return endChunk(append(b, i.params...), at)
}

// initParams holds the parsed parameters of an INIT or INIT ACK.
type initParams struct {
	cookie        []byte // State Cookie, into the packet
	adaptation    uint32
	hasAdaptation bool
	hostName      param  // a Host Name Address, which ends the attempt
	unrecognized  []byte // parameters to report, one after the other, each padded
}

// parseParams parses parameters. Unknown ones are handled by their high bits (RFC 9260
// section 3.2.1); parsing stops where they demand it.
func parseParams(b []byte) (p initParams, err error) {
	for len(b) > 0 {
		var q param
		if q, b, err = cutParam(b); err != nil {
			return p, err
		}
		switch t := q.typ(); {
		case t == paramCookie:
			p.cookie = q.value()
		case t == paramAdaptation:
			if len(q) != paramHeaderLen+4 {
				return p, errMalformed
			}
			p.adaptation, p.hasAdaptation = binary.BigEndian.Uint32(q.value()), true
		case t == paramHostName:
			p.hostName = q
		case !t.known():
			if t.report() && len(p.unrecognized)+padded(len(q)) <= maxUnrecognized {
				p.unrecognized = pad(append(p.unrecognized, q...), len(q))
			}
			if !t.skip() {
				return p, nil
			}
		}
	}
	return p, nil
}
