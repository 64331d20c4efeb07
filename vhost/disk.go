package vhost

import (
	"cmp"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// disk is the device as one front end has it.
type disk struct {
	block.Device
	geo          block.Geometry
	size         *atomic.Uint64 // bytes, as the device has it now
	serial       string
	features     uint64      // that the front end has chosen
	writeBack    bool        // as the guest has set it
	writeThrough atomic.Bool // writes are durable when they end
}

// setChosen sets the features that the front end has chosen, and how it caches writes.
func (d *disk) setChosen(features uint64, writeBack bool) {
	d.features, d.writeBack = features, writeBack
	through := features&featureFlush == 0 || features&featureConfigWCE != 0 && !writeBack
	d.writeThrough.Store(through && d.geo.CanFUA && !d.geo.ReadOnly)
}

// configSpace returns the configuration as it is now.
func (d *disk) configSpace() []byte {
	g := d.geo
	g.Size = d.size.Load()
	return configSpace(&g, d.writeBack)
}

// refusal returns the Errno of a request that the disk does not carry out, nil for others.
func (d *disk) refusal(op block.Op, off uint64, n uint32) error {
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

// maxIO is how many bytes one I/O of the device has at most.
func (d *disk) maxIO() uint32 { return cmp.Or(d.geo.MaxIO, maxRequest) }
