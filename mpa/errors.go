package mpa

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// Error type and codes of the LLP layer in a Terminate message (RFC 5044
// section 8, RFC 6581 section 8).
const (
	TypeMPA uint8 = 0

	CodeConnectionLost uint8 = 0x01 // closed, reset or timed out
	CodeCRC            uint8 = 0x02 // received CRC differs from the calculated one
	CodeMarker         uint8 = 0x03 // marker and ULPDU length disagree
	CodeStartup        uint8 = 0x04 // invalid request or reply frame
	CodeLocal          uint8 = 0x05 // local catastrophic, see LocalFault
	CodeIRD                  = enhanced.CodeIRD
	CodeRTR                  = enhanced.CodeRTR
)

var (
	// ErrConnectionLost matches an end of the connection where it must not end,
	// by FIN, RST or timeout, in start-up as well.
	ErrConnectionLost error = &ddp.Error{Layer: ddp.LayerLLP, Type: TypeMPA, Code: CodeConnectionLost}

	// ErrCRC matches an FPDU whose CRC is wrong.
	ErrCRC error = &ddp.Error{Layer: ddp.LayerLLP, Type: TypeMPA, Code: CodeCRC}

	// ErrMarker matches a marker that does not point to its FPDU.
	ErrMarker error = &ddp.Error{Layer: ddp.LayerLLP, Type: TypeMPA, Code: CodeMarker}

	// ErrStartup matches an invalid request or reply frame.
	ErrStartup error = &ddp.Error{Layer: ddp.LayerLLP, Type: TypeMPA, Code: CodeStartup}

	// ErrNoFPDU is returned by a responder's Flush when the initiator has sent no
	// FPDU within Config.HoldTimeout, or has ended its direction without one:
	// until then a responder must not send (RFC 5044 section 7.1.2 rule 4).
	ErrNoFPDU = errors.New("mpa: cannot send: the initiator, which has to send the first FPDU (RFC 5044 section 7.1.2), has sent none; have it send first, or ask for the peer-to-peer model (RFC 6581 section 9.2)")

	// ErrTooLong is returned for a segment that no FPDU may carry (RFC 5044
	// section 3).
	ErrTooLong = errors.New("mpa: segment exceeds 64768 bytes: keep to MULPDU")

	// ErrPrivateData is returned for private data that does not fit a start-up
	// frame.
	ErrPrivateData = errors.New("mpa: private data does not fit the start-up frame")
)

func fault(code uint8, format string, args ...any) *ddp.Error {
	return &ddp.Error{Layer: ddp.LayerLLP, Type: TypeMPA, Code: code, Text: fmt.Sprintf(format, args...)}
}

// LocalFault is for the Terminate message of an end that meets an error of its
// own right after start-up, for which there is no other code (RFC 6581 section
// 9.3). err is not sent to the peer.
func LocalFault(err error) *ddp.Error {
	return fault(CodeLocal, "the stream cannot be set up: %v", err)
}

// lost is the error of a connection that ends where it must not end. It
// matches both the *ddp.Error with CodeConnectionLost and the cause.
func lost(what string, cause error) error {
	if cause == io.EOF {
		cause = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", fault(CodeConnectionLost, "connection lost %s", what), cause)
}

// startupFailed wraps the error that ended a step of the start-up. The end of the
// connection becomes ErrConnectionLost; deadlines, and a connection that was
// closed here, stay what they are.
func startupFailed(step string, err error) error {
	var f *ddp.Error
	if errors.As(err, &f) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("mpa: %s: %w", step, err)
	}
	return fmt.Errorf("mpa: %s: %w", step, lost("in start-up", err))
}

// RejectedError is returned by Client when the responder's ULP refused
// (RFC 5044 section 7.1.2 rule 3). The connection stays open for the caller
// to use or close.
type RejectedError struct {
	PrivateData []byte // the peer's
	Revision    uint8
	IRD, ORD    uint16 // what the peer would accept, enhanced.DepthULP if it did not say
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("mpa: the peer rejected the connection (revision %d, %d bytes of private data)", e.Revision, len(e.PrivateData))
}

// NegotiationError is returned by Client when the responder accepted with
// parameters that this side cannot meet (RFC 6581 sections 9.1 and 9.2). The
// caller has to send Err in a Terminate message through Conn before closing it.
type NegotiationError struct {
	Err  *ddp.Error
	Conn *Conn
}

func (e *NegotiationError) Error() string { return "mpa: start-up: " + e.Err.Error() }

// Unwrap returns the *ddp.Error.
func (e *NegotiationError) Unwrap() error { return e.Err }

// noReplyError means that the peer hung up on an enhanced request.
type noReplyError struct{ err error }

func (e *noReplyError) Error() string {
	return "mpa: the peer closed the connection on the MPA request (a peer that knows only revision 1 does so; " +
		"a new connection with Config.Revision 1 may succeed): " + e.err.Error()
}

func (e *noReplyError) Unwrap() error { return e.err }

// RetryRevision1 reports whether err, from Client, looks like a responder that
// knows only revision 1: it closed the connection on an enhanced request, or
// rejected it with a frame of revision 1. The caller may then dial again with
// Config.Revision 1 (RFC 6581 section 10).
func RetryRevision1(err error) bool {
	var n *noReplyError
	if errors.As(err, &n) {
		return true
	}
	var r *RejectedError
	return errors.As(err, &r) && r.Revision == 1
}
