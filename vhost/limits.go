package vhost

import (
	"math"
	"time"
)

const (
	sectorSize = 512

	// maxTable regions are in one SET_MEM_TABLE: the protocol's limit.
	maxTable = 8
	// maxSlots regions there may be: QEMU has some for each stick of memory.
	maxSlots = 64
	// maxMemory bytes of a front end's memory: more than the machines that this is for have.
	maxMemory = 2 << 40
	// maxMapped bytes of memory of all front ends, twice of one whose memory changes: half of
	// the addresses that a process has, so that nobody takes those of the heap.
	maxMapped = min(64<<40, math.MaxInt/2)
	// maxConfig bytes of configuration: the protocol's limit.
	maxConfig = 256
	// maxQueues of a disk: QEMU wants as many as the guest has processors.
	maxQueues = 64
	// maxRing descriptors of a queue: QEMU's limit.
	maxRing = 1024
	// maxChain descriptors of a request, with those of its table, and parts of memory that
	// they name: QEMU's limit.
	maxChain = 1024
	// maxSegments of a request are announced: what a ring of 128 takes without tables.
	maxSegments = 126
	// maxRequest bytes of data of a request, as of an NBD client's.
	maxRequest = 32 << 20
	// maxRange bytes of a discard or of zeroes.
	maxRange = 1 << 30

	// hangUpTick is how often a queue that ends checks whether a full event counter of its
	// front end holds it up.
	hangUpTick = 20 * time.Millisecond
)
