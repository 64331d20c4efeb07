package device

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The generic netlink family of Linux' nbd driver (linux/nbd-netlink.h).
const (
	familyName    = "nbd"
	familyVersion = 1
)

// Commands.
const (
	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3
	cmdStatus      = 5
)

// Attributes of a message.
const (
	attrIndex             = 1  // u32
	attrSizeBytes         = 2  // u64
	attrBlockSizeBytes    = 3  // u64
	attrTimeout           = 4  // u64, seconds
	attrServerFlags       = 5  // u64, transmission flags of NBD
	attrSockets           = 7  // nested
	attrDeadConnTimeout   = 8  // u64, seconds
	attrDeviceList        = 9  // nested
	attrBackendIdentifier = 10 // string
)

// Attributes within attrSockets and attrDeviceList, and within their items.
const (
	attrItem      = 1
	attrSocketFD  = 1 // u32
	attrItemIndex = 1 // u32
	attrConnected = 2 // u8
)

const (
	genlHeaderLen = 4
	attrHeaderLen = 4
	attrTypeMask  = 0x3fff // the rest are NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

var errMalformed = errors.New("the kernel's answer is malformed")

// request has the attributes of a command. What is 0 or empty is left out, and keeps its
// value where a device has one.
type request struct {
	index     *uint32  // nil: the kernel chooses
	size      uint64   // bytes
	blockSize uint64   // bytes
	timeout   uint64   // seconds
	flags     uint64   // transmission flags
	sockets   []uint32 // file descriptors
	dead      uint64   // seconds
	backend   string
}

func (r *request) append(b []byte) []byte {
	if r.index != nil {
		b = appendU32(b, attrIndex, *r.index)
	}
	for _, a := range []struct {
		typ   uint16
		value uint64
	}{{attrSizeBytes, r.size}, {attrBlockSizeBytes, r.blockSize}, {attrTimeout, r.timeout}, {attrServerFlags, r.flags},
		{attrDeadConnTimeout, r.dead}} {
		if a.value != 0 {
			b = appendAttr(b, a.typ, binary.NativeEndian.AppendUint64(nil, a.value))
		}
	}
	if len(r.sockets) > 0 {
		var items []byte
		for _, fd := range r.sockets {
			items = appendAttr(items, attrItem, appendU32(nil, attrSocketFD, fd))
		}
		b = appendAttr(b, attrSockets, items)
	}
	if r.backend != "" {
		b = appendAttr(b, attrBackendIdentifier, append([]byte(r.backend), 0))
	}
	return b
}

func appendU32(b []byte, typ uint16, v uint32) []byte {
	return appendAttr(b, typ, binary.NativeEndian.AppendUint32(nil, v))
}

// appendAttr appends an attribute, padded to four bytes (struct nlattr of linux/netlink.h).
func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeaderLen+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, padding(len(value)))...)
}

func padding(n int) int { return -n & 3 }

// eachAttr calls f with the attributes of b, and ends with its error. It fails with
// errMalformed.
func eachAttr(b []byte, f func(typ uint16, value []byte) error) error {
	for len(b) > 0 {
		if len(b) < attrHeaderLen {
			return errMalformed
		}
		n := int(binary.NativeEndian.Uint16(b))
		typ := binary.NativeEndian.Uint16(b[2:]) & attrTypeMask
		if n < attrHeaderLen || n > len(b) {
			return errMalformed
		}
		if err := f(typ, b[attrHeaderLen:n]); err != nil {
			return err
		}
		b = b[min(n+padding(n), len(b)):]
	}
	return nil
}

// parseU32 is the value of an attribute of four bytes.
func parseU32(value []byte) (uint32, error) {
	if len(value) != 4 {
		return 0, errMalformed
	}
	return binary.NativeEndian.Uint32(value), nil
}

// parseConnected reads the answer to cmdConnect: the device's index.
func parseConnected(msg []byte) (index uint32, err error) {
	found := false
	err = eachReply(msg, cmdConnect, func(typ uint16, value []byte) (err error) {
		if typ == attrIndex {
			found = true
			index, err = parseU32(value)
		}
		return err
	})
	if err == nil && !found {
		err = errMalformed
	}
	return index, err
}

// status is a device in the answer to cmdStatus.
type status struct {
	index     uint32
	connected bool
}

func parseStatus(msg []byte) (list []status, err error) {
	err = eachReply(msg, cmdStatus, func(typ uint16, value []byte) error {
		if typ != attrDeviceList {
			return nil
		}
		return eachAttr(value, func(typ uint16, item []byte) error {
			if typ != attrItem {
				return nil
			}
			var s status
			if err := eachAttr(item, func(typ uint16, value []byte) (err error) {
				switch {
				case typ == attrItemIndex:
					s.index, err = parseU32(value)
				case typ == attrConnected && len(value) != 1:
					err = errMalformed
				case typ == attrConnected:
					s.connected = value[0] != 0
				}
				return err
			}); err != nil {
				return err
			}
			list = append(list, s)
			return nil
		})
	})
	return list, err
}

// eachReply calls f with the attributes of an answer to a command.
func eachReply(msg []byte, cmd uint8, f func(typ uint16, value []byte) error) error {
	if len(msg) < genlHeaderLen {
		return errMalformed
	}
	if msg[0] != cmd {
		return fmt.Errorf("the kernel answers command %d with one to %d", cmd, msg[0])
	}
	return eachAttr(msg[genlHeaderLen:], f)
}
