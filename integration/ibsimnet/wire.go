package ibsimnet

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Lengths in bytes (ibsim's include/ibsim.h, on machines of 64 bits).
const (
	controlLen     = 80
	controlDataLen = 64
	packetLen      = 32 + mad.MADLen
	nodeLen        = 32 // of a node's name
)

const controlMagic = 0xdeadbeef

// controlType says what a control message asks for.
type controlType uint32

// The types that libumad2sim sends. controlError is the type of a refusal.
const (
	controlError      controlType = 0
	controlConnect    controlType = 1
	controlDisconnect controlType = 2
	controlVendor     controlType = 4
	controlNodeInfo   controlType = 7
	controlPortInfo   controlType = 8
	controlSetIsSM    controlType = 9
	controlPKeys      controlType = 10
	statusTimeout     uint32      = 110 // ETIMEDOUT: nobody is there to answer
)

// errMessage means that a datagram is none of the protocol's.
var errMessage = errors.New("ibsimnet: not a message of ibsim")

// control is a control message. Its numbers have the machine's byte order.
type control struct {
	client uint32
	kind   controlType
	length uint32
	data   [controlDataLen]byte
}

func (c *control) append(b []byte) []byte {
	ne := binary.NativeEndian
	b = ne.AppendUint32(b, controlMagic)
	b = ne.AppendUint32(b, c.client)
	b = ne.AppendUint32(b, uint32(c.kind))
	b = ne.AppendUint32(b, c.length)
	return append(b, c.data[:]...)
}

func parseControl(b []byte) (c control, err error) {
	ne := binary.NativeEndian
	if len(b) != controlLen || ne.Uint32(b) != controlMagic {
		return c, fmt.Errorf("control message of %d bytes: %w", len(b), errMessage)
	}
	c.client, c.kind, c.length = ne.Uint32(b[4:]), controlType(ne.Uint32(b[8:])), ne.Uint32(b[12:])
	copy(c.data[:], b[16:])
	return c, nil
}

// attachment is the data of controlConnect.
type attachment struct {
	id   uint32 // in the request: the client's own number; in the answer: the number that it gets
	qp   uint32
	isSM bool
	node string
}

func (a attachment) put(c *control) {
	ne := binary.NativeEndian
	c.data = [controlDataLen]byte{}
	ne.PutUint32(c.data[0:], a.id)
	ne.PutUint32(c.data[4:], a.qp)
	if a.isSM {
		ne.PutUint32(c.data[8:], 1)
	}
	copy(c.data[12:12+nodeLen-1], a.node)
	c.length = 12 + nodeLen
}

func (c *control) attachment() (a attachment) {
	ne := binary.NativeEndian
	a.id, a.qp, a.isSM = ne.Uint32(c.data[0:]), ne.Uint32(c.data[4:]), ne.Uint32(c.data[8:]) != 0
	name := c.data[12 : 12+nodeLen]
	for i, b := range name {
		if b == 0 {
			name = name[:i]
			break
		}
	}
	a.node = string(name)
	return a
}

// packet is a MAD between a client and the network. LIDs and QPs have network byte order, and so has the length.
type packet struct {
	dlid, slid mad.LID // slid 0: the sender's own
	dqp, sqp   uint32
	status     uint32
	length     uint64 // of what the MAD's bytes are, at most 256
	mad        mad.MAD
}

func (p *packet) append(b []byte) []byte {
	be := binary.BigEndian
	// The LIDs are 16 bits in network byte order, stored in 32 of the machine's.
	lid := func(l mad.LID) {
		var raw [2]byte
		be.PutUint16(raw[:], uint16(l))
		b = binary.NativeEndian.AppendUint32(b, uint32(binary.NativeEndian.Uint16(raw[:])))
	}
	lid(p.dlid)
	lid(p.slid)
	b = be.AppendUint32(b, p.dqp)
	b = be.AppendUint32(b, p.sqp)
	b = be.AppendUint32(b, p.status)
	b = append(b, 0, 0, 0, 0)
	b = be.AppendUint64(b, p.length)
	return append(b, p.mad[:]...)
}

func parsePacket(b []byte) (p packet, err error) {
	if len(b) != packetLen {
		return p, fmt.Errorf("packet of %d bytes, it has %d: %w", len(b), packetLen, errMessage)
	}
	be := binary.BigEndian
	lid := func(b []byte) mad.LID {
		var raw [2]byte
		binary.NativeEndian.PutUint16(raw[:], uint16(binary.NativeEndian.Uint32(b)))
		return mad.LID(be.Uint16(raw[:]))
	}
	p.dlid, p.slid = lid(b[0:]), lid(b[4:])
	p.dqp, p.sqp, p.status = be.Uint32(b[8:]), be.Uint32(b[12:]), be.Uint32(b[16:])
	p.length = be.Uint64(b[24:])
	p.mad = mad.MAD(b[32:])
	return p, nil
}
