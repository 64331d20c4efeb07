package lu

import (
	"bytes"
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// call is an I/O that a unit has asked its medium for.
type call struct {
	op     block.Op
	off, n int64
	fl     block.Flags
}

// tape is a Medium of any size that notes what it is asked for. It reads as zeroes.
type tape struct {
	geo   block.Geometry
	errno syscall.Errno
	calls []call
}

func (m *tape) Geometry() block.Geometry    { return m.geo }
func (m *tape) Identity() block.Identity    { return block.Identity{Disk: block.NamedID("tape")} }
func (m *tape) NewQueue(func()) block.Queue { return m }
func (m *tape) Close() error                { return nil }

func (m *tape) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	if op != block.OpWrite {
		clear(buf)
	}
	m.calls = append(m.calls, call{op, off, n, fl})
	done.Complete(m.errno)
	return true
}

// able is the geometry of a medium that can do all, of 16 GiB.
var able = block.Geometry{Size: 1 << 34, PreferredBlock: 4096, CanFlush: true, CanFUA: true, CanTrim: true, CanWriteZeroes: true, CanCache: true}

// cdb is a CDB with its second byte, an LBA and a number of blocks. One of 6 bytes has no LBA.
func cdb(op, flags byte, lba uint64, n uint32) []byte {
	b := make([]byte, scsi.CDBLen(op))
	b[0], b[1] = op, flags
	be := binary.BigEndian
	switch len(b) {
	case 6:
		b[4] = byte(n)
		return b
	case 16:
		be.PutUint64(b[2:], lba)
		be.PutUint32(b[10:], n)
		return b
	case 12:
		be.PutUint32(b[6:], n)
	default:
		be.PutUint16(b[7:], uint16(n))
	}
	be.PutUint32(b[2:], uint32(lba))
	return b
}

// unmapList is the parameter list of UNMAP with ranges.
func unmapList(all ...scsi.Range) []byte {
	b := make([]byte, 8)
	binary.BigEndian.PutUint16(b, uint16(6+16*len(all)))
	binary.BigEndian.PutUint16(b[2:], uint16(16*len(all)))
	for _, r := range all {
		b = binary.BigEndian.AppendUint64(b, r.LBA)
		b = append(binary.BigEndian.AppendUint32(b, r.Blocks), 0, 0, 0, 0)
	}
	return b
}

func unmapOf(flags byte, list []byte) []byte {
	return cdb(scsi.Unmap, flags, 0, uint32(len(list)))
}

// TestWhatCommandsAskOfTheMedium: to the byte, in its order, and durably where it is to be.
func TestWhatCommandsAskOfTheMedium(t *testing.T) {
	const r, w, f, z = block.OpRead, block.OpWrite, block.OpFlush, block.OpWriteZeroes
	ones := bytes.Repeat([]byte{1}, 512)
	zeroes := make([]byte, 512)
	noFUA, noFlush := able, able
	noFUA.CanFUA = false
	noFlush.CanFUA, noFlush.CanFlush = false, false
	two := unmapList(scsi.Range{LBA: 5, Blocks: 2}, scsi.Range{LBA: 99}, scsi.Range{LBA: 8, Blocks: 1})
	for name, c := range map[string]struct {
		geo  block.Geometry
		out  []byte
		cdb  []byte
		want []call
	}{
		"READ":                           {able, nil, cdb(scsi.Read10, 0, 3, 2), []call{{r, 1536, 1024, 0}}},
		"READ with FUA":                  {able, nil, cdb(scsi.Read10, 8, 3, 2), []call{{f, 0, 0, 0}, {r, 1536, 1024, 0}}},
		"READ with FUA, no cache":        {noFlush, nil, cdb(scsi.Read10, 8, 3, 2), []call{{r, 1536, 1024, 0}}},
		"READ (6) of 256 blocks":         {able, nil, []byte{scsi.Read6, 0x08, 0, 3, 0}, []call{{r, 0x80003 << 9, 256 << 9, 0}}},
		"WRITE (6)":                      {able, ones, []byte{scsi.Write6, 0x08, 0, 3, 1}, []call{{w, 0x80003 << 9, 512, 0}}},
		"WRITE":                          {able, ones, cdb(scsi.Write10, 0, 3, 1), []call{{w, 1536, 512, 0}}},
		"WRITE with FUA":                 {able, ones, cdb(scsi.Write10, 8, 3, 1), []call{{w, 1536, 512, block.FUA}}},
		"WRITE (16) with FUA":            {able, ones, cdb(scsi.Write16, 8, 3, 1), []call{{w, 1536, 512, block.FUA}}},
		"WRITE with FUA by a flush":      {noFUA, ones, cdb(scsi.Write10, 8, 3, 1), []call{{w, 1536, 512, 0}, {f, 0, 0, 0}}},
		"WRITE with FUA, no cache":       {noFlush, ones, cdb(scsi.Write10, 8, 3, 1), []call{{w, 1536, 512, 0}}},
		"WRITE of what there is less of": {able, ones, cdb(scsi.Write10, 0, 3, 8), []call{{w, 1536, 512, 0}}},
		"WRITE AND VERIFY":               {able, ones, cdb(scsi.WriteVerify10, 0, 3, 1), []call{{w, 1536, 512, block.FUA}, {r, 1536, 512, 0}}},
		"VERIFY without data":            {able, nil, cdb(scsi.Verify10, 0, 3, 2), []call{{r, 1536, 1024, 0}}},
		"ORWRITE with FUA":               {able, ones, cdb(scsi.OrWrite16, 8, 3, 1), []call{{r, 1536, 512, 0}, {w, 1536, 512, block.FUA}}},
		"COMPARE AND WRITE with FUA":     {able, append(slices.Clone(zeroes), ones...), []byte{scsi.CompareAndWrite, 8, 9: 3, 13: 1, 15: 0}, []call{{r, 1536, 512, 0}, {w, 1536, 512, block.FUA}}},
		"SYNCHRONIZE CACHE":              {able, nil, cdb(scsi.SynchronizeCache10, 0, 3, 2), []call{{f, 0, 0, 0}}},
		"SYNCHRONIZE CACHE at once":      {able, nil, cdb(scsi.SynchronizeCache16, 2, 0, 0), []call{{f, 0, 0, 0}}},
		"SYNCHRONIZE CACHE, no cache":    {noFlush, nil, cdb(scsi.SynchronizeCache10, 0, 3, 2), nil},
		"PREFETCH":                       {able, nil, cdb(scsi.PreFetch10, 0, 3, 2), []call{{block.OpCache, 1536, 1024, 0}}},
		"WRITE SAME of zeroes":           {able, zeroes, cdb(scsi.WriteSame10, 0, 3, 2), []call{{z, 1536, 1024, block.NoUnmap}}},
		"WRITE SAME with UNMAP":          {able, zeroes, cdb(scsi.WriteSame10, 8, 3, 2), []call{{z, 1536, 1024, 0}}},
		"WRITE SAME without data":        {able, nil, cdb(scsi.WriteSame16, 1, 3, 2), []call{{z, 1536, 1024, block.NoUnmap}}},
		"WRITE SAME of what is no zero":  {able, ones, cdb(scsi.WriteSame16, 8, 3, 200), []call{{w, 1536, 64 << 10, 0}, {w, 1536 + 64<<10, 200<<9 - 64<<10, 0}}},
		"WRITE SAME up to the end":       {able, zeroes, cdb(scsi.WriteSame16, 0, 1<<25-3, 0), []call{{z, 1<<34 - 1536, 1536, block.NoUnmap}}},
		"UNMAP":                          {able, two, unmapOf(0, two), []call{{z, 2560, 1024, 0}, {z, 4096, 512, 0}}},
	} {
		m := &tape{geo: c.geo}
		i := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
		if st, s := i.do(c.out, c.cdb...); st != scsi.Good || !slices.Equal(m.calls, c.want) {
			t.Errorf("%s: %#x %+v, %v", name, st, s, m.calls)
		}
	}
}

