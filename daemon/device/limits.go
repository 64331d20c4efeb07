package device

import "time"

const (
	// maxConnections of a device: each has a queue in the kernel, a socket and a
	// goroutine here. More than processors gain nothing.
	maxConnections = 4

	// socketBuffer is how many bytes of the driver's a socket holds: eight of the
	// kernel's largest requests, so that it does not wait for the daemon at each.
	socketBuffer = 1 << 20

	// requestTime is how long the driver waits for a reply before it requests the same on
	// another connection. What a killed daemon has left unanswered is requested again when
	// that is over, so it bounds for how long a restart is felt. It is no error to need
	// longer: the connection is replaced, and what it had requested ends before it is repeated.
	requestTime = 20 * time.Second

	// deadTime is how long I/O waits for a daemon to come back. Then it fails, so that a
	// host whose daemon is gone for good can be shut down. A daemon that is there has the
	// kernel wait for longer by giving it connections.
	deadTime = 10 * time.Minute

	// retryMin and retryMax are the pauses between attempts to give the kernel a
	// connection in place of one that has ended.
	retryMin = 20 * time.Millisecond
	retryMax = time.Second

	// watchEvery is how often a connection is checked whose end the driver may have closed
	// while its requests wait for a peer. It adds to requestTime.
	watchEvery = 250 * time.Millisecond

	// linkTime is how long udev may take to make a device's link. It first reads the
	// device, which takes as long as the peer does.
	linkTime = 5 * time.Second

	// claimTime is how long it may take to open a device: its first opening reads
	// the partition table.
	claimTime = 5 * time.Second

	// pollEvery is how often udev's link is looked for.
	pollEvery = 20 * time.Millisecond
)
