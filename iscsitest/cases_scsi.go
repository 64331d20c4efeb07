package iscsitest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// attempt carries a command out that units need not have: it skips the case if this one does not know it.
func (s *Session) attempt(what string, cdb, out, in []byte) *Task {
	k := s.do(cdb, out, in)
	if k.Status == scsi.CheckCondition && k.Sense.Key == scsi.IllegalRequest && k.Sense.Code == scsi.InvalidOperationCode {
		s.t.skip("the unit has no %s", what)
	}
	return k
}

// unit is a case with a session whose unit is ready.
func unit(id string, level Level, source, says string, need Need, run func(t *T, s *Session)) Case {
	return Case{ID: id, Level: level, Source: source, Says: says, Need: need, run: func(t *T) { run(t, t.login(options{}).ready()) }}
}

// pages are the vital product data pages that a unit says that it has.
func (s *Session) pages() []byte {
	in := make([]byte, 255)
	k := s.good(s.do(inquiry(0, 255), nil, in), "INQUIRY of the supported pages")
	n := min(int(binary.BigEndian.Uint16(in[2:])), int(k.gotten())-4)
	return in[4 : 4+max(n, 0)]
}

// gotten is how many bytes have come, however they were moved.
func (k *Task) gotten() uint32 {
	n := k.K.EDTL
	if k.Residual.Underflow {
		n -= min(k.Residual.Count, n)
	}
	return n
}

// mayUnmap skips the case unless the unit has UNMAP, and returns whether unmapped blocks read as zeroes.
func (s *Session) mayUnmap() (zeroes bool) {
	in := make([]byte, 64)
	k := s.do(inquiry(0xb2, 64), nil, in)
	capacity := make([]byte, 32)
	c := cdb16(scsi.ServiceActionIn16, 0, 32)
	c[1] = scsi.ReadCapacity16
	s.good(s.attempt("READ CAPACITY (16)", c, nil, capacity), "READ CAPACITY (16)")
	if k.Status != scsi.Good || in[5]&0x80 == 0 || capacity[14]&0x80 == 0 {
		s.t.skip("the unit has no UNMAP (LBPU or LBPME is 0)")
	}
	return capacity[14]&0x40 != 0
}

