//go:build race

package sctp

import "sync/atomic"

// ioSync gives the race detector the order that package syscall gives it for
// Read and Write, and that system calls made directly lack: what happens before
// bytes are sent happens before they are received, should both ends be in one
// process. RDMA makes that order visible to users, as peers write each other's
// memory.
var ioSync atomic.Uint64

func sendBarrier() { ioSync.Add(1) }
func recvBarrier() { ioSync.Load() }
