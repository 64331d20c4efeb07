package rdmap

import (
	"errors"
	"fmt"
	"io"

	"github.com/ironwarp/ironwarp/ddp"
)

// Error types of the RDMA layer (RFC 5040 section 4.8, Figure 9).
const (
	TypeLocalCatastrophic uint8 = 0
	TypeRemoteProtection  uint8 = 1
	TypeRemoteOperation   uint8 = 2
)

// Error codes of TypeRemoteProtection and TypeRemoteOperation (RFC 5040
// section 4.8, Figure 9).
const (
	CodeInvalidSTag        uint8 = 0x00
	CodeBounds             uint8 = 0x01
	CodeAccess             uint8 = 0x02
	CodeNotAssociated      uint8 = 0x03
	CodeTOWrap             uint8 = 0x04
	CodeInvalidVersion     uint8 = 0x05
	CodeUnexpectedOpcode   uint8 = 0x06
	CodeCatastrophicStream uint8 = 0x07
	CodeCatastrophicGlobal uint8 = 0x08
	CodeCannotInvalidate   uint8 = 0x09
	CodeUnspecified        uint8 = 0xff
)

// ErrClosed is returned by operations on an ended stream.
var ErrClosed = errors.New("rdmap: stream closed")

// ErrPeerClosed means that the peer ended the stream gracefully.
var ErrPeerClosed = fmt.Errorf("rdmap: the peer closed the stream: %w", io.EOF)

// ErrCutOff means that a graceful close was given up: for ten seconds the peer took
// nothing of what was queued, answered no request, or did not end the stream; or it took and answered next to nothing for many minutes.
var ErrCutOff = errors.New("rdmap: the peer was cut off, as it held up the close of the stream: what it has not acknowledged may be lost")

// ErrQueueFull is returned by Reserve when the send queue is at its maximum.
var ErrQueueFull = errors.New("rdmap: send queue full")

// LocalError means that the stream ended because an operation of our own send
// queue failed. The peer is sent a local catastrophic error (RFC 5040 section
// 4.8).
type LocalError struct{ Err error }

func (e *LocalError) Error() string {
	return "rdmap: a local operation in the send queue failed: " + e.Err.Error()
}

// Unwrap is the operation's error.
func (e *LocalError) Unwrap() error { return e.Err }

// ErrUnsupportedByPeer is matched by a *TerminateError with which the peer reports
// that it does not know Atomics or Immediate Data (RFC 7306); a stream's start-up does
// not show it in advance.
var ErrUnsupportedByPeer = errors.New("rdmap: the peer does not support Atomics or Immediate Data (RFC 7306)")

// TerminateError means that the peer ended the stream with a Terminate message
// (RFC 5040 section 4.8).
type TerminateError struct {
	Terminate   Terminate
	Fault       *ddp.Error // a fault in the message itself, or nil
	Unsupported bool       // the peer lacks an operation of RFC 7306 that we used
}

// Unwrap is Fault.
func (e *TerminateError) Unwrap() error {
	if e.Fault == nil {
		return nil
	}
	return e.Fault
}

// Is matches ErrUnsupportedByPeer.
func (e *TerminateError) Is(target error) bool {
	return target == ErrUnsupportedByPeer && e.Unsupported
}

func (e *TerminateError) Error() string {
	t := e.Terminate
	switch {
	case e.Fault != nil:
		return fmt.Sprintf("rdmap: peer terminated the stream with a message that is at fault: %v", e.Fault)
	case e.Unsupported:
		return fmt.Sprintf("rdmap: peer terminated the stream: unexpected opcode: %v", ErrUnsupportedByPeer)
	}
	return fmt.Sprintf("rdmap: peer terminated the stream: %s error %d.%#02x (%s)", t.Layer, t.Type, t.Code, describe(t))
}

// describe names the error codes of RFC 5040 Figure 9 and RFC 5041 section 7.2.
func describe(t Terminate) string {
	key := [3]uint8{uint8(t.Layer), t.Type, t.Code}
	switch {
	case t.Layer == ddp.LayerRDMA && t.Type == TypeLocalCatastrophic, t.Layer == ddp.LayerDDP && t.Type == ddp.TypeLocalCatastrophic:
		return "local catastrophic error"
	case t.Layer == ddp.LayerRDMA && t.Code == CodeUnspecified:
		return "unspecified error"
	}
	if s, ok := codeNames[key]; ok {
		return s
	}
	return "unknown code"
}

var codeNames = map[[3]uint8]string{
	{0, 1, CodeInvalidSTag}:           "invalid STag",
	{0, 1, CodeBounds}:                "base or bounds violation",
	{0, 1, CodeAccess}:                "access rights violation",
	{0, 1, CodeNotAssociated}:         "STag not associated with the stream",
	{0, 1, CodeTOWrap}:                "tagged offset wraps",
	{0, 1, CodeCannotInvalidate}:      "STag cannot be invalidated",
	{0, 2, CodeInvalidVersion}:        "invalid RDMAP version",
	{0, 2, CodeUnexpectedOpcode}:      "unexpected opcode",
	{0, 2, CodeCatastrophicStream}:    "catastrophic error of the stream",
	{0, 2, CodeCatastrophicGlobal}:    "catastrophic error, global",
	{0, 2, CodeCannotInvalidate}:      "STag cannot be invalidated",
	{1, 1, ddp.CodeTaggedInvalidSTag}: "invalid STag", {1, 1, ddp.CodeTaggedBounds}: "base or bounds violation",
	{1, 1, ddp.CodeTaggedNotAssociated}: "STag not associated with the stream", {1, 1, ddp.CodeTaggedTOWrap}: "tagged offset wraps",
	{1, 1, ddp.CodeTaggedInvalidVersion}: "invalid DDP version",
	{1, 2, ddp.CodeUntaggedInvalidQN}:    "invalid queue number", {1, 2, ddp.CodeUntaggedNoBuffer}: "no receive buffer posted",
	{1, 2, ddp.CodeUntaggedMSNRange}: "message sequence number out of range", {1, 2, ddp.CodeUntaggedInvalidMO}: "invalid message offset",
	{1, 2, ddp.CodeUntaggedTooLong}: "message too long for the receive buffer", {1, 2, ddp.CodeUntaggedInvalidVersion}: "invalid DDP version",
	{2, 0, 1}: "TCP connection lost", {2, 0, 2}: "MPA CRC error", {2, 0, 3}: "MPA marker and length mismatch",
}
