package nvme

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/block"
)

const (
	// ConnectDataLen is the length of Connect's data.
	ConnectDataLen = 1024
	// MaxNQN is the most bytes of a name (NVMe 7.9).
	MaxNQN = 223

	nqnLen          = 256 // of its field, which ends with zeroes
	dataCntlid      = 16
	dataSubsysNQN   = 256
	dataHostNQN     = 512
	connectQID      = 42
	connectSQSize   = 44
	connectAttrs    = 46
	connectKATO     = 48
	attrNoFlow      = 1 << 2
	privateLen      = 32
	privateRejected = 4
)

// The offsets of fields that InvalidParameter names.
const (
	OffsetRecFmt     = 40
	OffsetQID        = connectQID
	OffsetSQSize     = connectSQSize
	OffsetController = dataCntlid
	OffsetSubsystem  = dataSubsysNQN
	OffsetHost       = dataHostNQN
)

// ConnectCommand is what a Connect has in its entry (NVMe-oF 3.3).
type ConnectCommand struct {
	RecFmt        uint16
	QID           uint16
	SQSize        uint16 // the number of entries, less one
	NoFlowControl bool
	KATO          uint32 // keep alive timeout in milliseconds; 0: none
}

// Connect parses the fields of a Connect.
func (c Command) Connect() ConnectCommand {
	return ConnectCommand{le.Uint16(c[OffsetRecFmt:]), le.Uint16(c[connectQID:]), le.Uint16(c[connectSQSize:]), c[connectAttrs]&attrNoFlow != 0, le.Uint32(c[connectKATO:])}
}

// SetConnect makes a command a Connect.
func (c Command) SetConnect(k ConnectCommand) {
	c[0], c[4] = byte(Fabrics), byte(Connect)
	le.PutUint16(c[OffsetRecFmt:], k.RecFmt)
	le.PutUint16(c[connectQID:], k.QID)
	le.PutUint16(c[connectSQSize:], k.SQSize)
	if k.NoFlowControl {
		c[connectAttrs] |= attrNoFlow
	}
	le.PutUint32(c[connectKATO:], k.KATO)
}

// ConnectData are the data of a Connect.
type ConnectData struct {
	HostID       block.ID
	Controller   uint16
	SubsystemNQN string
	HostNQN      string
}

// ParseConnectData parses the data of a Connect. It fails with ErrFormat if they are too short, or a name is none.
func ParseConnectData(b []byte) (d ConnectData, err error) {
	if len(b) < ConnectDataLen {
		return d, short("Connect's data", len(b), ConnectDataLen)
	}
	d.HostID, d.Controller = block.ID(b[:16]), le.Uint16(b[dataCntlid:])
	if d.SubsystemNQN, err = parseNQN(b[dataSubsysNQN:][:nqnLen]); err == nil {
		d.HostNQN, err = parseNQN(b[dataHostNQN:][:nqnLen])
	}
	return d, err
}

// Append appends the data of a Connect.
func (d ConnectData) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, ConnectDataLen)...)
	copy(b[at:], d.HostID[:])
	le.PutUint16(b[at+dataCntlid:], d.Controller)
	copy(b[at+dataSubsysNQN:][:nqnLen-1], d.SubsystemNQN)
	copy(b[at+dataHostNQN:][:nqnLen-1], d.HostNQN)
	return b
}

func parseNQN(field []byte) (string, error) {
	n := bytes.IndexByte(field, 0)
	if n < 0 {
		return "", fmt.Errorf("a name that has no end: %w", ErrFormat)
	}
	s := string(field[:n])
	if err := CheckNQN(s); err != nil {
		return "", fmt.Errorf("%w: %w", err, ErrFormat)
	}
	return s, nil
}

// CheckNQN fails if a text is no NVMe Qualified Name (NVMe 7.9): "nqn.", year, month, a reversed domain and more. Of
// what stands behind the month it asks only that it is printable ASCII without blanks. The error is the reason.
func CheckNQN(s string) error {
	rest, ok := strings.CutPrefix(s, "nqn.")
	switch {
	case len(s) > MaxNQN:
		return fmt.Errorf("is longer than %d bytes", MaxNQN)
	case !ok, len(rest) < 9, rest[4] != '-', rest[7] != '.', strings.Trim(rest[:4]+rest[5:7], "0123456789") != "":
		return fmt.Errorf("is no NVMe qualified name, such as nqn.2026-01.org.example:disk")
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("has characters that are not printable ASCII, or blanks")
	}
	return nil
}

// Property is what PropertyGet and PropertySet have in their entries (NVMe-oF 3.4, 3.5).
type Property struct {
	Offset uint32
	Wide   bool   // 8 bytes
	Value  uint64 // of PropertySet
}

// Property parses the fields of a property command.
func (c Command) Property() Property {
	return Property{le.Uint32(c[44:]), c[40]&7 == 1, le.Uint64(c[48:])}
}

// SetProperty makes a command one on a property.
func (c Command) SetProperty(t FabricsType, p Property) {
	c[0], c[4] = byte(Fabrics), byte(t)
	if p.Wide {
		c[40] = 1
	}
	le.PutUint32(c[44:], p.Offset)
	le.PutUint64(c[48:], p.Value)
}

// ConnectRequest is the private data of a connection request over RDMA (NVMe-oF 7.3.6.2).
type ConnectRequest struct {
	RecFmt     uint16
	QID        uint16
	RecvQueue  uint16 // entries of the host's receive queue
	SendQueue  uint16 // entries of its send queue, less one
	Controller uint16 // of an I/O queue; older hosts leave 0
}

// ParseConnectRequest parses the private data. It fails with ErrFormat if they are too short.
func ParseConnectRequest(b []byte) (ConnectRequest, error) {
	if len(b) < privateLen {
		return ConnectRequest{}, short("the private data of a request", len(b), privateLen)
	}
	return ConnectRequest{le.Uint16(b), le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}, nil
}

// Append appends the private data.
func (r ConnectRequest) Append(b []byte) []byte {
	for _, v := range [...]uint16{r.RecFmt, r.QID, r.RecvQueue, r.SendQueue, r.Controller} {
		b = le.AppendUint16(b, v)
	}
	return append(b, make([]byte, privateLen-10)...)
}

// AppendConnectAccept appends the private data that accept a connection: how many receives the controller has.
func AppendConnectAccept(b []byte, recvQueue uint16) []byte {
	b = le.AppendUint16(b, 0)
	b = le.AppendUint16(b, recvQueue)
	return append(b, make([]byte, privateLen-4)...)
}

// Reject is why a connection is refused (NVMe-oF figure 64).
type Reject uint16

// The reasons.
const (
	RejectLength     Reject = 1
	RejectFormat     Reject = 2
	RejectQID        Reject = 3
	RejectHSQSize    Reject = 4
	RejectHRQSize    Reject = 5
	RejectResources  Reject = 6
	RejectController Reject = 8
)

// AppendConnectReject appends the private data that refuse a connection.
func AppendConnectReject(b []byte, why Reject) []byte {
	b = le.AppendUint16(b, 0)
	return le.AppendUint16(b, uint16(why))
}

// ParseConnectReject parses these. It fails with ErrFormat if they are too short.
func ParseConnectReject(b []byte) (Reject, error) {
	if len(b) < privateRejected {
		return 0, short("the private data of a refusal", len(b), privateRejected)
	}
	return Reject(le.Uint16(b[2:])), nil
}
