package iscsitest

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/scsi"
)

// The CDBs that cases use.

func read10(lba uint32, n uint16) []byte  { return cdb10(scsi.Read10, lba, n) }
func write10(lba uint32, n uint16) []byte { return cdb10(scsi.Write10, lba, n) }

func cdb10(op byte, lba uint32, n uint16) []byte {
	b := binary.BigEndian.AppendUint32([]byte{op, 0}, lba)
	return append(binary.BigEndian.AppendUint16(append(b, 0), n), 0)
}

func cdb16(op byte, lba uint64, n uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{op, 0}, lba)
	return append(binary.BigEndian.AppendUint32(b, n), 0, 0)
}

func cdb12(op byte, lba, n uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{op, 0}, lba)
	return append(binary.BigEndian.AppendUint32(b, n), 0, 0)
}

func inquiry(page int, n uint16) []byte {
	b := []byte{scsi.Inquiry, 0, 0, byte(n >> 8), byte(n), 0}
	if page >= 0 {
		b[1], b[2] = 1, byte(page)
	}
	return b
}

func persistentIn(action byte, n uint16) []byte {
	return []byte{scsi.PersistentReserveIn, action, 0, 0, 0, 0, 0, byte(n >> 8), byte(n), 0}
}

func persistentOut(action, kind byte, n uint32) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{scsi.PersistentReserveOut, action, kind, 0, 0}, n), 0)
}

// capacity asks for the last LBA and the length of a block.
func (s *Session) capacity() (last uint64, block uint32) {
	in := make([]byte, 32)
	c := cdb16(scsi.ServiceActionIn16, 0, uint32(len(in)))
	c[1] = scsi.ReadCapacity16
	if k := s.do(c, nil, in); k.Status == scsi.Good && k.Received >= 12 {
		last, block = binary.BigEndian.Uint64(in), binary.BigEndian.Uint32(in[8:])
	} else {
		k = s.do(cdb10(scsi.ReadCapacity10, 0, 0), nil, in[:8])
		if k.Status != scsi.Good {
			s.t.skip("the capacity of LUN %d is not to be had: %s", s.t.target.LUN, k.outcome())
		}
		last, block = uint64(binary.BigEndian.Uint32(in)), binary.BigEndian.Uint32(in[4:])
	}
	if block == 0 || block > 1<<16 || last < 1<<10 {
		s.t.skip("a disk of %d blocks of %d bytes is none to test", last+1, block)
	}
	return last, block
}

// blockLen is the length of a block in bytes.
func (s *Session) blockLen() int {
	_, n := s.capacity()
	return int(n)
}

// pattern is data that depend on the case and its seed, and on nothing else.
func (t *T) pattern(n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], t.rng.Uint64())
	}
	return b
}
