package block

// Storage is a disk without buffers of its own, the base of an export.
type Storage interface {
	Geometry() Geometry
	// Identity identifies the disk and its life.
	Identity() Identity
	// Keeps reports whether all writes acknowledged in that life are present.
	Keeps(life ID) bool
	// Fault is why acknowledged writes of this life were lost, "" if none were.
	Fault() string
	// NewQueue returns a queue for I/O. Its goroutines call afterBatch, if it is not
	// nil, after one or more completions that they made: send the replies there.
	// afterBatch must not block.
	NewQueue(afterBatch func()) Queue
}

// Queue does I/O on a Storage. Operations run in parallel and in no order.
type Queue interface {
	// Do runs one operation and calls done.Complete, before it returns (inline) or
	// later on a goroutine of the queue. It does not sleep in the storage. buf has
	// op.BufferLen bytes, n is the length in bytes of the range of an operation without
	// data. buf is the queue's until Complete. The caller has checked the
	// range and the flags against the Geometry. After Close the result is ESHUTDOWN.
	Do(op Op, buf []byte, off, n int64, fl Flags, done Completion) (inline bool)
	// Close finishes the operations that were handed over, refuses further ones and
	// ends the queue's goroutines, not the storage. It is idempotent.
	Close() error
}
