package sockio

const (
	// knownEvery is how many system calls there are for each one of which Go's scheduler
	// is told.
	knownEvery = 32

	// maxBrief is the most bytes that such a call may move, one of mpa's read buffers: what
	// takes longer than their copy, some ten microseconds, is to be known.
	maxBrief = 256 << 10

	// maxIovecs is the kernel's limit of slices per call (IOV_MAX); a call with
	// more fails with EMSGSIZE.
	maxIovecs = 1024

	// spinTries is how often a spinning Reader looks before it looks at the clock
	// and sees whether the connection was closed: some ten microseconds.
	spinTries = 16

	// waitBuffer is the size in bytes of the buffer in which a Reader waits on
	// a connection that has no file descriptor: such a connection can only be
	// waited for by reading from it. Large enough for a few network packets per
	// read, small enough to be kept by an idle stream.
	waitBuffer = 8 << 10
)