// TestWhatIsNoCommand: what is out of range, or asks for what there is not, is refused for its reason, and
// nothing is asked of the medium.
func TestWhatIsNoCommand(t *testing.T) {
	const last = uint64(1<<25 - 1)
	one := make([]byte, 512)
	list := func(r ...scsi.Range) []byte { return unmapList(r...) }
	many := make([]scsi.Range, maxUnmapRanges+1)
	noTrim := able
	noTrim.CanTrim = false
	for name, c := range map[string]struct {
		geo  block.Geometry
		out  []byte
		cdb  []byte
		want scsi.Code
	}{
		"the last block":                    {able, nil, cdb(scsi.Read16, 0, last, 1), 0},
		"one more":                          {able, nil, cdb(scsi.Read16, 0, last, 2), scsi.LBAOutOfRange},
		"the block behind the last":         {able, nil, cdb(scsi.Read16, 0, last+1, 1), scsi.LBAOutOfRange},
		"no block at the end":               {able, nil, cdb(scsi.Read16, 0, last+1, 0), 0},
		"no block behind the end":           {able, nil, cdb(scsi.Read16, 0, last+2, 0), scsi.LBAOutOfRange},
		"an LBA that wraps":                 {able, one, cdb(scsi.Write16, 0, 1<<55, 1), scsi.LBAOutOfRange},
		"a transfer of 1 MiB":               {able, nil, cdb(scsi.Read16, 0, 0, 2048), 0},
		"and a block":                       {able, nil, cdb(scsi.Read16, 0, 0, 2049), scsi.InvalidFieldInCDB},
		"protection information":            {able, nil, cdb(scsi.Read16, 0x20, 0, 1), scsi.InvalidFieldInCDB},
		"WRITE with protection information": {able, one, cdb(scsi.Write10, 0x60, 0, 1), scsi.InvalidFieldInCDB},
		"VERIFY with a reserved BYTCHK":     {able, nil, cdb(scsi.Verify10, 4, 0, 1), scsi.InvalidFieldInCDB},
		"COMPARE AND WRITE of half":         {able, one, []byte{scsi.CompareAndWrite, 13: 1, 15: 0}, scsi.InvalidFieldInCDB},
		"part of a block":                   {able, one[:300], cdb(scsi.Write10, 0, 0, 1), scsi.InvalidFieldInInformation},
		"WRITE SAME with ANCHOR":            {able, one, cdb(scsi.WriteSame16, 0x18, 0, 1), scsi.InvalidFieldInCDB},
		"WRITE SAME of two blocks of data":  {able, make([]byte, 1024), cdb(scsi.WriteSame16, 0, 0, 1), scsi.InvalidFieldInCDB},
		"WRITE SAME of 16 MiB":              {able, one, cdb(scsi.WriteSame16, 0, 0, maxWriteSame>>9), 0},
		"WRITE SAME of more":                {able, one, cdb(scsi.WriteSame16, 0, 0, maxWriteSame>>9+1), scsi.InvalidFieldInCDB},
		"WRITE SAME of more up to the end":  {able, one, cdb(scsi.WriteSame16, 0, last-maxWriteSame>>9, 0), scsi.InvalidFieldInCDB},
		"WRITE SAME with UNMAP, thick":      {noTrim, one, cdb(scsi.WriteSame16, 8, 0, 1), scsi.InvalidFieldInCDB},
		"UNMAP up to the end":               {able, list(scsi.Range{LBA: last, Blocks: 1}), unmapOf(0, list(many[0])), 0},
		"UNMAP beyond the end":              {able, list(scsi.Range{LBA: last, Blocks: 2}), unmapOf(0, list(many[0])), scsi.LBAOutOfRange},
		"UNMAP of a second that is beyond":  {able, list(many[0], scsi.Range{LBA: last + 1, Blocks: 1}), unmapOf(0, list(many[:2]...)), scsi.LBAOutOfRange},
		"UNMAP of more than one may":        {able, list(scsi.Range{Blocks: maxUnmap>>9 + 1}), unmapOf(0, list(many[0])), scsi.InvalidFieldInParameters},
		"UNMAP of too many":                 {able, list(many...), unmapOf(0, list(many...)), scsi.InvalidFieldInParameters},
		"UNMAP with ANCHOR":                 {able, list(many[0]), unmapOf(1, list(many[0])), scsi.InvalidFieldInCDB},
		"UNMAP, thick":                      {noTrim, list(many[0]), unmapOf(0, list(many[0])), scsi.InvalidFieldInCDB},
		"UNMAP of part of a range":          {able, append(list(many[0]), 0)[:20], []byte{scsi.Unmap, 8: 20, 9: 0}, scsi.InvalidFieldInParameters},
		"eject what stays":                  {able, nil, []byte{scsi.StartStopUnit, 0, 0, 0, 2, 0}, scsi.InvalidFieldInCDB},
		"hold what stays":                   {able, nil, []byte{scsi.PreventAllow, 0, 0, 0, 1, 0}, scsi.InvalidFieldInCDB},
		"a list of LUNs of no kind":         {able, nil, []byte{scsi.ReportLUNs, 0, 3, 9: 64, 11: 0}, scsi.InvalidFieldInCDB},
		"saved mode pages":                  {able, nil, []byte{scsi.ModeSense6, 0, 0xc8, 0, 64, 0}, scsi.SavingNotSupported},
		"a subpage":                         {able, nil, []byte{scsi.ModeSense6, 0, 8, 1, 64, 0}, scsi.InvalidFieldInCDB},
		"a mode page that there is not":     {able, nil, []byte{scsi.ModeSense6, 0, 5, 0, 64, 0}, scsi.InvalidFieldInCDB},
		"modes that are to be saved":        {able, make([]byte, 4), []byte{scsi.ModeSelect6, 0x11, 0, 0, 4, 0}, scsi.InvalidFieldInCDB},
		"a page of INQUIRY without EVPD":    {able, nil, []byte{scsi.Inquiry, 0, 0x80, 0, 64, 0}, scsi.InvalidFieldInCDB},
		"a page of INQUIRY that is none":    {able, nil, []byte{scsi.Inquiry, 1, 0xc0, 0, 64, 0}, scsi.InvalidFieldInCDB},
		"an operation code of nobody":       {able, nil, []byte{0xc0}, scsi.InvalidOperationCode},
		"a service action of nobody":        {able, nil, []byte{scsi.ServiceActionIn16, 0x1f, 15: 0}, scsi.InvalidFieldInCDB},
	} {
		m := &tape{geo: c.geo}
		i := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
		st, s := i.do(c.out, c.cdb...)
		if s.Code != c.want || (st == scsi.Good) != (c.want == 0) || c.want != 0 && s.Key != scsi.IllegalRequest {
			t.Errorf("%s: %#x %+v, want %#x", name, st, s, c.want)
		}
		if c.want != 0 && len(m.calls) > 0 {
			t.Errorf("%s: %v", name, m.calls)
		}
	}
}

