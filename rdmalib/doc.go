// Package rdmalib is the RNIC behind libibverbs for programs that were written for others: what the C library of
// folder c calls, with handles in place of objects, memory by its addresses, errors by their numbers, and
// completions in rings that a program reads without a call. Connections are made by the commands of Linux'
// /dev/infiniband/rdma_cm (rdma/rdma_user_cm.h, ABI 4), which librdmacm writes.
//
// Folder rnic makes a C library of this package; it is loaded at a program's first use of the device, since a Go
// runtime does not survive fork.
package rdmalib
