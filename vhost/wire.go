package vhost

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/block"
)

// Integers of the protocol are the host's, those of virtio little-endian: all hosts that this
// runs on are little-endian.
var le = binary.LittleEndian

// kind is the kind of a message.
type kind uint32

const (
	getFeatures         kind = 1
	setFeatures         kind = 2
	setOwner            kind = 3
	resetOwner          kind = 4
	setMemTable         kind = 5
	setVringNum         kind = 8
	setVringAddr        kind = 9
	setVringBase        kind = 10
	getVringBase        kind = 11
	setVringKick        kind = 12
	setVringCall        kind = 13
	setVringErr         kind = 14
	getProtocolFeatures kind = 15
	setProtocolFeatures kind = 16
	getQueueNum         kind = 17
	setVringEnable      kind = 18
	setBackendReqFD     kind = 21
	getConfig           kind = 24
	setConfig           kind = 25
	getInflightFD       kind = 31
	setInflightFD       kind = 32
	resetDevice         kind = 34
	getMaxMemSlots      kind = 36
	addMemReg           kind = 37
	remMemReg           kind = 38
)

// configChange is the one message that the back end begins with.
const configChange kind = 2

var kinds = map[kind]struct {
	name     string
	min, max int // bytes of its payload
	fds      int // the most that come with it
}{
	getFeatures: {"GET_FEATURES", 0, 0, 0}, setFeatures: {"SET_FEATURES", 8, 8, 0},
	setOwner: {"SET_OWNER", 0, 0, 0}, resetOwner: {"RESET_OWNER", 0, 0, 0},
	setMemTable:  {"SET_MEM_TABLE", 8, 8 + maxTable*regionLen, maxTable},
	setVringNum:  {"SET_VRING_NUM", 8, 8, 0},
	setVringAddr: {"SET_VRING_ADDR", 40, 40, 0},
	setVringBase: {"SET_VRING_BASE", 8, 8, 0}, getVringBase: {"GET_VRING_BASE", 8, 8, 0},
	setVringKick: {"SET_VRING_KICK", 8, 8, 1}, setVringCall: {"SET_VRING_CALL", 8, 8, 1}, setVringErr: {"SET_VRING_ERR", 8, 8, 1},
	getProtocolFeatures: {"GET_PROTOCOL_FEATURES", 0, 0, 0}, setProtocolFeatures: {"SET_PROTOCOL_FEATURES", 8, 8, 0},
	getQueueNum: {"GET_QUEUE_NUM", 0, 0, 0}, setVringEnable: {"SET_VRING_ENABLE", 8, 8, 0},
	setBackendReqFD: {"SET_BACKEND_REQ_FD", 0, 8, 1},
	getConfig:       {"GET_CONFIG", configHdrLen, configHdrLen + maxConfig, 0}, setConfig: {"SET_CONFIG", configHdrLen, configHdrLen + maxConfig, 0},
	getInflightFD: {"GET_INFLIGHT_FD", inflightLen, inflightLen + 4, 0}, setInflightFD: {"SET_INFLIGHT_FD", inflightLen, inflightLen + 4, 1},
	resetDevice: {"RESET_DEVICE", 0, 0, 0}, getMaxMemSlots: {"GET_MAX_MEM_SLOTS", 0, 8, 0},
	addMemReg: {"ADD_MEM_REG", 8 + regionLen, 8 + regionLen, 1}, remMemReg: {"REM_MEM_REG", 8 + regionLen, 8 + regionLen, 1},
}

func (k kind) String() string {
	if i, ok := kinds[k]; ok {
		return i.name
	}
	return fmt.Sprintf("message %d", uint32(k))
}

const (
	headerLen    = 12
	regionLen    = 32
	configHdrLen = 12
	inflightLen  = 20

	flagVersion   = 1
	versionMask   = 3
	flagReply     = 1 << 2
	flagNeedReply = 1 << 3
)

// errWire matches the errors of messages that break the protocol.
var errWire = errors.New("vhost: the front end breaks the protocol")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errWire, fmt.Sprintf(format, args...))
}

// header begins each message.
type header struct {
	kind  kind
	flags uint32
	size  int // of the payload, in bytes
}