// TestErrorsOfTheMedium: each has the sense by which an initiator knows what to do.
func TestErrorsOfTheMedium(t *testing.T) {
	for _, c := range []struct {
		errno syscall.Errno
		cdb   []byte
		key   scsi.Key
		code  scsi.Code
	}{
		{syscall.EIO, cdb(scsi.Read10, 0, 7, 1), scsi.MediumError, scsi.UnrecoveredReadError},
		{syscall.EIO, cdb(scsi.Write10, 0, 7, 1), scsi.MediumError, scsi.WriteError},
		{syscall.ENOSPC, cdb(scsi.Write10, 0, 7, 1), scsi.DataProtect, scsi.WriteErrorSpace},
		{syscall.EDQUOT, cdb(scsi.Write10, 0, 7, 1), scsi.DataProtect, scsi.WriteErrorSpace},
		{syscall.EROFS, cdb(scsi.Write10, 0, 7, 1), scsi.DataProtect, scsi.WriteProtected},
		{syscall.EPERM, cdb(scsi.Write10, 0, 7, 1), scsi.DataProtect, scsi.WriteProtected},
	} {
		i := newInitiator(t, newDevice(t, Config{Medium: &tape{geo: able, errno: c.errno}}), "a")
		if st, s := i.do(make([]byte, 512), c.cdb...); st != scsi.CheckCondition || s.Key != c.key || s.Code != c.code || c.key == scsi.MediumError && s.Info != 7 {
			t.Errorf("%v: %#x %+v", c.errno, st, s)
		}
	}
}

