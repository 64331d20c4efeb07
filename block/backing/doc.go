// Package backing is the storage below a block export: a regular file or a
// block device, opened for as long as it is exported, as a block.Storage.
//
// A Store does blocking I/O of exact length with errors as syscall.Errno, and
// has a fast path that never sleeps (TryRead) or rarely does (Write while
// recent writes have filled the page cache without delay). A queue on a Store (NewQueue) runs an operation on the calling
// goroutine when that is quick and otherwise on a bounded set of workers.
//
// Reads and writes go through the page cache; Flush and the fua argument make
// data durable. Linux only.
package backing
