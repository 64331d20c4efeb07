package block

// Geometry describes a disk and what it can do. It does not change while the disk is in
// use, except for Size, see Resizer.
type Geometry struct {
	Size           uint64 // bytes
	MinBlock       uint32 // alignment in bytes of every offset and length, a power of two from 1 to 65536; 0 means 1
	PreferredBlock uint32 // bytes at which I/O is efficient, a power of two of at least 512 and MinBlock; 0 means 4096
	MaxIO          uint32 // the largest read or write in bytes, a multiple of MinBlock, 0 if there is none; trims and zeroes may be larger
	ReadOnly       bool
	Rotational     bool
	CanFlush       bool
	CanFUA         bool
	CanTrim        bool
	CanWriteZeroes bool
	CanFastZero    bool
	CanCache       bool
	CanStatus      bool
	// MultiConn: a flush completed for one user covers the writes completed
	// for every other, and nobody reads stale data; so an NBD client may open
	// several connections.
	MultiConn bool
}