// parseHeader parses the first headerLen bytes of a message. It fails for another version,
// for what the protocol does not know, and for a payload that is too short or too long for
// its kind.
func parseHeader(b []byte) (h header, err error) {
	h.kind, h.flags = kind(le.Uint32(b)), le.Uint32(b[4:])
	size := le.Uint32(b[8:])
	i, ok := kinds[h.kind]
	switch {
	case h.flags&versionMask != flagVersion:
		return h, broken("%v has version %d of the protocol, not 1", h.kind, h.flags&versionMask)
	case !ok:
		return h, broken("%v is unknown, or was not negotiated", h.kind)
	case h.flags&flagReply != 0:
		return h, broken("%v is marked as a reply", h.kind)
	case size < uint32(i.min) || size > uint32(i.max):
		return h, broken("%v has a payload of %d bytes, not of %d to %d", h.kind, size, i.min, i.max)
	}
	h.size = int(size)
	return h, nil
}

// appendHeader appends the header of a message with a payload of size bytes.
func appendHeader(b []byte, k kind, flags uint32, size int) []byte {
	b = le.AppendUint32(b, uint32(k))
	b = le.AppendUint32(b, flagVersion|flags)
	return le.AppendUint32(b, uint32(size))
}

// vringState is a number that belongs to a ring.
type vringState struct{ index, num uint32 }

func parseVringState(p []byte) vringState { return vringState{le.Uint32(p), le.Uint32(p[4:])} }

// vringAddr is where the parts of a ring are, in the front end's addresses.
type vringAddr struct {
	index, flags      uint32
	desc, used, avail uint64
}

func parseVringAddr(p []byte) vringAddr {
	return vringAddr{le.Uint32(p), le.Uint32(p[4:]), le.Uint64(p[8:]), le.Uint64(p[16:]), le.Uint64(p[24:])}
}

// regionInfo is where a region of the front end's memory is: in the guest, in the front end, and
// in its file.
type regionInfo struct{ guest, size, user, offset uint64 }

func parseRegionInfo(p []byte) regionInfo {
	return regionInfo{le.Uint64(p), le.Uint64(p[8:]), le.Uint64(p[16:]), le.Uint64(p[24:])}
}

// parseMemTable parses the regions of SET_MEM_TABLE, which come with a descriptor each. It
// fails for another number of them.
func parseMemTable(p []byte, fds int) (all []regionInfo, err error) {
	n := le.Uint32(p)
	if n > maxTable || len(p) != 8+int(n)*regionLen || int(n) != fds {
		return nil, broken("SET_MEM_TABLE of %d bytes has %d regions and %d descriptors", len(p), n, fds)
	}
	for p = p[8:]; len(p) > 0; p = p[regionLen:] {
		all = append(all, parseRegionInfo(p))
	}
	return all, nil
}

// configAccess is the part of the device's configuration that a message is about.
type configAccess struct {
	offset, size, flags uint32
	data                []byte
}

// parseConfig fails for a length that is not the payload's.
func parseConfig(p []byte) (c configAccess, err error) {
	c = configAccess{le.Uint32(p), le.Uint32(p[4:]), le.Uint32(p[8:]), p[configHdrLen:]}
	if c.offset > maxConfig || c.size > maxConfig-c.offset || int(c.size) != len(c.data) {
		return c, broken("a message of %d bytes is about the configuration's bytes %d to %d of %d", len(p), c.offset, uint64(c.offset)+uint64(c.size), maxConfig)
	}
	return c, nil
}

// inflight describes the memory in which requests under way are tracked.
type inflight struct {
	size, offset uint64
	queues, num  uint16
}

func parseInflight(p []byte) inflight {
	return inflight{le.Uint64(p), le.Uint64(p[8:]), le.Uint16(p[16:]), le.Uint16(p[18:])}
}

// put writes the description over the beginning of a message's payload.
func (i inflight) put(p []byte) {
	le.PutUint64(p, i.size)
	le.PutUint64(p[8:], i.offset)
	le.PutUint16(p[16:], i.queues)
	le.PutUint16(p[18:], i.num)
}

// Features of the device and its rings.
const (
	featureSegMax      = 1 << 2
	featureReadOnly    = 1 << 5
	featureBlockSize   = 1 << 6
	featureFlush       = 1 << 9
	featureTopology    = 1 << 10
	featureConfigWCE   = 1 << 11
	featureMultiQueue  = 1 << 12
	featureDiscard     = 1 << 13
	featureWriteZeroes = 1 << 14
	featureIndirect    = 1 << 28
	featureEventIndex  = 1 << 29
	featureProtocol    = 1 << 30 // of vhost-user
	featureVersion1    = 1 << 32
	featurePacked      = 1 << 34
)