// TestWhatAUnitSaysOfItself in parameter data.
func TestWhatAUnitSaysOfItself(t *testing.T) {
	be := binary.BigEndian
	big := able
	big.Size = 1 << 42
	inquire := func(page byte) []byte { return []byte{scsi.Inquiry, 1, page, 1, 0, 0} }
	sense := func(page byte) []byte { return []byte{scsi.ModeSense6, 0, page, 0, 255, 0} }
	for name, c := range map[string]struct {
		cfg Config
		cdb []byte
		ok  func(b []byte) bool
	}{
		"INQUIRY":            {Config{}, []byte{scsi.Inquiry, 0, 0, 0, 255, 0}, func(b []byte) bool { return len(b) == 96 && b[0] == 0 && b[1] == 0 && int(b[4]) == len(b)-5 }},
		"INQUIRY of a part":  {Config{}, []byte{scsi.Inquiry, 0, 0, 0, 5, 0}, func(b []byte) bool { return len(b) == 5 }},
		"INQUIRY, removable": {Config{Removable: true}, []byte{scsi.Inquiry, 0, 0, 0, 255, 0}, func(b []byte) bool { return b[1] == 0x80 }},
		"pages":              {Config{}, inquire(0), func(b []byte) bool { return bytes.Equal(b[4:], []byte{0, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2}) }},
		"limits": {Config{}, inquire(0xb0), func(b []byte) bool {
			return b[5] == 255 && be.Uint32(b[8:]) == 2048 && be.Uint32(b[20:]) == maxUnmap>>9 && be.Uint32(b[24:]) == maxUnmapRanges && be.Uint64(b[36:]) == maxWriteSame>>9
		}},
		"provisioning":     {Config{}, inquire(0xb2), func(b []byte) bool { return b[5] == 0xe4 && b[6] == 2 }},
		"extended INQUIRY": {Config{}, inquire(0x86), func(b []byte) bool { return b[5] == 7 && b[6] == 1 }},
		"port groups": {Config{}, []byte{scsi.MaintenanceIn, scsi.ReportTargetPortGroups, 9: 64, 11: 0}, func(b []byte) bool {
			return int(be.Uint32(b)) == len(b)-4 && b[4] == 0 && b[5] == 1 && b[11] == 1 && b[15] == targetPort
		}},
		"capacity":              {Config{}, []byte{scsi.ReadCapacity10, 9: 0}, func(b []byte) bool { return be.Uint32(b) == 1<<25-1 && be.Uint32(b[4:]) == 512 }},
		"capacity (16)":         {Config{}, []byte{scsi.ServiceActionIn16, scsi.ReadCapacity16, 13: 32, 15: 0}, func(b []byte) bool { return len(b) == 32 && be.Uint64(b) == 1<<25-1 && b[13] == 3 && b[14] == 0xc0 }},
		"capacity of a big one": {Config{Medium: &tape{geo: big}}, []byte{scsi.ReadCapacity10, 9: 0}, func(b []byte) bool { return be.Uint32(b) == 1<<32-1 }},
		"capacity (16), 4096":   {Config{BlockSize: 4096}, []byte{scsi.ServiceActionIn16, scsi.ReadCapacity16, 13: 32, 15: 0}, func(b []byte) bool { return be.Uint64(b) == 1<<22-1 && be.Uint32(b[8:]) == 4096 && b[13] == 0 }},
		"caching": {Config{}, sense(8), func(b []byte) bool {
			return int(b[0]) == len(b)-1 && b[2] == 0x10 && b[3] == 8 && b[12] == 8 && b[14] == 4
		}},
		"caching, read-only":  {Config{ReadOnly: true}, sense(8), func(b []byte) bool { return b[2] == 0x90 }},
		"what caching may be": {Config{}, sense(0x48), func(b []byte) bool { return bytes.Equal(b[14:], make([]byte, 18)) }},
		"control":             {Config{}, sense(10), func(b []byte) bool { return b[12] == 10 && b[14] == 0 && b[15] == 0x10 && b[16] == 0 }},
		"what control may be": {Config{}, sense(0x4a), func(b []byte) bool { return b[14] == 4 && b[16] == 8 }},
		"no block descriptor": {Config{}, []byte{scsi.ModeSense6, 8, 8, 0, 255, 0}, func(b []byte) bool { return b[3] == 0 && b[4] == 8 }},
		"a long block descriptor": {Config{}, []byte{scsi.ModeSense10, 0x10, 8, 8: 255, 9: 0}, func(b []byte) bool {
			return int(be.Uint16(b)) == len(b)-2 && b[4] == 1 && b[7] == 16 && be.Uint64(b[8:]) == 1<<25 && be.Uint32(b[20:]) == 512
		}},
		"functions":               {Config{}, []byte{scsi.MaintenanceIn, scsi.ReportSupportedTMFs, 9: 4, 11: 0}, func(b []byte) bool { return b[0] == 0xda }},
		"whether it has SANITIZE": {Config{}, []byte{scsi.MaintenanceIn, scsi.ReportSupportedOperations, 2, scsi.Sanitize, 0, scsi.BlockErase, 9: 64, 11: 0}, func(b []byte) bool { return b[1] == 1 }},
		"all commands, no SANITIZE": {Config{}, []byte{scsi.MaintenanceIn, scsi.ReportSupportedOperations, 8: 0xff, 9: 0xff, 11: 0}, func(b []byte) bool {
			for r := b[4:]; len(r) > 0; r = r[8:] {
				if r[0] == scsi.Sanitize {
					return false
				}
			}
			return int(be.Uint32(b)) == len(b)-4
		}},
		"what is defect": {Config{}, []byte{scsi.ReadDefectData10, 0, 0x1d, 8: 8, 9: 0}, func(b []byte) bool { return len(b) == 4 && b[1] == 0x1d && b[3] == 0 }},
	} {
		if c.cfg.Medium == nil {
			c.cfg.Medium = &tape{geo: able}
		}
		i := newInitiator(t, newDevice(t, c.cfg), "a")
		if st, s := i.do(nil, c.cdb...); st != scsi.Good || !c.ok(i.in()) {
			t.Errorf("%s: %#x %+v, %x", name, st, s, i.in())
		}
	}
}

