// Package rdmap is the Remote Direct Memory Access Protocol (RFC 5040 with the
// extensions of RFC 7306) on a DDP stream: its messages, the stream's states,
// the order of operations, and the Terminate that answers a peer's fault.
//
// A Stream is one direction pair of RDMAP on one ddp.LLP. It owns no memory
// and no queues of receive buffers: it asks its Upper, which package verbs
// implements, where a payload may go and reports completions to it.
//
// Payloads are placed as they arrive, even out of order if the LLP delivers so; messages are delivered, executed and completed in order.
package rdmap
