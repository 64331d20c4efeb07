package ksctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	lksctp "github.com/ishidawataru/sctp"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// notification is a notification of the kernel (RFC 6458 section 6.1), as read.
type notification []byte

// The subscribed notifications.
const (
	noteAssocChange     = uint16(lksctp.SCTP_ASSOC_CHANGE)
	notePathChange      = uint16(lksctp.SCTP_PEER_ADDR_CHANGE)
	noteRemoteError     = uint16(lksctp.SCTP_REMOTE_ERROR)
	noteShutdown        = uint16(lksctp.SCTP_SHUTDOWN_EVENT)
	notePartialDelivery = uint16(lksctp.SCTP_PARTIAL_DELIVERY_EVENT)
	noteAdaptation      = uint16(lksctp.SCTP_ADAPTATION_INDICATION)
	noteSenderDry       = uint16(lksctp.SCTP_SENDER_DRY_EVENT)
)

var errShort = errors.New("a notification is shorter than its kind")

// kind returns sn_type, 0 if the notification is too short to have one.
func (n notification) kind() uint16 {
	if len(n) < 8 {
		return 0
	}
	return native.Uint16(n)
}

// The states of an association in SCTP_ASSOC_CHANGE.
const (
	commUp = iota
	commLost
	restart
	shutdownComplete
	cannotStart
)

// assocChange is struct sctp_assoc_change.
type assocChange struct {
	state   uint16
	cause   assoc.CauseCode
	out, in uint16
	info    []byte // error causes of a received ABORT
}

func (n notification) assocChange() (c assocChange, err error) {
	if len(n) < 20 {
		return c, fmt.Errorf("association change: %w", errShort)
	}
	return assocChange{
		state: native.Uint16(n[8:]),
		cause: assoc.CauseCode(binary.BigEndian.Uint16(n[10:])),
		out:   native.Uint16(n[12:]),
		in:    native.Uint16(n[14:]),
		info:  n[20:],
	}, nil
}

// abortCause returns the cause of the peer's ABORT.
func (c assocChange) abortCause() assoc.Cause {
	k := assoc.Cause{Code: c.cause}
	if len(c.info) < 4 {
		return k
	}
	k.Code = assoc.CauseCode(binary.BigEndian.Uint16(c.info))
	n := int(binary.BigEndian.Uint16(c.info[2:]))
	if n > 4 && n <= len(c.info) {
		k.Info = append([]byte(nil), c.info[4:min(n, 4+assoc.MaxCauseInfo)]...)
	}
	return k
}

// The changes of a path in SCTP_PEER_ADDR_CHANGE.
const (
	pathAvailable   = 0
	pathUnreachable = 1
	pathAdded       = 3
	pathConfirmed   = 5
)

// pathChange parses struct sctp_paddr_change.
func (n notification) pathChange() (addr netip.AddrPort, state uint32, err error) {
	if len(n) < 148 {
		return addr, 0, fmt.Errorf("path change: %w", errShort)
	}
	addr, err = sockaddr(n[8 : 8+sockaddrStorage])
	return addr, native.Uint32(n[136:]), err
}

// remoteError parses struct sctp_remote_error: the cause of an ERROR chunk.
func (n notification) remoteError() (assoc.Cause, error) {
	if len(n) < 16 {
		return assoc.Cause{}, fmt.Errorf("remote error: %w", errShort)
	}
	k := assoc.Cause{Code: assoc.CauseCode(binary.BigEndian.Uint16(n[8:]))}
	if info := n[16:]; len(info) > 0 {
		k.Info = append([]byte(nil), info[:min(len(info), assoc.MaxCauseInfo)]...)
	}
	return k, nil
}

// adaptation parses struct sctp_adaptation_event.
func (n notification) adaptation() (uint32, error) {
	if len(n) < 12 {
		return 0, fmt.Errorf("adaptation indication: %w", errShort)
	}
	return native.Uint32(n[8:]), nil
}