// TestHolesAreTold by GET LBA STATUS.
func TestHolesAreTold(t *testing.T) {
	m := newMemory(1 << 20)
	m.holes = []block.Extent{{Length: 4096}, {Length: 8192, State: block.Hole}, {Length: 4096}}
	i := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
	i.want(scsi.Good, 0, nil, []byte{scsi.ServiceActionIn16, scsi.GetLBAStatus, 9: 16, 13: 255, 15: 0}...)
	b := i.in()
	if len(b) < 56 || int(binary.BigEndian.Uint32(b)) != len(b)-4 {
		t.Fatalf("%x", b)
	}
	for n, want := range []struct {
		lba    uint64
		blocks uint32
		state  byte
	}{{16, 8, 0}, {24, 16, 1}, {40, 8, 0}} {
		d := b[8+16*n:]
		if binary.BigEndian.Uint64(d) != want.lba || binary.BigEndian.Uint32(d[8:]) != want.blocks || d[12] != want.state {
			t.Errorf("%d: %x", n, d[:16])
		}
	}
}

// control is the parameter list of MODE SELECT (6) with a control page.
func control(dsense, swp byte) []byte {
	return []byte{0, 0, 0, 0, 10, 10, dsense, 0x10, swp, 0, 0, 0, 0xff, 0xff, 0, 0}
}

// TestModesAreSelected: others are told, writes stop, sense data have the other format, a reset ends it all,
// and what may not be changed is not.
func TestModesAreSelected(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	selects := []byte{scsi.ModeSelect6, 0x10, 0, 0, 16, 0}
	a.want(scsi.Good, 0, control(4, 8), selects...)
	if b.attention() != scsi.ModeParametersChanged || a.attention() != 0 {
		t.Error("the wrong ones are told")
	}
	a.want(scsi.Good, 0, control(4, 8), selects...)
	if b.attention() != 0 {
		t.Error("what has not changed is told")
	}
	if st, s := b.do(make([]byte, 512), cdb(scsi.Write10, 0, 0, 1)...); st != scsi.CheckCondition || s.Key != scsi.DataProtect || s.Code != scsi.WriteProtected || b.task.Sense()[0] != 0x72 {
		t.Errorf("%#x %+v %x", st, s, b.task.Sense())
	}
	if !b.mayRead() {
		t.Error("reads are refused")
	}
	if b.do(nil, scsi.ModeSense6, 0, 10, 0, 255); b.in()[2]&0x80 == 0 || b.in()[14] != 4 || b.in()[16] != 8 {
		t.Errorf("%x", b.in())
	}
	b.Nexus(b.lun).Reset(scsi.BusDeviceReset)
	if a.attention() != scsi.BusDeviceReset || b.attention() != scsi.BusDeviceReset || !b.mayWrite() {
		t.Error("a reset has left something")
	}
	b.want(scsi.CheckCondition, scsi.InvalidOperationCode, nil, 0xff)
	if b.task.Sense()[0] != 0x70 {
		t.Errorf("%x", b.task.Sense())
	}
	wrong := control(0, 8)
	wrong[7] = 0
	a.want(scsi.CheckCondition, scsi.InvalidFieldInParameters, wrong, selects...)
	a.want(scsi.CheckCondition, scsi.ParameterListLength, control(0, 8)[:15], selects...)
	if !a.mayWrite() {
		t.Error("half of a list is taken")
	}
}

