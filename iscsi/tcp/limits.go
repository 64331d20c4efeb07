package tcp

import "time"

const (
	// receiveBuffer is the size in bytes of a connection's receive buffer: the longest login PDU
	// and more, and a good number of commands of 48 bytes, or a few with 4 KiB of data.
	receiveBuffer = 32 << 10

	// maxBatch is how many bytes are handed to the socket together. It bounds how long what was
	// sent waits for others before it is given back.
	maxBatch = 512 << 10

	// maxRounds is how often a goroutine that sends also sends what others have queued meanwhile,
	// before a goroutine of the connection takes over.
	maxRounds = 4

	// farewell is how long the end of a connection waits for what is still to be sent.
	farewell = 2 * time.Second
)
