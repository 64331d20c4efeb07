package nbd

import (
	"cmp"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// geometry is an export's geometry as its clients see it.
type geometry block.Geometry

// withDefaults fills in what a device left at 0.
func (g geometry) withDefaults() geometry {
	g.MinBlock = min(max(g.MinBlock, 1), 1<<16)
	g.PreferredBlock = max(cmp.Or(g.PreferredBlock, 4096), g.MinBlock, 512)
	if g.MaxIO == 0 || g.MaxIO > maxPayload {
		g.MaxIO = maxPayload
	}
	return g
}

// advertisedMax is the maximum payload in bytes advertised to clients.
func (g *geometry) advertisedMax() uint32 {
	return max(g.MaxIO, minAdvertisedMax, g.PreferredBlock)
}

func (g *geometry) transmissionFlags(f features) uint16 {
	flags := uint16(flagHasFlags)
	set := func(on bool, flag uint16) {
		if on {
			flags |= flag
		}
	}
	set(g.ReadOnly, flagReadOnly)
	set(g.CanFlush, flagSendFlush)
	set(g.CanFUA, flagSendFUA)
	set(g.Rotational, flagRotational)
	set(g.MultiConn, flagCanMultiConn)
	set(g.CanCache, flagSendCache)
	set(f.structured, flagSendDF)
	set(!g.ReadOnly && g.CanTrim, flagSendTrim)
	set(!g.ReadOnly && g.CanWriteZeroes, flagSendWriteZeroes)
	set(!g.ReadOnly && g.CanWriteZeroes && g.CanFastZero, flagSendFastZero)
	return flags
}

// translate translates a request for the device, or returns the error with which it is
// refused ("Command flags", "Request types", "Error values"). size is the device's now.
func (g *geometry) translate(r *request, size uint64, f features) (op block.Op, fl block.Flags, errno syscall.Errno) {
	allowed := uint16(0)
	if g.CanFUA {
		allowed = cmdFlagFUA // valid for all commands, if negotiated
	}
	writes, outside := false, syscall.EINVAL
	switch r.typ {
	case cmdRead:
		op = block.OpRead
		if f.structured {
			allowed |= cmdFlagDF
		}
	case cmdWrite:
		op, writes, outside = block.OpWrite, true, syscall.ENOSPC
	case cmdFlush:
		if !g.CanFlush || r.offset != 0 || r.length != 0 || r.flags&^allowed != 0 {
			return 0, 0, syscall.EINVAL
		}
		return block.OpFlush, 0, 0
	case cmdTrim:
		op, writes = block.OpTrim, true
	case cmdWriteZeroes:
		op, writes, outside = block.OpWriteZeroes, true, syscall.ENOSPC
		allowed |= cmdFlagNoHole
		if g.CanFastZero {
			allowed |= cmdFlagFastZero
		}
	case cmdCache:
		op = block.OpCache
	case cmdBlockStatus:
		op = block.OpStatus
		allowed |= cmdFlagReqOne
	default:
		return 0, 0, syscall.EINVAL
	}
	switch {
	case r.payload != (op == block.OpWrite):
		return 0, 0, syscall.EINVAL
	case writes && g.ReadOnly:
		return 0, 0, syscall.EPERM
	case op == block.OpCache && !g.CanCache, op == block.OpStatus && (!f.allocation || r.length == 0):
		return 0, 0, syscall.EINVAL
	case op == block.OpTrim && !g.CanTrim, op == block.OpWriteZeroes && !g.CanWriteZeroes, r.flags&^allowed != 0:
		return 0, 0, syscall.EINVAL
	case op.HasData() && r.length > maxPayload:
		return 0, 0, syscall.EINVAL
	case r.offset > size || r.length > size-r.offset:
		return 0, 0, outside
	case (r.offset|r.length)&uint64(g.MinBlock-1) != 0:
		return 0, 0, syscall.EINVAL
	}
	if writes && r.flags&cmdFlagFUA != 0 {
		fl |= block.FUA
	}
	if r.flags&cmdFlagNoHole != 0 {
		fl |= block.NoUnmap
	}
	if r.flags&cmdFlagFastZero != 0 {
		fl |= block.FastZero
	}
	return op, fl, 0
}
