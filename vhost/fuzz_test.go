package vhost

import (
	"encoding/binary"
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
			parsePlace(p[8:])
		case getConfig, setConfig:
			if c, err := parseConfig(p); err == nil {
				_ = config(&block.Geometry{Size: 1 << 30}, true)[c.offset : c.offset+c.size]
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

// FuzzRings takes requests from rings of any content, with any log, and gives back what there
// was: nothing is touched outside of the memory.
func FuzzRings(f *testing.F) {
	seed := make([]byte, 4096)
	binary.LittleEndian.PutUint64(seed[8:], 1)
	binary.LittleEndian.PutUint32(seed[1024:], 3<<16)
	f.Add(false, false, false, seed)
	f.Add(false, true, true, seed)
	f.Add(true, false, true, seed)
	f.Add(true, true, false, seed)
	disk := nbdtest.NewMemory(1 << 20)
	f.Fuzz(func(t *testing.T, packed, eventIndex, logged bool, content []byte) {
		const size, num, guest, user = 8192, 16, 4096, 1 << 32
		whole := make([]byte, size+64)
		at := -int(uintptr(unsafe.Pointer(&whole[0]))) & 63
		mem := whole[at : at+size : at+size]
		copy(mem, content)
		r := &region{place: place{guest: guest, size: size, user: user}, mem: mem}
		r.refs.Store(1)
		m, err := newMemory([]*region{r})
		if err != nil {
			t.Fatal(err)
		}
		where := vringAddr{desc: user, avail: user + 1024, used: user + 2048}
		var log []byte
		if logged {
			log = mem[3072 : 3072+logLen(num, packed)]
		}
		var ring ring
		base := uint32(goOn(content))
		if packed {
			ring, err = newPackedRing(m, num, where, base, eventIndex, log)
		} else {
			ring, err = newSplitRing(m, num, where, base, eventIndex, log)
		}
		if err != nil {
			return
		}
		d := diskOf(disk)
		for range 3 * num {
			q := request{}
			ok, err := ring.pop(&q.chain)
			if err != nil {
				return
			}
			if !ok && !ring.rearm() {
				return
			}
			if !ok {
				continue
			}
			if _, fatal := q.understand(d); fatal != nil {
				return
			}
			ring.push(&q.chain, q.written())
			ring.publish()
		}
	})
}

// goOn is the number that a ring goes on at.
func goOn(b []byte) uint16 {
	if len(b) < 4096 {
		return 0
	}
	return binary.LittleEndian.Uint16(b[4094:])
}

func diskOf(m *nbdtest.Memory) *disk {
	return &disk{Device: m, geo: m.Geometry(), size: &NewServer(Config{Device: m}).size}
}