// TestRemovableMedium: who holds it keeps it in, and when it comes back others are told.
func TestRemovableMedium(t *testing.T) {
	m := &tape{geo: able}
	d := newDevice(t, Config{Medium: m, Removable: true})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	eject, load := []byte{scsi.StartStopUnit, 0, 0, 0, 2, 0}, []byte{scsi.StartStopUnit, 0, 0, 0, 3, 0}
	a.want(scsi.Good, 0, nil, scsi.PreventAllow, 0, 0, 0, 1)
	b.want(scsi.CheckCondition, scsi.MediumRemovalPrevented, nil, eject...)
	b.Nexus(b.lun).Reset(scsi.BusDeviceReset)
	b.attention()
	a.attention()
	b.want(scsi.Good, 0, nil, eject...)
	if !slices.Equal(m.calls, []call{{op: block.OpFlush}}) {
		t.Errorf("ejected after %v", m.calls)
	}
	for _, i := range []*initiator{a, b} {
		i.want(scsi.CheckCondition, scsi.MediumNotPresent, nil, scsi.TestUnitReady)
		i.want(scsi.CheckCondition, scsi.MediumNotPresent, nil, cdb(scsi.Read10, 0, 0, 1)...)
	}
	b.want(scsi.Good, 0, nil, load...)
	if a.attention() != scsi.MediumMayHaveChanged || b.attention() != 0 {
		t.Error("the wrong ones are told")
	}
	m.calls = nil
	b.want(scsi.Good, 0, nil, scsi.StartStopUnit, 0, 0, 0, 6) // NO_FLUSH
	if len(m.calls) > 0 {
		t.Errorf("%v", m.calls)
	}
}

// TestUnitAttentionsAreTakenOnce, by REQUEST SENSE too; INQUIRY and REPORT LUNS leave them; too many are one
// that says all.
func TestUnitAttentionsAreTakenOnce(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	i := newInitiator(t, d, "a")
	n := i.Nexus(i.lun)
	n.Lost()
	n.Lost()
	i.want(scsi.Good, 0, nil, scsi.Inquiry, 0, 0, 0, 96)
	i.want(scsi.Good, 0, nil, []byte{scsi.ReportLUNs, 9: 64, 11: 0}...)
	i.want(scsi.Good, 0, nil, scsi.RequestSense, 0, 0, 0, 252)
	if s, err := scsi.ParseSense(i.in()); err != nil || s.Key != scsi.UnitAttention || s.Code != scsi.ClearedByISCSI {
		t.Errorf("%+v %v", s, err)
	}
	i.want(scsi.Good, 0, nil, scsi.RequestSense, 0, 0, 0, 252)
	if s, err := scsi.ParseSense(i.in()); err != nil || s.Key != scsi.NoSense || s.Code != 0 {
		t.Errorf("%+v %v", s, err)
	}
	for c := range scsi.Code(maxAttentions + 1) {
		n.attend(0x2f00 + c)
	}
	if i.attention() != scsi.PowerOnOrReset {
		t.Error("attentions are lost")
	}
	other := newInitiator(t, d, "b")
	other.Nexus(other.lun).Cleared()
	if i.attention() != scsi.CommandsCleared || other.attention() != 0 {
		t.Error("the wrong ones are told that commands were cleared")
	}
}

// TestReserve6 is table 9 of SPC-2, what ends such a reservation, and its quarrel with registrations.
func TestReserve6(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	a.want(scsi.Good, 0, nil, scsi.Reserve6)
	if !a.mayRead() || !a.mayWrite() || b.mayRead() || b.mayWrite() {
		t.Error("the wrong ones may read or write")
	}
	for _, cdb := range [][]byte{{scsi.Inquiry, 0, 0, 0, 96}, {scsi.ReportLUNs, 9: 64, 11: 0}, {scsi.RequestSense, 0, 0, 0, 18}, {scsi.Release6}, {scsi.PreventAllow}} {
		b.want(scsi.Good, 0, nil, cdb...)
	}
	for _, cdb := range [][]byte{{scsi.TestUnitReady}, {scsi.ReadCapacity10, 9: 0}, {scsi.PersistentReserveIn, 8: 8, 9: 0}, {scsi.ModeSense6, 0, 8, 0, 64}} {
		b.want(scsi.ReservationConflict, 0, nil, cdb...)
	}
	b.want(scsi.ReservationConflict, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
	b.want(scsi.ReservationConflict, 0, nil, scsi.Reserve6) // b's RELEASE has changed nothing
	b.Nexus(b.lun).Reset(scsi.BusDeviceReset)
	a.attention()
	b.attention()
	if !b.mayWrite() {
		t.Error("a reset leaves the reservation")
	}
	b.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
	a.want(scsi.ReservationConflict, 0, nil, scsi.Reserve6)
	b.want(scsi.ReservationConflict, 0, nil, scsi.Release6)
}

// TestWhatIsToldOfReservations by PERSISTENT RESERVE IN, and what is refused.
func TestWhatIsToldOfReservations(t *testing.T) {
	be := binary.BigEndian
	d := newDevice(t, Config{Medium: newMemory(1 << 20), Reservations: t.TempDir() + "/r"})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	told := func(action byte) []byte {
		a.want(scsi.Good, 0, nil, []byte{scsi.PersistentReserveIn, action, 7: 1, 9: 0}...)
		return slices.Clone(a.in())
	}
	a.want(scsi.ReservationConflict, 0, keys(9, 1, 0), persistentOut(scsi.Register, 0)...) // nobody is registered with 9
	a.want(scsi.Good, 0, keys(0, 1, 1), persistentOut(scsi.Register, 0)...)                // with APTPL
	a.want(scsi.ReservationConflict, 0, keys(9, 2, 1), persistentOut(scsi.Register, 0)...)
	b.want(scsi.Good, 0, keys(0, 2, 1), persistentOut(scsi.Register, 0)...)
	if k := told(scsi.ReadKeys); be.Uint32(k) != 2 || be.Uint32(k[4:]) != 16 || len(k) != 24 || be.Uint64(k[8:]) != 1 || be.Uint64(k[16:]) != 2 {
		t.Errorf("%x", k)
	}
	if c := told(scsi.ReportCapabilities); c[2]&1 == 0 || c[3] != 0x81 || c[4] != 0xea || c[5] != 1 {
		t.Errorf("%x", c)
	}
	a.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, keys(1, 0, 0), pr(scsi.Reserve, 0x10|scsi.WriteExclusive, keys(1, 0, 0))...)
	a.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, keys(1, 0, 0), persistentOut(scsi.Reserve, 2)...)
	a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
	a.want(scsi.ReservationConflict, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.ExclusiveAccess)...)
	a.want(scsi.CheckCondition, scsi.InvalidRelease, keys(1, 0, 0), persistentOut(scsi.Release, scsi.ExclusiveAccess)...)
	if r := told(scsi.ReadReservation); len(r) != 24 || be.Uint64(r[8:]) != 1 || r[21] != byte(scsi.WriteExclusive) {
		t.Errorf("%x", r)
	}
	full := told(scsi.ReadFullStatus)
	next := 8 + 24 + int(be.Uint32(full[8+20:]))
	if full[8+12] != 3 || full[8+13] != byte(scsi.WriteExclusive) || full[next+12] != 2 || full[next+13] != 0 {
		t.Errorf("%x", full)
	}
	a.want(scsi.ReservationConflict, 0, keys(1, 77, 0), persistentOut(scsi.Preempt, scsi.WriteExclusive)...)
	a.want(scsi.CheckCondition, scsi.InvalidFieldInParameters, keys(1, 0, 0), persistentOut(scsi.Preempt, scsi.WriteExclusive)...)
	b.want(scsi.Good, 0, keys(2, 1, 0), persistentOut(scsi.Preempt, scsi.ExclusiveAccessAll)...)
	if a.attention() != scsi.RegistrationsPreempted {
		t.Error("who was preempted is not told")
	}
	if r := told(scsi.ReadReservation); len(r) != 24 || be.Uint32(r) != 3 || be.Uint64(r[8:]) != 0 || r[21] != byte(scsi.ExclusiveAccessAll) {
		t.Errorf("%x", r)
	}
}