// unmap unmaps blocks.
func (s *Session) unmap(lba uint64, n uint32) {
	list := make([]byte, 24)
	binary.BigEndian.PutUint16(list, 22)
	binary.BigEndian.PutUint16(list[2:], 16)
	binary.BigEndian.PutUint64(list[8:], lba)
	binary.BigEndian.PutUint32(list[16:], n)
	s.good(s.do([]byte{scsi.Unmap, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list, nil), "UNMAP")
}

// rw is a case of a READ and a WRITE of one length of CDB.
func rw(name string, read, write func(lba uint32, n int) []byte) Case {
	return unit("scsi.read-write-"+name, Must, "SBC-3 5.8, 5.29", "what WRITE has written READ returns, and nothing else is changed", Data, func(t *T, s *Session) {
		n := s.blockLen()
		around := t.pattern(6 * n)
		s.good(s.do(write10(500, 6), around, nil), "WRITE (10)")
		data := t.pattern(2 * n)
		s.good(s.attempt("WRITE ("+name+")", write(502, 2), data, nil), "WRITE ("+name+")")
		copy(around[2*n:], data)
		s.verify(500, around)
		in := make([]byte, 2*n)
		s.good(s.attempt("READ ("+name+")", read(502, 2), nil, in), "READ ("+name+")")
		t.require(bytes.Equal(in, data), "READ (%s) returns something else", name)
	})
}

func scsiCases() []Case {
	tur := []byte{scsi.TestUnitReady}
	cdb6 := func(op byte) func(uint32, int) []byte {
		return func(lba uint32, n int) []byte {
			return []byte{op, byte(lba >> 16), byte(lba >> 8), byte(lba), byte(n), 0}
		}
	}
	all := []Case{
		unit("scsi.inquiry", Must, "SPC-4 6.4", "INQUIRY says what the device is, as far as the allocation length goes", 0, func(t *T, s *Session) {
			in := make([]byte, 255)
			k := s.good(s.do(inquiry(-1, 255), nil, in), "INQUIRY")
			t.require(k.gotten() >= 36 && in[0]>>5 == 0 && int(in[4])+5 >= 36, "%d bytes, qualifier %d, ADDITIONAL LENGTH %d", k.gotten(), in[0]>>5, in[4])
			short := make([]byte, 5)
			s.good(s.do(inquiry(-1, 5), nil, short), "INQUIRY of 5 bytes")
			t.require(bytes.Equal(short, in[:5]), "the first 5 bytes are %x, and were %x", short, in[:5])
		}),
		unit("scsi.inquiry-page-without-evpd", Must, "SPC-4 6.4.1", "a PAGE CODE without EVPD ends with ILLEGAL REQUEST, INVALID FIELD IN CDB", 0, func(t *T, s *Session) {
			c := inquiry(-1, 255)
			c[2] = 0x83
			s.senses(s.do(c, nil, make([]byte, 255)), "INQUIRY", scsi.IllegalRequest, scsi.InvalidFieldInCDB)
		}),
		unit("scsi.vpd-pages", Must, "SPC-4 7.8", "each page that is said to be there is, has its own code, and they are in ascending order", 0, func(t *T, s *Session) {
			all := s.pages()
			t.require(bytes.IndexByte(all, 0) >= 0 && bytes.IndexByte(all, 0x83) >= 0, "pages %x: 00 and 83 are mandatory", all)
			for i, page := range all {
				t.require(i == 0 || page > all[i-1], "pages %x are not in ascending order", all)
				in := make([]byte, 255)
				k := s.good(s.do(inquiry(int(page), 255), nil, in), fmt.Sprintf("INQUIRY of page %#02x", page))
				t.require(k.gotten() >= 4 && in[1] == page, "page %#02x has the code %#02x", page, in[1])
			}
		}),
		unit("scsi.vpd-unknown", Must, "SPC-4 6.4.1", "a page that there is not ends with ILLEGAL REQUEST, INVALID FIELD IN CDB", 0, func(t *T, s *Session) {
			if all := s.pages(); bytes.IndexByte(all, 0x8e) < 0 {
				s.senses(s.do(inquiry(0x8e, 255), nil, make([]byte, 255)), "INQUIRY", scsi.IllegalRequest, scsi.InvalidFieldInCDB)
			}
		}),
		unit("scsi.identification", Must, "SPC-4 7.8.5", "the unit has a designator of its own, of type NAA, EUI-64 or T10 vendor ID", 0, func(t *T, s *Session) {
			in := make([]byte, 512)
			k := s.good(s.do(inquiry(0x83, 512), nil, in), "INQUIRY of page 83")
			n := min(int(binary.BigEndian.Uint16(in[2:])), int(k.gotten())-4)
			for d := in[4 : 4+max(n, 0)]; len(d) >= 4 && len(d) >= 4+int(d[3]); d = d[4+int(d[3]):] {
				if kind := d[1] & 0xf; d[1]>>4&3 == 0 && kind >= 1 && kind <= 3 {
					return
				}
			}
			t.fail("page 83 is %x", in[:4+max(n, 0)])
		}),
		unit("scsi.report-luns", Must, "SPC-4 6.33", "REPORT LUNS names the unit, and LUN LIST LENGTH does not depend on the allocation length", 0, func(t *T, s *Session) {
			in := make([]byte, 4096)
			c := []byte{scsi.ReportLUNs, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0}
			k := s.good(s.do(c, nil, in), "REPORT LUNS")
			n := binary.BigEndian.Uint32(in)
			want := s.lun()
			found := false
			for i := 8; i+8 <= int(k.gotten()); i += 8 {
				found = found || bytes.Equal(in[i:i+8], want[:])
			}
			t.require(found, "LUN %x is not in the list", want)
			c[9] = 16
			c[8] = 0
			short := make([]byte, 16)
			s.good(s.do(c, nil, short), "REPORT LUNS of 16 bytes")
			t.require(binary.BigEndian.Uint32(short) == n, "LUN LIST LENGTH is %d, and was %d", binary.BigEndian.Uint32(short), n)
		}),
		unit("scsi.lun-unknown", Must, "SPC-4 6.4, SAM-5 4.7", "of a LUN that there is not INQUIRY says so, and other commands end with LOGICAL UNIT NOT SUPPORTED", 0, func(t *T, s *Session) {
			lun := scsi.PutLUN(16001)
			in := make([]byte, 36)
			k := s.good(s.waitFor(s.start(inquiry(-1, 36), nil, in, how{lun: &lun})), "INQUIRY")
			t.require(k.gotten() > 0 && in[0] == 0x7f, "PERIPHERAL QUALIFIER and TYPE are %#02x, in place of 0x7f", in[0])
			s.senses(s.waitFor(s.start(tur, nil, nil, how{lun: &lun})), "TEST UNIT READY", scsi.IllegalRequest, scsi.LogicalUnitNotSupported)
		}),
		unit("scsi.opcode-unknown", Must, "SPC-4 4.3.4", "an operation code that there is not ends with INVALID COMMAND OPERATION CODE", 0, func(t *T, s *Session) {
			for _, op := range []byte{0x02, 0x1f, 0xbf, 0xff} {
				s.senses(s.do([]byte{op}, nil, nil), fmt.Sprintf("operation code %#02x", op), scsi.IllegalRequest, scsi.InvalidOperationCode)
			}
		}),
		unit("scsi.capacity", Must, "SBC-3 5.12, 5.13", "READ CAPACITY (10) and (16) agree", 0, func(t *T, s *Session) {
			last, block := s.capacity()
			in := make([]byte, 8)
			s.good(s.do(cdb10(scsi.ReadCapacity10, 0, 0), nil, in), "READ CAPACITY (10)")
			t.require(uint64(binary.BigEndian.Uint32(in)) == min(last, 0xffffffff) && binary.BigEndian.Uint32(in[4:]) == block, "READ CAPACITY (10) says %x, (16) LBA %d and %d bytes", in, last, block)
		}),
		unit("scsi.read-last", Must, "SBC-3 5.8", "the last block can be read, and the one behind it ends with LBA OUT OF RANGE", 0, func(t *T, s *Session) {
			last, n := s.capacity()
			s.good(s.attempt("READ (16)", cdb16(scsi.Read16, last, 1), nil, make([]byte, n)), "READ of the last block")
			s.senses(s.do(cdb16(scsi.Read16, last+1, 1), nil, make([]byte, n)), "READ behind the last block", scsi.IllegalRequest, scsi.LBAOutOfRange)
			s.senses(s.do(cdb16(scsi.Read16, last, 2), nil, make([]byte, 2*n)), "READ across the last block", scsi.IllegalRequest, scsi.LBAOutOfRange)
			s.senses(s.do(cdb16(scsi.Read16, 1<<64-1, 1), nil, make([]byte, n)), "READ of the largest LBA", scsi.IllegalRequest, scsi.LBAOutOfRange)
		}),
		unit("scsi.write-behind", Must, "SBC-3 5.29", "a WRITE across the last block ends with LBA OUT OF RANGE and changes nothing", Data, func(t *T, s *Session) {
			last, n := s.capacity()
			before := t.pattern(int(n))
			s.good(s.attempt("WRITE (16)", cdb16(scsi.Write16, last, 1), before, nil), "WRITE of the last block")
			s.senses(s.do(cdb16(scsi.Write16, last, 2), t.pattern(int(2*n)), nil), "WRITE across the last block", scsi.IllegalRequest, scsi.LBAOutOfRange)
			in := make([]byte, n)
			s.good(s.do(cdb16(scsi.Read16, last, 1), nil, in), "READ")
			t.require(bytes.Equal(in, before), "the last block has changed")
		}),
		unit("scsi.transfer-zero", Must, "SBC-3 5.8", "a TRANSFER LENGTH of zero moves nothing, which is no error", 0, func(t *T, s *Session) {
			s.good(s.do(read10(0, 0), nil, nil), "READ of no blocks")
		}),
		rw("6", cdb6(scsi.Read6), cdb6(scsi.Write6)),
		rw("12", func(l uint32, n int) []byte { return cdb12(scsi.Read12, l, uint32(n)) }, func(l uint32, n int) []byte { return cdb12(scsi.Write12, l, uint32(n)) }),
		rw("16", func(l uint32, n int) []byte { return cdb16(scsi.Read16, uint64(l), uint32(n)) }, func(l uint32, n int) []byte { return cdb16(scsi.Write16, uint64(l), uint32(n)) }),
		unit("scsi.read6-zero", Must, "SBC-3 5.7", "in READ (6) a TRANSFER LENGTH of 0 means 256 blocks", 0, func(t *T, s *Session) {
			n := s.blockLen()
			k := s.good(s.attempt("READ (6)", []byte{scsi.Read6, 0, 0, 0, 0, 0}, nil, make([]byte, 256*n)), "READ (6)")
			t.require(k.gotten() == uint32(256*n), "%d bytes come", k.gotten())
		}),
		unit("scsi.verify", Must, "SBC-3 5.22", "VERIFY with BYTCHK compares: the same data are GOOD, others are a MISCOMPARE", Data, func(t *T, s *Session) {
			n := s.blockLen()
			data := t.pattern(2 * n)
			s.good(s.do(write10(600, 2), data, nil), "WRITE")
			c := cdb10(scsi.Verify10, 600, 2)
			s.good(s.attempt("VERIFY (10)", c, nil, nil), "VERIFY without data")
			c[1] = 2
			k := s.do(c, data, nil)
			if k.Status == scsi.CheckCondition && k.Sense.Code == scsi.InvalidFieldInCDB {
				t.skip("the unit has no BYTCHK")
			}
			s.good(k, "VERIFY with the same data")
			data[n] ^= 1
			s.senses(s.do(c, data, nil), "VERIFY with other data", scsi.Miscompare, scsi.MiscompareDuringVerify)
		}),
		unit("scsi.synchronize-cache", Must, "SBC-3 5.18", "SYNCHRONIZE CACHE of all blocks is GOOD", 0, func(t *T, s *Session) {
			s.good(s.attempt("SYNCHRONIZE CACHE (10)", cdb10(scsi.SynchronizeCache10, 0, 0), nil, nil), "SYNCHRONIZE CACHE")
		}),
		unit("scsi.write-same", Must, "SBC-3 5.38", "WRITE SAME writes one block over a range, and no more", Data, func(t *T, s *Session) {
			n := s.blockLen()
			around := t.pattern(10 * n)
			s.good(s.do(write10(700, 10), around, nil), "WRITE")
			one := t.pattern(n)
			s.good(s.attempt("WRITE SAME (10)", cdb10(scsi.WriteSame10, 702, 5), one, nil), "WRITE SAME")
			for i := 2; i < 7; i++ {
				copy(around[i*n:], one)
			}
			s.verify(700, around)
		}),
		unit("scsi.compare-and-write", Must, "SBC-3 5.2", "COMPARE AND WRITE writes if what is there is what was expected, and else ends with MISCOMPARE", Data, func(t *T, s *Session) {
			n := s.blockLen()
			old, new := t.pattern(n), t.pattern(n)
			s.good(s.do(write10(800, 1), old, nil), "WRITE")
			c := cdb16(scsi.CompareAndWrite, 800, 0)
			c[13] = 1
			s.good(s.attempt("COMPARE AND WRITE", c, append(bytes.Clone(old), new...), nil), "COMPARE AND WRITE")
			s.verify(800, new)
			s.senses(s.do(c, append(bytes.Clone(old), old...), nil), "COMPARE AND WRITE of what is not there", scsi.Miscompare, scsi.MiscompareDuringVerify)
			s.verify(800, new)
		}),
		unit("scsi.compare-and-write-race", Must, "SBC-3 5.2", "COMPARE AND WRITE is atomic: of those with the same expectation one succeeds", Data, func(t *T, s *Session) {
			limits := make([]byte, 64)
			s.do(inquiry(0xb0, 64), nil, limits)
			// Of many blocks each takes longer; of few all data come with the commands, which so come at once.
			most := max(1, min(64, limits[5])) // MAXIMUM COMPARE AND WRITE LENGTH
			other := t.login(options{initiator: 1}).ready()
			c := cdb16(scsi.CompareAndWrite, 900, 0)
			began := time.Now()
			for round := 0; round < 100 || round < 1000 && time.Since(began) < time.Second; round++ { // chance has it to be seen
				blocks := most
				if round%2 == 0 {
					blocks = min(most, 8)
				}
				c[13] = blocks
				n := int(blocks) * s.blockLen()
				old := t.pattern(n)
				s.good(s.do(write10(900, uint16(blocks)), old, nil), "WRITE")
				var tasks [2][]*Task
				var data [][]byte
				for range min(8, s.window(), other.window()) {
					for i, who := range []*Session{s, other} {
						d := t.pattern(n)
						data = append(data, d)
						tasks[i] = append(tasks[i], who.start(c, append(bytes.Clone(old), d...), nil, how{}))
					}
				}
				before, good := old, 0
				for j := range data {
					who := []*Session{s, other}[j%2]
					k := who.waitFor(tasks[j%2][j/2])
					if k.Sense.Code == scsi.InvalidOperationCode {
						t.skip("the unit has no COMPARE AND WRITE")
					}
					if k.Status == scsi.Good {
						good++
						old = data[j]
					}
				}
				t.require(good == 1 && !bytes.Equal(old, before), "%d of %d succeed", good, len(data))
				s.verify(900, old)
			}
		}),
		unit("scsi.orwrite", Must, "SBC-3 5.4", "ORWRITE sets bits and clears none", Data, func(t *T, s *Session) {
			n := s.blockLen()
			old, more := t.pattern(n), t.pattern(n)
			s.good(s.do(write10(802, 1), old, nil), "WRITE")
			s.good(s.attempt("ORWRITE (16)", cdb16(scsi.OrWrite16, 802, 1), more, nil), "ORWRITE")
			for i := range old {
				old[i] |= more[i]
			}
			s.verify(802, old)
		}),
		unit("scsi.unmap", Must, "SBC-3 4.7.3, 5.20", "blocks that were unmapped read as zeroes where the unit says so (LBPRZ), and no others are touched", Data, func(t *T, s *Session) {
			zeroes := s.mayUnmap()
			n := s.blockLen()
			around := t.pattern(24 * n)
			s.good(s.do(write10(1600, 24), around, nil), "WRITE")
			s.unmap(1608, 8)
			got := make([]byte, 24*n)
			s.good(s.do(read10(1600, 24), nil, got), "READ")
			t.require(bytes.Equal(got[:8*n], around[:8*n]) && bytes.Equal(got[16*n:], around[16*n:]), "blocks beside those that were unmapped have changed")
			t.require(!zeroes || bytes.Equal(got[8*n:16*n], make([]byte, 8*n)), "the unit says LBPRZ, and unmapped blocks are not zeroes")
		}),
		unit("scsi.lba-status", Must, "SBC-3 5.3", "GET LBA STATUS describes the blocks from the one that was asked for on", 0, func(t *T, s *Session) {
			in := make([]byte, 24)
			c := cdb16(scsi.ServiceActionIn16, 16, 24)
			c[1] = scsi.GetLBAStatus
			k := s.attempt("GET LBA STATUS", c, nil, in)
			if k.Sense.Code == scsi.InvalidFieldInCDB {
				t.skip("the unit has no GET LBA STATUS")
			}
			s.good(k, "GET LBA STATUS")
			t.require(k.gotten() >= 24 && binary.BigEndian.Uint64(in[8:]) == 16 && binary.BigEndian.Uint32(in[16:]) > 0 && in[20]&0xf <= 2, "it is answered by %x", in)
		}),
		unit("scsi.lba-status-unmapped", Must, "SBC-3 4.7.4, 5.3", "GET LBA STATUS within unmapped blocks says that the ones from there on are not mapped, up to those that are", Data, func(t *T, s *Session) {
			s.mayUnmap()
			n := s.blockLen()
			s.good(s.do(write10(4096, 256), t.pattern(256*n), nil), "WRITE")
			s.unmap(4160, 128)
			for _, x := range []struct {
				lba    uint64
				mapped bool
				left   uint32
			}{{4096, true, 64}, {4160, false, 128}, {4200, false, 88}, {4288, true, 64}} {
				in := make([]byte, 24)
				c := cdb16(scsi.ServiceActionIn16, x.lba, 24)
				c[1] = scsi.GetLBAStatus
				k := s.attempt("GET LBA STATUS", c, nil, in)
				if k.Sense.Code == scsi.InvalidFieldInCDB {
					t.skip("the unit has no GET LBA STATUS")
				}
				s.good(k, "GET LBA STATUS")
				// A unit that keeps no track may say that unmapped blocks are mapped; none may say that of others.
				lba, blocks, state := binary.BigEndian.Uint64(in[8:]), binary.BigEndian.Uint32(in[16:]), in[20]&0xf
				t.require(lba == x.lba && blocks > 0, "LBA %d is answered by LBA %d and %d blocks", x.lba, lba, blocks)
				t.require(!x.mapped || state == 0, "LBA %d was written, and is said to be in state %d", x.lba, state)
				t.require(x.mapped || state == 0 || blocks <= x.left, "%d blocks from LBA %d on are said to be in state %d, and those from the %dth on were written", blocks, x.lba, state, x.left)
			}
		}),
		unit("scsi.lba-status-beyond", Must, "SBC-3 5.3", "GET LBA STATUS behind the last block, however far, ends with LBA OUT OF RANGE", 0, func(t *T, s *Session) {
			last, _ := s.capacity()
			for _, lba := range []uint64{last + 1, 1 << 63, 1<<64 - 1} { // some targets shift the second to 0
				c := cdb16(scsi.ServiceActionIn16, lba, 24)
				c[1] = scsi.GetLBAStatus
				k := s.attempt("GET LBA STATUS", c, nil, make([]byte, 24))
				if k.Sense.Code == scsi.InvalidFieldInCDB {
					t.skip("the unit has no GET LBA STATUS")
				}
				s.senses(k, fmt.Sprintf("GET LBA STATUS of block %d", lba), scsi.IllegalRequest, scsi.LBAOutOfRange)
			}
		}),
		unit("scsi.mode-sense", Must, "SPC-4 6.11", "MODE SENSE (6) and (10) return all pages, with their own lengths", 0, func(t *T, s *Session) {
			in := make([]byte, 255)
			k := s.good(s.do([]byte{scsi.ModeSense6, 0, 0x3f, 0, 255, 0}, nil, in), "MODE SENSE (6)")
			t.require(int(in[0])+1 == int(k.gotten()), "MODE DATA LENGTH %d in %d bytes", in[0], k.gotten())
			for at := 4 + int(in[3]); at+4 <= int(k.gotten()) && in[at]&0x3f != 0; { // page 0 has a form of its own
				n := 2 + int(in[at+1])
				if in[at]&0x40 != 0 { // SPF
					n = 4 + int(binary.BigEndian.Uint16(in[at+2:]))
				}
				t.require(at+n <= int(k.gotten()), "page %#02x of %d bytes is longer than the data", in[at], n)
				at += n
			}
			ten := make([]byte, 512)
			k = s.good(s.attempt("MODE SENSE (10)", []byte{scsi.ModeSense10, 0, 0x3f, 0, 0, 0, 0, 2, 0, 0}, nil, ten), "MODE SENSE (10)")
			t.require(int(binary.BigEndian.Uint16(ten))+2 == int(k.gotten()), "MODE DATA LENGTH %d in %d bytes", binary.BigEndian.Uint16(ten), k.gotten())
		}),
		unit("scsi.mode-page-unknown", Must, "SPC-4 6.11.1", "a mode page that there is not ends with INVALID FIELD IN CDB", 0, func(t *T, s *Session) {
			s.senses(s.do([]byte{scsi.ModeSense6, 0, 0x2e, 0, 255, 0}, nil, make([]byte, 255)), "MODE SENSE", scsi.IllegalRequest, scsi.InvalidFieldInCDB)
		}),
		unit("scsi.request-sense", Must, "SPC-4 6.39", "REQUEST SENSE without a condition returns NO SENSE", 0, func(t *T, s *Session) {
			in := make([]byte, 252)
			k := s.good(s.do([]byte{scsi.RequestSense, 0, 0, 0, 252, 0}, nil, in), "REQUEST SENSE")
			sense, err := scsi.ParseSense(in[:k.gotten()])
			t.require(err == nil && sense.Key == scsi.NoSense, "it returns %x", in[:k.gotten()])
		}),
		unit("scsi.operation-codes", Must, "SPC-4 6.35", "REPORT SUPPORTED OPERATION CODES names no command that ends with INVALID COMMAND OPERATION CODE", 0, func(t *T, s *Session) {
			in := make([]byte, 4096)
			c := []byte{scsi.MaintenanceIn, scsi.ReportSupportedOperations, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0}
			k := s.attempt("REPORT SUPPORTED OPERATION CODES", c, nil, in)
			if k.Sense.Code == scsi.InvalidFieldInCDB {
				t.skip("the unit has no REPORT SUPPORTED OPERATION CODES")
			}
			s.good(k, "REPORT SUPPORTED OPERATION CODES")
			known := map[byte]bool{}
			for at := 4; at+8 <= int(k.gotten()); at += 8 {
				known[in[at]] = true
				if in[at+5]&2 != 0 { // with a timeouts descriptor
					at += 12
				}
			}
			for _, op := range []byte{scsi.Inquiry, scsi.TestUnitReady, scsi.Read10, scsi.ReportLUNs} {
				t.require(known[op], "operation code %#02x is not in the list", op)
			}
			if !known[scsi.Verify10] {
				s.senses(s.do(cdb10(scsi.Verify10, 0, 1), nil, nil), "VERIFY (10), which is not in the list,", scsi.IllegalRequest, scsi.InvalidOperationCode)
			}
		}),
		unit("scsi.attributes", Practice, "SAM-5 8.6", "SIMPLE, ORDERED and HEAD OF QUEUE tasks are carried out", 0, func(t *T, s *Session) {
			for _, a := range []iscsi.Attr{iscsi.Simple, iscsi.Ordered, iscsi.HeadOfQueue} {
				s.good(s.waitFor(s.start(tur, nil, nil, how{attr: a})), fmt.Sprintf("a task with attribute %d", a))
			}
		}),
	}
	return all
}
