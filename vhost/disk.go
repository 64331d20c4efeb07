package vhost

import (
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// disk is the device as one front end has it.
type disk struct {
	block.Device
	geo          block.Geometry
	size         *atomic.Uint64 // bytes, by now
	serial       string
	features     uint64      // that the front end has chosen
	writeBack    bool        // as the guest has set it
	writeThrough atomic.Bool // writes are durable when they end
}

// choose sets what the front end has chosen.
func (d *disk) choose(features uint64, writeBack bool) {
	d.features, d.writeBack = features, writeBack
	through := features&featureFlush == 0 || features&featureConfigWCE != 0 && !writeBack
	d.writeThrough.Store(through && d.geo.CanFUA && !d.geo.ReadOnly)
}

// config is the configuration as it is now.
func (d *disk) config() []byte {
	g := d.geo
	g.Size = d.size.Load()
	return config(&g, d.writeBack)
}

// may says with an Errno what the disk does not do.
func (d *disk) may(op block.Op, off uint64, n uint32) error {
	size, min := d.size.Load(), max(d.geo.MinBlock, sectorSize)
	switch {
	case op.Writes() && d.geo.ReadOnly:
		return syscall.EPERM
	case op == block.OpFlush && !d.geo.CanFlush, op == block.OpTrim && !d.geo.CanTrim, op == block.OpWriteZeroes && !d.geo.CanWriteZeroes:
		return syscall.EOPNOTSUPP
	case off > size, uint64(n) > size-off, (off|uint64(n))%uint64(min) != 0:
		return syscall.EINVAL
	}
	return nil
}

// most is how many bytes one I/O of the device has at most.
func (d *disk) most() uint32 {
	if d.geo.MaxIO == 0 {
		return maxRequest
	}
	return d.geo.MaxIO
}
