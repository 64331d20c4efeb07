//go:build race

package sockio

import "sync/atomic"

// ioSync gives the race detector the order that package syscall gives it for
// Read and Write: what happens before bytes are sent happens before they are
// received, should both ends be in one process. RDMA makes that order visible
// to users, as peers write each other's memory.
var ioSync atomic.Uint64

// SendBarrier is called before a system call that sends.
func SendBarrier() { ioSync.Add(1) }

// RecvBarrier is called after one that has received.
func RecvBarrier() { ioSync.Load() }
