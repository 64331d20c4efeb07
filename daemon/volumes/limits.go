package volumes

import "time"

const (
	// sectorSize divides the size of every volume in bytes: less no export has.
	sectorSize = 512
	// maxRecord bounds in bytes what is read of a record. One of a volume that is published to maxLeases peers has some 16 KiB.
	maxRecord = 64 << 10
	// maxLeases is how many peers a volume may be published to: more than hosts share a disk.
	maxLeases = 64

	// operationTime bounds what one request does to a pool's storage, but for waiting for others' requests: thin volumes of a busy LVM take seconds.
	operationTime = 2 * time.Minute
	// busyTime is how long a request waits for others that work on the same volume.
	busyTime = 30 * time.Second
	// freezeTime is how long writes of a volume are held back at most before its snapshot begins: a guest takes a disk for dead
	// that does not answer for 30 s.
	freezeTime = 10 * time.Second
	// copyTime is how long the snapshot itself may take while they are held: a clone of extents takes milliseconds.
	copyTime = 15 * time.Second

	// watchEvery is how often pools are looked at: whether they can be used, how full they are.
	watchEvery = 10 * time.Second
	// lookTime bounds one such look.
	lookTime = 20 * time.Second
	// commandTime bounds one command of LVM.
	commandTime = 60 * time.Second
	// maxOutput bounds in bytes what is read of a command's output: a report of 16,384 volumes has 8 MiB.
	maxOutput = 16 << 20
)
