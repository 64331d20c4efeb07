// Package rping speaks the protocol of rping, the test program of librdmacm,
// on verbs: an RDMA ping that moves each payload by an RDMA Read and back by an
// RDMA Write. It is for trying IronWarp against other RDMA stacks.
//
// For each ping the client sends where its source buffer is, the server reads
// it and answers; the client sends where its sink buffer is, the server writes
// the text there, with the 0 that ends it, and answers again. Each of these
// messages is a Send of 16 bytes; the content of an answer does not matter.
package rping
