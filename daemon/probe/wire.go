package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Magic starts the private data of the service.
const Magic = "IWpg"

const (
	version    = 1
	requestLen = 8
	answerLen  = 20
	refusalLen = 8
	ackLen     = 5

	// askHello is the kind of a request that only asks for the carriers.
	askHello = 1

	tagEcho = 'E'
	tagSink = 'S'
	tagAck  = 'A'
)

// Reasons of a refusal.
const (
	refusedBusy    = 1
	refusedVersion = 2
	refusedUnknown = 3
	// saidHello is no refusal: the answer to a hello.
	saidHello      = 4
	refusedDrained = 5
)

var errMalformed = errors.New("malformed private data")

// IsRequest reports whether private data is for this service.
func IsRequest(private []byte) bool {
	return len(private) >= len(Magic) && string(private[:len(Magic)]) == Magic
}

func appendRequest(b []byte) []byte { return append(append(b, Magic...), version, 0, 0, 0) }

// parseRequest returns the reason to refuse a request, 0 for none.
func parseRequest(b []byte) (refusal uint8) {
	if len(b) < requestLen || b[4] != version {
		return refusedVersion
	}
	return 0
}

// offer is the server's answer.
type offer struct {
	Window     uint16
	MaxMessage uint32
	STag       uint32
	Length     uint32
}

func (o offer) Append(b []byte) []byte {
	b = append(append(b, Magic...), version, 0)
	b = binary.BigEndian.AppendUint16(b, o.Window)
	b = binary.BigEndian.AppendUint32(b, o.MaxMessage)
	b = binary.BigEndian.AppendUint32(b, o.STag)
	return binary.BigEndian.AppendUint32(b, o.Length)
}

func (o *offer) Parse(b []byte) error {
	if len(b) < answerLen || !IsRequest(b) || b[4] != version {
		return errMalformed
	}
	*o = offer{
		Window:     binary.BigEndian.Uint16(b[6:]),
		MaxMessage: binary.BigEndian.Uint32(b[8:]),
		STag:       binary.BigEndian.Uint32(b[12:]),
		Length:     binary.BigEndian.Uint32(b[16:]),
	}
	if o.Window == 0 || o.MaxMessage == 0 || o.Length == 0 {
		return errMalformed
	}
	return nil
}

func appendRefusal(b []byte, reason uint8) []byte {
	return append(append(b, Magic...), version, reason, 0, 0)
}

// refusalText is why the peer refused.
func refusalText(b []byte) string {
	if len(b) < refusalLen || !IsRequest(b) {
		return "the peer refused the stream without a reason: does ironwarp run there, in the same version?"
	}
	switch b[5] {
	case refusedBusy:
		return "the peer's ping service has as many clients as it allows; try again in a moment"
	case refusedVersion:
		return "the peer's ping service speaks another version; install the same release on both hosts"
	case refusedUnknown:
		return "the peer does not know this host; run `ironwarp peer ls` there and compare addresses and identities"
	case refusedDrained:
		return "a manager of its fabric has drained the peer, so it takes no new streams; `ironwarp fabric drain --off` on the fabric's master ends that"
	}
	return fmt.Sprintf("the peer refused the stream with reason %d; install the same release on both hosts", b[5])
}

func appendAck(b []byte, count uint32) []byte {
	return binary.BigEndian.AppendUint32(append(b, tagAck), count)
}

func parseAck(b []byte) (count uint32, ok bool) {
	if len(b) != ackLen || b[0] != tagAck {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[1:]), true
}

// AppendUnknownPeer appends the refusal for a peer that is not configured.
func AppendUnknownPeer(b []byte) []byte { return appendRefusal(b, refusedUnknown) }

// AppendDrained appends the refusal of a host that takes no new streams.
func AppendDrained(b []byte) []byte { return appendRefusal(b, refusedDrained) }