// Features of vhost-user.
const (
	protoMultiQueue  = 1 << 0
	protoReplyAck    = 1 << 3
	protoBackendReq  = 1 << 5
	protoConfig      = 1 << 9
	protoInflight    = 1 << 12
	protoResetDevice = 1 << 13
	protoMemSlots    = 1 << 15

	protoFeatures = protoMultiQueue | protoReplyAck | protoBackendReq | protoConfig | protoInflight | protoResetDevice | protoMemSlots
)

// featuresOf returns the features of a disk.
func featuresOf(g *block.Geometry) uint64 {
	f := uint64(featureSegMax | featureBlockSize | featureTopology | featureMultiQueue | featureIndirect | featureEventIndex | featureProtocol | featureVersion1 | featurePacked)
	set := func(on bool, bits uint64) {
		if on {
			f |= bits
		}
	}
	set(g.ReadOnly, featureReadOnly)
	set(g.CanFlush, featureFlush)
	set(g.CanFlush && g.CanFUA, featureConfigWCE)
	set(g.CanTrim && !g.ReadOnly, featureDiscard)
	set(g.CanWriteZeroes && !g.ReadOnly, featureWriteZeroes)
	return f
}

// wceOffset is where the configuration has whether completed writes may be lost.
const wceOffset = 32

// configSpace returns the configuration of a disk, of maxConfig bytes (virtio 1.2 section 5.2.4).
func configSpace(g *block.Geometry, writeBack bool) []byte {
	b := make([]byte, maxConfig)
	le.PutUint64(b, g.Size/sectorSize)
	le.PutUint32(b[12:], maxSegments)
	blk := max(g.MinBlock, sectorSize)
	le.PutUint32(b[20:], blk)
	preferred := max(g.PreferredBlock, blk)
	if g.PreferredBlock == 0 {
		preferred = max(4096, blk)
	}
	for exp := blk; exp < preferred && b[24] < 16; exp *= 2 {
		b[24]++
	}
	if writeBack {
		b[wceOffset] = 1
	}
	le.PutUint16(b[34:], maxQueues)
	if g.CanTrim {
		le.PutUint32(b[36:], maxRange/sectorSize)
		le.PutUint32(b[40:], 1)
		le.PutUint32(b[44:], blk/sectorSize)
	}
	if g.CanWriteZeroes {
		le.PutUint32(b[48:], maxRange/sectorSize)
		le.PutUint32(b[52:], 1)
		b[56] = 1
	}
	return b
}

// Requests of virtio-blk, and their results (virtio 1.2 section 5.2.6).
const (
	blkIn          = 0
	blkOut         = 1
	blkFlush       = 4
	blkGetID       = 8
	blkDiscard     = 11
	blkWriteZeroes = 13

	blkOK          = 0
	blkIOError     = 1
	blkUnsupported = 2

	blkHdrLen   = 16
	blkIDLen    = 20
	blkRangeLen = 16

	rangeUnmap = 1
)

// blkHeader begins each request.
type blkHeader struct {
	typ    uint32
	sector uint64
}

func parseBlkHeader(b []byte) blkHeader { return blkHeader{le.Uint32(b), le.Uint64(b[8:])} }

// blkRange is what DISCARD and WRITE_ZEROES are about.
type blkRange struct {
	sector         uint64
	sectors, flags uint32
}

func parseBlkRange(b []byte) blkRange {
	return blkRange{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
}

// desc is a descriptor. In a packed ring next is the buffer's id, and stands before the
// flags.
type desc struct {
	addr        uint64
	len         uint32
	flags, next uint16
}

const (
	descLen = 16

	descNext     = 1 << 0
	descWrite    = 1 << 1
	descIndirect = 1 << 2
	descAvail    = 1 << 7  // packed
	descUsed     = 1 << 15 // packed
)

func parseDesc(b []byte) desc {
	return desc{addr: le.Uint64(b), len: le.Uint32(b[8:]), flags: le.Uint16(b[12:]), next: le.Uint16(b[14:])}
}