// TestWhatIsCompared to the byte, over several reads of the medium, and what is merged with it.
func TestWhatIsCompared(t *testing.T) {
	m := newMemory(1 << 20)
	i := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
	const blocks, wrong = 200, 70001 // more than one read, and a byte of the second
	data := bytes.Repeat([]byte{0x0f}, blocks<<9)
	i.want(scsi.Good, 0, data, cdb(scsi.Write10, 0, 4, blocks)...)
	other := bytes.Clone(data)
	other[wrong] = 0xf0
	miscompares := func(at uint64, out []byte, cdb []byte) {
		t.Helper()
		if st, s := i.do(out, cdb...); st != scsi.CheckCondition || s.Key != scsi.Miscompare || !s.HasInfo || s.Info != at {
			t.Errorf("%x: %#x %+v, want a miscompare at %d", cdb, st, s, at)
		}
	}
	for _, op := range []byte{scsi.Verify10, scsi.Verify16} {
		i.want(scsi.Good, 0, data, cdb(op, 2, 4, blocks)...)
		miscompares(wrong, other, cdb(op, 2, 4, blocks))
	}
	i.want(scsi.Good, 0, data[:512], cdb(scsi.Verify10, 6, 4, blocks)...)
	m.data[4<<9+wrong] = 0x77
	miscompares(wrong, data[:512], cdb(scsi.Verify10, 6, 4, blocks))
	miscompares(wrong, data, cdb(scsi.Verify10, 2, 4, blocks))
	pair := bytes.Repeat([]byte{0x0f}, 1024)
	pair[300] = 1
	miscompares(300, pair, []byte{scsi.CompareAndWrite, 9: 4, 13: 1, 15: 0})
	if m.data[4<<9] != 0x0f {
		t.Error("what does not compare is written")
	}
	i.want(scsi.Good, 0, bytes.Repeat([]byte{0x30}, 512), cdb(scsi.OrWrite16, 0, 4, 1)...)
	if !bytes.Equal(m.data[4<<9:5<<9], bytes.Repeat([]byte{0x3f}, 512)) {
		t.Errorf("%x", m.data[4<<9:4<<9+8])
	}
	i.want(scsi.Good, 0, bytes.Repeat([]byte{0x55}, 512), cdb(scsi.WriteVerify10, 2, 4, 1)...)
	if m.data[4<<9] != 0x55 {
		t.Error("WRITE AND VERIFY has not written")
	}
}

