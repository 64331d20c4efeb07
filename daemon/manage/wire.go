package manage

import (
	"errors"
	"fmt"
)

// magic begins the private data of a request for a stream, and of its answer.
const magic = "IWmg"

// version is behind magic; in a refusal its reason is behind that.
const version = 1

// Reasons of a refusal.
const (
	refusedVersion = 1 + iota // another version of this protocol
	refusedBusy               // too much is being carried out
	refusedPeer               // the peer may manage nothing
)

// IsRequest reports whether private data ask for a stream.
func IsRequest(private []byte) bool {
	return len(private) > len(magic) && string(private[:len(magic)]) == magic
}

func isHello(private []byte) bool { return IsRequest(private) && private[len(magic)] == version }

func appendHello(b []byte) []byte { return append(append(b, magic...), version) }

func appendRefusal(b []byte, reason byte) []byte { return append(appendHello(b), reason) }

// refusalText is what a refusal means.
func refusalText(private []byte) string {
	if !IsRequest(private) || len(private) < len(magic)+2 {
		return "the peer has no management of volumes: its ironwarp is older than this one, or it has no pools"
	}
	switch private[len(magic)+1] {
	case refusedVersion:
		return fmt.Sprintf("the peer has version %d of the management of volumes, this host %d", private[len(magic)], version)
	case refusedBusy:
		return "the peer is busy with other requests of this host"
	case refusedPeer:
		return "the peer does not let this host manage any of its pools"
	}
	return "the peer refuses this host's request"
}

// Kinds of messages.
const (
	kindRequest = 1 + iota
	kindAnswer
	kindMore // the next message of an answer may be sent
)

const (
	// headerLen is the length of a message's header in bytes: its kind, its flags, and two zeroes.
	headerLen  = 4
	messageLen = headerLen + chunk

	flagLast = 1 // no message of this kind follows
)

// errMessage is wrapped by faults of a peer's messages.
var errMessage = errors.New("the peer's message is none of the management of volumes")

// appendMessage appends a message.
func appendMessage(b []byte, kind byte, last bool, payload []byte) []byte {
	var flags byte
	if last {
		flags = flagLast
	}
	return append(append(b, kind, flags, 0, 0), payload...)
}

// parseMessage parses a message of a kind. The payload is part of it.
func parseMessage(m []byte, kind byte) (payload []byte, last bool, err error) {
	switch {
	case len(m) < headerLen || len(m) > messageLen:
		return nil, false, fmt.Errorf("%w: it has %d bytes", errMessage, len(m))
	case m[0] != kind:
		return nil, false, fmt.Errorf("%w: its kind is %d, in place of %d", errMessage, m[0], kind)
	case m[1]&^flagLast != 0 || m[2] != 0 || m[3] != 0:
		return nil, false, fmt.Errorf("%w: its flags are %#x", errMessage, m[1:headerLen])
	}
	return m[headerLen:], m[1] == flagLast, nil
}
