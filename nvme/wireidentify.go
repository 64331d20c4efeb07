package nvme

import (
	"github.com/ironwarp/ironwarp/block"
)

// IdentifyController is the structure of a controller (NVMe figure 247), as far as this project fills it.
type IdentifyController struct {
	Serial, Model, Firmware string
	Shared                  bool // CMIC: the subsystem may have several controllers
	MDTS                    uint8
	Controller              uint16
	AsyncEvents             uint32 // OAES
	Attributes              uint32 // CTRATT
	Discovery               bool   // CNTRLTYPE
	AbortLimit, EventLimit  uint8  // less one
	LogAttributes           uint8  // LPA
	ErrorEntries            uint8  // ELPE, less one
	KeepAliveUnits          uint16 // KAS, of 100 ms
	MaxCommands             uint16
	Namespaces              uint32 // NN
	Optional                uint16 // ONCS
	WriteCache              bool   // VWC
	SGLs                    uint32
	SubsystemNQN            string
	CommandCapsule          uint32 // IOCCSZ in bytes
	MaxDescriptors          uint8  // MSDBD
	Disconnect              bool   // OFCS
}

// The bits of ONCS, LPA, SGLS and CTRATT.
const (
	OptionalCompare      = 1 << 0
	OptionalDSM          = 1 << 2
	OptionalWriteZeroes  = 1 << 3
	OptionalReservations = 1 << 5
	LogEffectsSupported  = 1 << 1
	LogExtended          = 1 << 2
	SGLSupported         = 1 << 0
	SGLKeyed             = 1 << 2
	SGLOffset            = 1 << 20
	AttrHostID128        = 1 << 0
	AttrTrafficKeepAlive = 1 << 6
)

// Append appends the structure, of IdentifyLen bytes.
func (c *IdentifyController) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, IdentifyLen)...)
	b := dst[at:]
	padded(b[4:24], c.Serial)
	padded(b[24:64], c.Model)
	padded(b[64:72], c.Firmware)
	if c.Shared {
		b[76] = 1<<0 | 1<<1
	}
	b[77] = c.MDTS
	le.PutUint16(b[78:], c.Controller)
	le.PutUint32(b[80:], Version)
	le.PutUint32(b[92:], c.AsyncEvents)
	le.PutUint32(b[96:], c.Attributes)
	b[111] = 1
	if c.Discovery {
		b[111] = 2
	}
	b[258], b[259] = c.AbortLimit, c.EventLimit
	b[260] = 1<<0 | 1<<1 // one firmware slot, read only
	b[261], b[262] = c.LogAttributes, c.ErrorEntries
	le.PutUint16(b[320:], c.KeepAliveUnits)
	b[512], b[513] = 0x66, 0x44 // queue entries of 64 and 16 bytes
	le.PutUint16(b[514:], c.MaxCommands)
	le.PutUint32(b[516:], c.Namespaces)
	le.PutUint16(b[520:], c.Optional)
	if c.WriteCache {
		b[525] = 1 | 2<<1 // Flush with all namespaces is not supported
	}
	le.PutUint32(b[536:], c.SGLs)
	copy(b[768:1023], c.SubsystemNQN)
	le.PutUint32(b[1792:], c.CommandCapsule/16)
	le.PutUint32(b[1796:], CompletionLen/16)
	b[1803] = c.MaxDescriptors
	if c.Disconnect {
		b[1804] = 1
	}
	return dst
}

// padded writes ASCII with blanks behind it.
func padded(to []byte, s string) {
	n := copy(to, s)
	for i := n; i < len(to); i++ {
		to[i] = ' '
	}
}

// IdentifyNamespace is the structure of a namespace (NVMe figure 245), as far as this project fills it.
type IdentifyNamespace struct {
	Blocks     uint64 // NSZE, NCAP, NUSE
	BlockShift uint8
	Thin       bool // deallocated blocks are not counted against anybody: NSFEAT; DLFEAT says that they read as zeroes
	Shared     bool // NMIC
	Kept       bool // reservations persist through power loss
	ReadOnly   bool
	ID         block.ID // NGUID
}

// Append appends the structure, of IdentifyLen bytes.
func (n *IdentifyNamespace) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, IdentifyLen)...)
	b := dst[at:]
	for i := range 3 {
		le.PutUint64(b[8*i:], n.Blocks)
	}
	if n.Thin {
		b[24] = 1
		b[33] = 1 | 1<<3 // zeroes, also by Write Zeroes with Deallocate
	}
	if n.Shared {
		b[30] = 1
	}
	b[31] = 0x7e // all six types; Ignore Existing Key as before NVMe 1.3, which is how Linux uses it
	if n.Kept {
		b[31] |= 1
	}
	if n.ReadOnly {
		b[99] = 1
	}
	copy(b[104:], n.ID[:])
	b[130] = n.BlockShift
	return dst
}

// AppendActive appends a list of namespaces, at most MaxActive.
func AppendActive(dst []byte, nsids []uint32) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, IdentifyLen)...)
	for i, n := range nsids[:min(len(nsids), MaxActive)] {
		le.PutUint32(dst[at+4*i:], n)
	}
	return dst
}

// AppendDescriptors appends the identification descriptors of a namespace: its UUID, as that and as NGUID, and the NVM
// command set (NVMe figure 249).
func AppendDescriptors(dst []byte, id block.ID) []byte {
	at := len(dst)
	dst = append(dst, 2, 16, 0, 0)
	dst = append(dst, id[:]...)
	dst = append(dst, 3, 16, 0, 0)
	dst = append(dst, id[:]...)
	dst = append(dst, 4, 1, 0, 0, 0)
	return append(dst, make([]byte, IdentifyLen-(len(dst)-at))...)
}

// AppendControllerNVM appends what the NVM command set adds to a controller: how much Write Zeroes and Dataset
// Management take.
func AppendControllerNVM(dst []byte, zeroesShift, ranges uint8, rangeBlocks uint32, allBlocks uint64) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, IdentifyLen)...)
	b := dst[at:]
	b[1], b[3] = zeroesShift, ranges
	le.PutUint32(b[4:], rangeBlocks)
	le.PutUint64(b[8:], allBlocks)
	return dst
}
