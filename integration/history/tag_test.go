package history

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	sector    = 512
	blockSize = 8 * sector
)

// tag fills a sector: it is in each of its 64 words, since a read beside a write may
// see a part of either. Zero is a sector that was never written.
//
//	disk (8 bits) | sector (24 bits) | write (32 bits)
type tag uint64

func newTag(disk uint8, sector, write uint32) tag {
	return tag(disk)<<56 | tag(sector&0xffffff)<<32 | tag(write)
}

func (t tag) disk() uint8    { return uint8(t >> 56) }
func (t tag) sector() uint32 { return uint32(t>>32) & 0xffffff }
func (t tag) write() uint32  { return uint32(t) }

// fillBlock writes the tags of a write to a block into p.
func fillBlock(p []byte, disk uint8, block, write uint32) {
	for i := range len(p) / sector {
		t := newTag(disk, block*(blockSize/sector)+uint32(i), write)
		for w := range sector / 8 {
			binary.LittleEndian.PutUint64(p[i*sector+w*8:], uint64(t))
		}
	}
}

// sectorTags are the tags of one sector in their order: one, unless it was read beside
// a write.
func sectorTags(p []byte) (tags []tag) {
	for w := range sector / 8 {
		t := tag(binary.LittleEndian.Uint64(p[w*8:]))
		if !slices.Contains(tags, t) {
			tags = append(tags, t)
		}
	}
	return tags
}

// readTags returns the writes that a block's content comes from, a list for each
// sector. An error means content that no client ever wrote there.
func readTags(p []byte, disk uint8, block uint32) (seen [][]uint32, err error) {
	for i := range len(p) / sector {
		at := block*(blockSize/sector) + uint32(i)
		var writes []uint32
		for _, t := range sectorTags(p[i*sector : (i+1)*sector]) {
			if t != 0 && (t.disk() != disk || t.sector() != at) {
				return nil, fmt.Errorf("sector %d of disk %d holds what write %d has put into sector %d of disk %d (word %#x)", at, disk, t.write(), t.sector(), t.disk(), uint64(t))
			}
			writes = append(writes, t.write())
		}
		seen = append(seen, writes)
	}
	return seen, nil
}
