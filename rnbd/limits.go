package rnbd

import "time"

const (
	// SectorSize is the unit of addresses on the wire, in bytes.
	SectorSize = 512

	// MaxName is the longest name of an export in bytes: it is terminated by a
	// zero in a field of 255.
	MaxName = 254

	// maxSectors is the largest disk: its size in bytes fits an int64.
	maxSectors = 1<<63/SectorSize - 1

	// maxDevices bounds the devices open in one session, each a few hundred bytes. A
	// power of two, because ids are taken modulo it.
	maxDevices = 1024
	// devicePage is how many devices a session allocates slots for at a time.
	devicePage = 32
	// maxDeviceID is the greatest device id that fits OPEN.
	maxDeviceID = 1<<24 - 1

	// maxDiskIO is the largest read or write in bytes that a Disk takes, as large as NBD
	// clients send (32 MiB). It is split over several permits and cannot exceed what one
	// disk of a session can count on.
	maxDiskIO = 32 << 20

	// maxZeroes is the largest trim or write zeroes in bytes: a 32-bit count of
	// whole sectors.
	maxZeroes = 1<<32 - SectorSize

	// listAnswer is the size in bytes of an answer to LIST. An entry has at most 264
	// bytes, so at least 15 fit.
	listAnswer = 4096
	// maxListed bounds what a client accepts from a server that never stops listing.
	maxListed = 4096

	// reopenInterval is how often opening a failed disk is retried; for a waiting disk
	// the retries start at reopenMin.
	reopenInterval = 2 * time.Second
	reopenMin      = 50 * time.Millisecond
	// DefaultWriterGrace exceeds the time a client takes to notice that its path is lost
	// and to find another.
	DefaultWriterGrace = 30 * time.Second
	// maxReservations is how many disks' last writers a server remembers, some 200 bytes each,
	// before it forgets those that have left.
	maxReservations = 4096
	// maxWriters is how many writers of one disk have a token, some 200 bytes each. A
	// further one takes that of the one that has been away longest, which has to attach
	// anew. maxFenced is how many that were fenced are known by that.
	maxWriters = 256
	maxFenced  = 256

	// sizeInterval is how often a client asks which of its disks have grown: as often as it
	// sends heartbeats.
	sizeInterval = 5 * time.Second

	// controlTimeout bounds CLOSE.
	controlTimeout = 5 * time.Second
	// closeTick and closeTickMax are the first and the longest pause between a client's
	// queries whether the I/O of a closed device has ended.
	closeTick    = time.Millisecond
	closeTickMax = 250 * time.Millisecond
)
