package manage

import "time"

const (
	// chunk in bytes is the payload of a message: what a request has at most, and of which an answer has as many as it needs.
	chunk = 32 << 10
	// MaxRequest in bytes: a name, limits and sizes have some hundred.
	MaxRequest = 16 << 10
	// MaxAnswer in bytes: a list of 16,384 volumes has 10 MiB.
	MaxAnswer = 16 << 20

	// receives are posted at a time: the one message that may come, and one more, so that none comes before it is posted again.
	receives = 2

	// MaxPeer is how many requests of one peer are carried out at a time, and MaxAll how many of all: a controller of many volumes has some
	// ten, and more would only wait for the storage.
	MaxPeer = 8
	MaxAll  = 32 // see MaxPeer

	// startTime bounds the set-up of a stream and the arrival of its request.
	startTime = 10 * time.Second
	// handleTime bounds what is done for a request: to fence a peer may take an hour.
	handleTime = time.Hour + 5*time.Minute
	// messageTime bounds how long the other end may take for one message of an answer.
	messageTime = 30 * time.Second
	// closeTime bounds how long the end of a stream waits for what has been sent to arrive.
	closeTime = 2 * time.Second
)
