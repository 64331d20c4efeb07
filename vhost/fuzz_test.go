package vhost

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// FuzzMessage parses any bytes as a message of each kind.
func FuzzMessage(f *testing.F) {
	for k, i := range kinds {
		f.Add(append(appendHeader(nil, k, flagNeedReply, i.max), make([]byte, i.max)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h, err := parseHeader(b)
		p := b[headerLen:]
		if err != nil || h.size > len(p) {
			return
		}
		i := kinds[h.kind]
		if h.size < i.min || h.size > i.max {
			t.Fatalf("%v of %d bytes is accepted", h.kind, h.size)
		}
		switch p = p[:h.size]; h.kind {
		case setMemTable:
			if all, err := parseMemTable(p, 2); err == nil && len(all) != 2 {
				t.Fatalf("%d regions with two descriptors", len(all))
			}
		case addMemReg, remMemReg:
			parseRegionInfo(p[8:])
		case getConfig, setConfig:
			if c, err := parseConfig(p); err == nil {
				_ = configSpace(&block.Geometry{Size: 1 << 30}, true)[c.offset : c.offset+c.size]
			}
		case getInflightFD, setInflightFD:
			parseInflight(p).put(p)
		case setVringAddr:
			parseVringAddr(p)
		case setVringNum, setVringBase, getVringBase, setVringEnable:
			parseVringState(p)
		}
	})
}

// Where the parts of a ring are in FuzzRings' memory, which begins at fuzzGuest for the guest
// and at fuzzUser for the front end. Available and used are what driver and device want to be
// told of a packed ring.
const (
	fuzzNum   = 16
	fuzzAvail = 512
	fuzzUsed  = 1024
	fuzzLog   = 2048
	fuzzData  = 4096
	fuzzSize  = 8192

	fuzzGuest = 4096
	fuzzUser  = 1 << 32
)

// fuzzMemory has a read, a write, a flush and a discard available.
func fuzzMemory(packed, indirect bool) []byte {
	b := make([]byte, fuzzSize)
	put := func(at int, d desc) {
		if packed {
			d.flags, d.next = d.next, d.flags
		}
		le.PutUint64(b[at:], d.addr)
		le.PutUint32(b[at+8:], d.len)
		le.PutUint16(b[at+12:], d.flags)
		le.PutUint16(b[at+14:], d.next)
	}
	slot := 0
	for id, typ := range []uint32{blkIn, blkOut, blkFlush, blkDiscard} {
		at := fuzzData + 1024*id
		le.PutUint32(b[at:], typ)
		le.PutUint32(b[at+24:], 1) // of a discard: the sectors
		parts := []desc{{addr: uint64(at), len: blkHdrLen}, {addr: uint64(at + 16), len: 512}, {addr: uint64(at + 700), len: 1, flags: descWrite}}
		switch typ {
		case blkIn:
			parts[1].flags = descWrite
		case blkFlush:
			parts = append(parts[:1], parts[2])
		case blkDiscard:
			parts[1].len = blkRangeLen
		}
		chained := func(base, i int, d desc) desc {
			d.addr += fuzzGuest
			if i < len(parts)-1 {
				d.flags |= descNext
			}
			d.next = uint16(base + i + 1)
			return d
		}
		if indirect {
			table := at + 768
			for i, d := range parts {
				put(table+descLen*i, chained(0, i, d))
			}
			parts = []desc{{addr: uint64(table), len: uint32(descLen * len(parts)), flags: descIndirect}}
		}
		le.PutUint16(b[fuzzAvail+2:], uint16(id+1))
		le.PutUint16(b[fuzzAvail+4+2*id:], uint16(slot))
		for i, d := range parts {
			d = chained(slot, i, d)
			if packed {
				d.flags, d.next = d.flags|descAvail, uint16(id)
			}
			put(descLen*(slot+i), d)
		}
		slot += len(parts)
	}
	return b
}

// fuzzRing is a ring in a copy of content.
func fuzzRing(packed, eventIndex, logged bool, content []byte) (ring, []byte, error) {
	whole := make([]byte, fuzzSize+64)
	at := -int(uintptr(unsafe.Pointer(&whole[0]))) & 63
	mem := whole[at : at+fuzzSize : at+fuzzSize]
	copy(mem, content)
	r := &region{regionInfo: regionInfo{guest: fuzzGuest, size: fuzzSize, user: fuzzUser}, mem: mem}
	r.refs.Store(1)
	m, err := newMemory([]*region{r})
	if err != nil {
		return nil, nil, err
	}
	where := vringAddr{desc: fuzzUser, avail: fuzzUser + fuzzAvail, used: fuzzUser + fuzzUsed}
	var log []byte
	if logged {
		log = mem[fuzzLog:][:logLen(fuzzNum, packed)]
	}
	base := uint32(le.Uint16(mem[fuzzData-2:]))
	if packed {
		p, err := newPackedRing(m, fuzzNum, where, base, eventIndex, log)
		return p, mem, err
	}
	s, err := newSplitRing(m, fuzzNum, where, base, eventIndex, log)
	return s, mem, err
}

// FuzzRings takes requests from rings of any content, with any log, and gives them back: nothing
// is touched outside of the memory. Before each step later changes eight bytes of it somewhere,
// as a guest does.
func FuzzRings(f *testing.F) {
	for i := range 16 {
		packed, indirect, logged, again := i&1 != 0, i&2 != 0, i&4 != 0, i&8 != 0
		content := fuzzMemory(packed, indirect)
		if packed {
			le.PutUint16(content[fuzzData-2:], 1<<15)
		}
		if again { // what one that was killed leaves behind
			ring, mem, err := fuzzRing(packed, true, true, content)
			if err != nil {
				f.Fatal(err)
			}
			for range 3 {
				if ok, err := ring.pop(new(chain)); !ok || err != nil {
					f.Fatal(ok, err)
				}
			}
			content = mem
		}
		f.Add(packed, indirect, logged, content, []byte{})
		f.Add(packed, !indirect, logged, content, bytes.Repeat([]byte{1, 8}, 100))
		// A request in the log of a packed ring gets more descriptors than the ring has, after
		// the log was read.
		grown := append(le.AppendUint16(nil, fuzzLog+packedHead+5*packedEntry), 0, 0, 5, 0, 0, 0, 0, 0)
		grown = append(le.AppendUint16(grown, fuzzLog+packedHead+3*packedEntry), logUnderWay, 0, 4, 0, 5, 0, 40, 0)
		f.Add(packed, false, logged, content, grown)
	}
	disk := diskOf(nbdtest.NewMemory(1 << 20))
	f.Fuzz(func(t *testing.T, packed, eventIndex, logged bool, content, later []byte) {
		ring, mem, err := fuzzRing(packed, eventIndex, logged, content)
		change := func() {
			if len(later) >= 10 {
				copy(mem[le.Uint16(later)%fuzzSize:], later[2:10])
				later = later[10:]
			}
		}
		var under []*request
		for n := 0; n < 3*fuzzNum && err == nil; n++ {
			q := &request{}
			var ok bool
			change()
			if ok, err = ring.pop(&q.chain); ok && err == nil {
				change()
				var failed error
				if failed, err = q.parse(disk); failed != nil {
					q.fail(failed)
				}
				under = append(under, q)
			}
			if err != nil || ok && len(under) < 3 {
				continue
			}
			for len(under) > 0 {
				q, under = under[len(under)-1], under[:len(under)-1]
				change()
				if q.op == block.OpRead {
					scatter(q.data, 0, make([]byte, 512))
				} else {
					gather(make([]byte, 512), q.data, 0)
				}
				q.status[0] = q.result()
				ring.push(&q.chain, q.bytesWritten())
			}
			change()
			ring.publish()
			if !ring.rearm() {
				return
			}
		}
	})
}

func diskOf(m *nbdtest.Memory) *disk {
	return &disk{Device: m, geo: m.Geometry(), size: &NewServer(Config{Device: m}).size}
}
