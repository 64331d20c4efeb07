// Package manage carries requests for the management of a host's volumes from a peer, and their answers: one of each in an RDMA stream
// of its own, which runs inside ESP as every other, and which proves who asks.
//
//	asks:    Send request, in one message         answers: Send answer, in messages of up to chunk bytes
//	         Send acknowledgement of each but the last
//
// A peer can hold no more than its share of memory and of the requests that are carried out at a time; one more is refused.
package manage
