package iscsi

import "encoding/binary"

// Stage is a stage of login (RFC 7143 section 11.12.3).
type Stage uint8

// The stages of login.
const (
	Security    Stage = 0
	Operational Stage = 1
	FullFeature Stage = 3
)

// LoginRequest is a Login Request (RFC 7143 section 11.12).
type LoginRequest struct {
	Transit, Continue      bool
	CSG, NSG               Stage
	VersionMax, VersionMin uint8
	ISID                   [6]byte
	TSIH, CID              uint16
	ITT, CmdSN, ExpStatSN  uint32
}

func (l *LoginRequest) fields(x coder) {
	x.loginFlags(&l.Transit, &l.Continue, &l.CSG, &l.NSG)
	x.loginSession(&l.VersionMax, &l.VersionMin, &l.ISID, &l.TSIH, &l.ITT)
	x.u16(20, &l.CID)
	x.request(&l.CmdSN, &l.ExpStatSN)
}

// ParseLoginRequest reads a Login Request. It fails with ErrFormat.
func ParseLoginRequest(h *BHS) (l LoginRequest, err error) {
	l.fields(h.read())
	switch {
	case h.AHSLen() != 0:
		return l, formatError(OpLogin, "it has additional headers")
	case l.Transit && l.Continue:
		return l, formatError(OpLogin, "C and T at once")
	case l.CSG > Operational:
		return l, formatError(OpLogin, "reserved stage")
	case l.Transit && (l.NSG <= l.CSG || l.NSG == 2):
		return l, formatError(OpLogin, "no transition leads from this stage to that") // section 6.3
	}
	return l, nil
}

// Put writes the header.
func (l *LoginRequest) Put(h *BHS) {
	l.fields(h.begin(OpLogin, 0))
	h[0] |= 0x40 // always immediate
}

// loginFlags codes the flags of both Login PDUs. NSG is reserved without T.
func (x coder) loginFlags(transit, more *bool, csg, nsg *Stage) {
	x.final(transit)
	x.bit(1, 0x40, more)
	bits(x, 1, 0x0c, 2, csg)
	if !x.put || *transit {
		bits(x, 1, 3, 0, nsg)
	}
}

// loginSession codes the versions and the session of both Login PDUs, and the task tag.
func (x coder) loginSession(first, second *uint8, isid *[6]byte, tsih *uint16, itt *uint32) {
	octet(x, 2, first)
	octet(x, 3, second)
	x.bytes(8, isid[:])
	x.u16(14, tsih)
	x.u32(16, itt)
}

// LoginStatus is Status-Class and Status-Detail of a Login Response (RFC 7143 section 11.13.5).
type LoginStatus uint16

// The statuses of login.
const (
	LoginOK               LoginStatus = 0x0000
	LoginMovedTemporarily LoginStatus = 0x0101
	LoginMovedPermanently LoginStatus = 0x0102
	LoginInitiatorError   LoginStatus = 0x0200
	LoginAuthFailure      LoginStatus = 0x0201
	LoginForbidden        LoginStatus = 0x0202
	LoginNotFound         LoginStatus = 0x0203
	LoginRemoved          LoginStatus = 0x0204
	LoginVersion          LoginStatus = 0x0205
	LoginTooMany          LoginStatus = 0x0206
	LoginMissing          LoginStatus = 0x0207
	LoginCannotInclude    LoginStatus = 0x0208
	LoginSessionType      LoginStatus = 0x0209
	LoginNoSession        LoginStatus = 0x020a
	LoginInvalid          LoginStatus = 0x020b
	LoginTargetError      LoginStatus = 0x0300
	LoginUnavailable      LoginStatus = 0x0301
	LoginNoResources      LoginStatus = 0x0302
)

// LoginResponse is a Login Response (RFC 7143 section 11.13).
type LoginResponse struct {
	Transit, Continue         bool
	CSG, NSG                  Stage
	VersionMax, VersionActive uint8
	ISID                      [6]byte
	TSIH                      uint16
	ITT                       uint32
	Status                    LoginStatus
	Numbers
}

func (l *LoginResponse) fields(x coder) {
	x.loginFlags(&l.Transit, &l.Continue, &l.CSG, &l.NSG)
	x.loginSession(&l.VersionMax, &l.VersionActive, &l.ISID, &l.TSIH, &l.ITT)
	x.numbers(&l.Numbers)
	x.u16(36, (*uint16)(&l.Status))
}

// Put writes the header.
func (l *LoginResponse) Put(h *BHS) { l.fields(h.begin(OpLoginResp, 0)) }

// ParseLoginResponse reads a Login Response. It fails with ErrFormat.
func ParseLoginResponse(h *BHS) (l LoginResponse, err error) {
	l.fields(h.read())
	if l.Transit && l.Continue {
		return l, formatError(OpLoginResp, "C and T at once")
	}
	return l, nil
}

// The types of Additional Header Segments (RFC 7143 section 11.2.2.1).
const (
	ahsExtendedCDB = 1
	ahsBidiRead    = 2
)

// AHS is what the Additional Header Segments of a Command say.
type AHS struct {
	ExtendedCDB []byte // what follows the first 16 bytes of the CDB
	BidiRead    uint32 // expected length of the read half of a bidirectional command
	HasBidiRead bool
}

// ParseAHS reads the Additional Header Segments of a Command. The result refers to b. It fails with
// ErrFormat.
func ParseAHS(b []byte) (a AHS, err error) {
	for len(b) > 0 {
		if len(b) < 4 {
			return a, formatError(OpCommand, "a piece of an additional header")
		}
		n := int(binary.BigEndian.Uint16(b)) // without the length, the type, and the padding
		size := 3 + n
		size += Pad(size)
		if n < 1 || size > len(b) {
			return a, formatError(OpCommand, "an additional header longer than all of them")
		}
		switch b[2] & 0x3f {
		case ahsExtendedCDB:
			if a.ExtendedCDB != nil || n < 2 {
				return a, formatError(OpCommand, "two extended CDBs, or an empty one")
			}
			a.ExtendedCDB = b[4 : 3+n]
		case ahsBidiRead:
			if a.HasBidiRead || n != 5 {
				return a, formatError(OpCommand, "a bidirectional length of the wrong size")
			}
			a.HasBidiRead = true
			a.BidiRead = binary.BigEndian.Uint32(b[4:])
		default:
			return a, formatError(OpCommand, "an additional header of a reserved type")
		}
		b = b[size:]
	}
	return a, nil
}

// AppendAHS appends the segments, padded.
func (a *AHS) AppendAHS(b []byte) []byte {
	if n := len(a.ExtendedCDB); n > 0 {
		b = append(binary.BigEndian.AppendUint16(b, uint16(n+1)), ahsExtendedCDB, 0)
		b = append(b, a.ExtendedCDB...)
		b = append(b, make([]byte, Pad(n))...)
	}
	if a.HasBidiRead {
		b = binary.BigEndian.AppendUint32(append(b, 0, 5, ahsBidiRead, 0), a.BidiRead)
	}
	return b
}
