package rnbd

import "time"

const (
	// SectorSize is the unit in bytes of addresses on the wire.
	SectorSize = 512

	// MaxName is the longest name of an export in bytes: it is terminated by a
	// zero in a field of 255.
	MaxName = 254

	// maxDevices is how many devices one session may have open, each a few
	// hundred bytes. A power of two, since ids are taken modulo it.
	maxDevices = 1024
	// devicePage is how many of them a session makes room for at a time.
	devicePage = 32
	// maxDeviceID is the greatest device id that OPEN has place for.
	maxDeviceID = 1<<24 - 1

	// maxDiskIO is the largest read or write in bytes that a Disk takes; larger
	// than what NBD clients send (32 MiB). It is split over several permits and
	// cannot exceed what one disk of a session can count on.
	maxDiskIO = 32 << 20

	// maxZeroes is the largest trim or write zeroes in bytes: a 32-bit count of
	// whole sectors.
	maxZeroes = 1<<32 - SectorSize

	// listAnswer is the size in bytes of an answer to LIST. At most 264 bytes an
	// entry, so at least 15 of them.
	listAnswer = 4096
	// maxListed bounds what a client takes from a server that never stops
	// listing.
	maxListed = 4096

	// reopenInterval is how often a disk that the server did not let us open
	// again is tried; one that waits is tried after reopenMin at first.
	reopenInterval = 2 * time.Second
	reopenMin      = 50 * time.Millisecond
	// DefaultWriterGrace is longer than a client takes to notice that its path is lost
	// and to find another.
	DefaultWriterGrace = 30 * time.Second
	// maxPlaces is how many disks' last writers a server remembers, some 200 bytes each,
	// before it forgets those that have left.
	maxPlaces = 4096

	// controlTimeout bounds CLOSE.
	controlTimeout = 5 * time.Second
	// closeTick and closeTickMax are how soon, and then how often, a client asks
	// whether the I/O of a closed device has ended.
	closeTick    = time.Millisecond
	closeTickMax = 250 * time.Millisecond
)