// TestKindsOfCommands: which of them a write protection stops, and which reservations of others (SPC-4 table 40,
// SBC-3 table 4).
func TestKindsOfCommands(t *testing.T) {
	op := func(all ...byte) (cdbs [][]byte) {
		for _, o := range all {
			cdbs = append(cdbs, cdb(o, 0, 0, 1))
		}
		return cdbs
	}
	action := func(o byte, actions ...byte) (cdbs [][]byte) {
		for _, a := range actions {
			cdbs = append(cdbs, append([]byte{o, a}, make([]byte, 14)...))
		}
		return cdbs
	}
	for name, c := range map[string]struct {
		cdbs           [][]byte
		stopped        bool // by a write protection
		writer, reader bool // by a reservation of another for writing, or for reading as well
	}{
		"what writes": {op(scsi.Write6, scsi.Write10, scsi.Write12, scsi.Write16, scsi.WriteVerify10, scsi.WriteVerify12, scsi.WriteVerify16, scsi.WriteSame10, scsi.WriteSame16, scsi.Unmap, scsi.CompareAndWrite, scsi.OrWrite16), true, true, true},
		"what reads": {append(op(scsi.Read6, scsi.Read10, scsi.Read12, scsi.Read16, scsi.Verify10, scsi.Verify12, scsi.Verify16, scsi.PreFetch10, scsi.PreFetch16, scsi.ReadDefectData10, scsi.ReadDefectData12, scsi.ModeSense6, scsi.ModeSense10),
			append(action(scsi.ServiceActionIn16, scsi.GetLBAStatus), action(scsi.ReceiveCopyResults, scsi.CopyStatus, scsi.CopyParameters, scsi.CopyFailure)...)...), false, false, true},
		"what changes its state": {op(scsi.SynchronizeCache10, scsi.SynchronizeCache16, scsi.ModeSelect6, scsi.ModeSelect10, scsi.ExtendedCopy), false, true, true},
		"what is anybody's": {append(op(scsi.TestUnitReady, scsi.Inquiry, scsi.RequestSense, scsi.ReportLUNs, scsi.ReadCapacity10),
			append(action(scsi.ServiceActionIn16, scsi.ReadCapacity16), append(action(scsi.MaintenanceIn, scsi.ReportTargetPortGroups, scsi.ReportSupportedOperations, scsi.ReportSupportedTMFs),
				action(scsi.PersistentReserveIn, scsi.ReadKeys, scsi.ReadReservation, scsi.ReportCapabilities, scsi.ReadFullStatus)...)...)...), false, false, false},
	} {
		for _, b := range c.cdbs {
			i := newInitiator(t, newDevice(t, Config{Medium: &tape{geo: able}, ReadOnly: true}), "a")
			if _, s := i.do(nil, b...); (s.Key == scsi.DataProtect && s.Code == scsi.WriteProtected) != c.stopped {
				t.Errorf("%s: %x of a unit that is read-only: %+v", name, b, s)
			}
			for kind, conflicts := range map[scsi.Type]bool{scsi.WriteExclusive: c.writer, scsi.ExclusiveAccess: c.reader} {
				d := newDevice(t, Config{Medium: &tape{geo: able}})
				holder, i := newInitiator(t, d, "holder"), newInitiator(t, d, "a")
				holder.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
				holder.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, kind)...)
				if st, _ := i.do(nil, b...); (st == scsi.ReservationConflict) != conflicts {
					t.Errorf("%s: %x where another holds a reservation of type %d: %#x", name, b, kind, st)
				}
			}
		}
	}
}

// TestReservationsAreInTheFile while they are to be, not when they are not any more; what cannot be written does not
// take effect; and a reservation of all registrants ends with the last of them.
func TestReservationsAreInTheFile(t *testing.T) {
	path := t.TempDir() + "/r"
	m := &tape{geo: able}
	u := newUnit(t, Config{Medium: m, Reservations: path})
	d := &Device{}
	if err := d.Add(0, u); err != nil {
		t.Fatal(err)
	}
	i := newInitiator(t, d, "a")
	registered := func(i *initiator) bool {
		i.do(nil, []byte{scsi.PersistentReserveIn, scsi.ReadKeys, 8: 64, 9: 0}...)
		return len(i.in()) > 8
	}
	after := func() *initiator { return newInitiator(t, newDevice(t, Config{Medium: m, Reservations: path}), "a") }
	i.want(scsi.Good, 0, keys(0, 1, 1), persistentOut(scsi.Register, 0)...)
	if !registered(after()) {
		t.Error("it is forgotten")
	}
	i.want(scsi.Good, 0, keys(1, 1, 0), persistentOut(scsi.Register, 0)...)
	if registered(after()) || !registered(i) {
		t.Error("what is not to be kept is in the file, or not kept at all")
	}
	u.write = func(string, any) error { return syscall.EIO }
	i.want(scsi.CheckCondition, scsi.InternalTargetFailure, keys(1, 2, 1), persistentOut(scsi.Register, 0)...)
	i.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.ExclusiveAccessAll)...)
	i.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Register, 0)...)
	if registered(i) || !newInitiator(t, d, "b").mayWrite() {
		t.Error("a reservation of nobody is left")
	}
}

// TestMoveLeavesOrStays: who moves its reservation away stays registered unless it says otherwise.
func TestMoveLeavesOrStays(t *testing.T) {
	for flags, left := range map[byte]uint32{0: 2, 2: 1} {
		a := newInitiator(t, newDevice(t, Config{Medium: newMemory(1 << 20)}), "a")
		a.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
		a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
		list := moveTo(1, 9, flags, "b,i,0x000000000000")
		a.want(scsi.Good, 0, list, pr(scsi.RegisterAndMove, 0, list)...)
		if a.do(nil, []byte{scsi.PersistentReserveIn, scsi.ReadKeys, 8: 64, 9: 0}...); binary.BigEndian.Uint32(a.in()[4:]) != 8*left {
			t.Errorf("%d: keys %x", flags, a.in())
		}
	}
}
